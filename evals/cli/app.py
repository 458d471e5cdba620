"""The command line: parse, call, render, exit; a file for each family of commands.

Exit codes: 0 signed off (of a comparison: all gates passed), 1 degraded, 3 inconclusive, 4 invalid or no
verdict, 2 usage,
130 interrupted.
"""

import click

from equipoise import __version__
from equipoise.evals.cli.compare import compare
from equipoise.evals.cli.export import export
from equipoise.evals.cli.history import history
from equipoise.evals.cli.ledger import ledger
from equipoise.evals.cli.plan import plan
from equipoise.evals.cli.quant import quant
from equipoise.evals.cli.run import report, run
from equipoise.evals.cli.seeds import seeds
from equipoise.evals.cli.serve import doctor, serve
from equipoise.evals.cli.signoff import signoff
from equipoise.evals.cli.stats import stats
from equipoise.evals.cli.tasks import tasks

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="equipoise")
def main() -> None:
    """Is a quantized SGLang release statistically indistinguishable from its BF16 original?"""


for command in (
    run,
    report,
    compare,
    export,
    signoff,
    history,
    plan,
    ledger,
    stats,
    tasks,
    quant,
    serve,
    doctor,
    seeds,
):
    main.add_command(command)
