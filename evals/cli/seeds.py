"""``equipoise seeds``: does a plan pass as often as its predicted power says?"""

import asyncio
import sys
from pathlib import Path

import click

from equipoise.evals.cli.shell import INTERRUPTED, console, data_dir_option, errors_exit, read_plan

__all__ = ["seeds"]


@click.command()
@click.argument("plan_name", metavar="PLAN")
@click.option(
    "--seeds", type=click.IntRange(2, 1000), default=20, show_default=True, help="How many item seeds."
)
@click.option("--first", type=int, default=1, show_default=True, help="The first item seed.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/seeds"), show_default=True)
@data_dir_option
@errors_exit
def seeds(plan_name: str, seeds: int, first: int, out: Path) -> None:
    """Repeat PLAN over item seeds: does the pass fraction agree with the predicted power?"""
    from equipoise.evals.experiment.seeds import run_seeds

    try:
        agrees = asyncio.run(run_seeds(read_plan(plan_name), range(first, first + seeds), out, console()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("interrupted: run the same command again to continue", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(0 if agrees else 1)
