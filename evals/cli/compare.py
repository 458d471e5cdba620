"""``equipoise compare``: two existing result sets against each other."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from equipoise.evals.cli.numbers import ALPHA, MARGIN, SEED, Number
from equipoise.evals.cli.shell import errors_exit
from equipoise.evals.errors import UsageError

__all__ = ["compare"]

F = TypeVar("F", bound=Callable[..., Any])
SHARE = Number("a share", 0, 1)
INPUT_FORMATS = ("run", "lm-eval", "sgl-eval", "inspect", "table")

_GATES = [
    click.option("--margin", type=MARGIN, help="Largest tolerated loss of a task.  [default: 0.02]"),
    click.option("--suite-margin", type=MARGIN, help="The same of the mean over tasks.  [default: --margin]"),
    click.option(
        "--alpha", type=ALPHA, default=0.05, show_default=True, help="One-sided error rate of every bound."
    ),
    click.option("--allow-detected", is_flag=True, help="Pass a detected loss if it is within the margin."),
    click.option(
        "--max-missing",
        type=SHARE,
        default=0.005,
        show_default=True,
        help="Largest share of answers that a set may lack.",
    ),
    click.option(
        "--max-truncation",
        type=SHARE,
        default=0.02,
        show_default=True,
        help="Largest share of a task's baseline answers that may be truncated.",
    ),
    click.option(
        "--seed", type=SEED, default=0, show_default=True, help="Of the resamples, where there are any."
    ),
]
_READING = [
    click.option(
        "--task", "tasks", multiple=True, metavar="NAME", help="Only this task (or pattern); repeatable."
    ),
    click.option(
        "--metric", metavar="NAME", help="lm-eval: METRIC or METRIC,FILTER; inspect: SCORER or SCORER.KEY."
    ),
    click.option("--common", is_flag=True, help="Leave out items that one set was never asked."),
    click.option("--input-format", type=click.Choice(INPUT_FORMATS), help="If the files do not tell it."),
    click.option("--item-column", metavar="COLUMN", help="Tables: the item's id (a name or dotted path)."),
    click.option("--score-column", metavar="COLUMN", help="Tables: the score, from 0 to 1 or true/false."),
    click.option("--score-is", metavar="VALUE", help="Tables: right where the score column is this."),
    click.option("--task-column", metavar="COLUMN", help="Tables: the task."),
    click.option("--repeat-column", metavar="COLUMN", help="Tables: the number of the repeat."),
    click.option("--hash-column", metavar="COLUMN", help="Tables: a hash of what was asked."),
    click.option("--cluster-column", metavar="COLUMN", help="What items share that are not independent."),
    click.option("--baseline-column", metavar="COLUMN", help="A table of both: the baseline's score."),
    click.option("--candidate-column", metavar="COLUMN", help="A table of both: the candidate's score."),
]
_OUTPUT = [
    click.option("--json", "as_json", is_flag=True, help="The same as --format json."),
    click.option(
        "--format",
        "format_",
        type=click.Choice(["terminal", "markdown", "html", "json", "junit"]),
        default="terminal",
        show_default=True,
    ),
    click.option(
        "--output", type=click.Path(path_type=Path), help="Write to a file instead of standard output."
    ),
]


def _options(f: F) -> F:
    for option in reversed([*_GATES, *_READING, *_OUTPUT]):
        f = option(f)
    return f


@click.command()
@click.argument("baseline", metavar="A")
@click.argument("candidate", metavar="[B]", required=False)
@click.option("--baseline-repeat", metavar="A2", help="The baseline asked again: the noise floor.")
@click.option("--control", metavar="P", help="A degraded model, which must be caught.")
@_options
@errors_exit
def compare(*, as_json: bool, format_: str, output: Path | None, **chosen: Any) -> None:
    """Compare result set B (the candidate) with A (the baseline); no server is needed.

    A set is a run directory (RUN_DIR:ARM, by default its candidate), an lm-eval or sgl-eval output
    directory, an inspect log, or a table: CSV, TSV, JSONL, JSON (FILE, FILE:COLUMN or FILE.json:PATH).

    Exits 0 if the gates of all tasks and of their mean pass, 1 degraded, 3 inconclusive, 4 invalid,
    2 usage. Existing results are never eligible for sign-off: `equipoise run` is for that.
    """
    from equipoise.evals.experiment.compare import compare as compare_sets
    from equipoise.evals.experiment.compare_report import comparison_report
    from equipoise.reports import html, junit, markdown, terminal
    from equipoise.reports import json as json_report

    inputs, gates = _inputs_and_gates(chosen)
    report = comparison_report(compare_sets(inputs, gates), command=" ".join(["equipoise", *sys.argv[1:]]))
    render = {
        "terminal": terminal.render,
        "markdown": markdown.render,
        "html": html.render,
        "json": json_report.render,
        "junit": junit.render,
    }
    text = render["json" if as_json else format_](report)
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as e:
            raise UsageError(f"--output {output} cannot be written ({e.strerror}); give another file") from e
        click.echo(f"wrote {output}", err=True)
    sys.exit(report.run.exit_code)


def _inputs_and_gates(chosen: dict[str, Any]) -> tuple[Any, Any]:
    """The command line as what `compare` takes."""
    from equipoise.evals.experiment.compare import Gates, Inputs, Source
    from equipoise.evals.interop.result_set import ReadOptions
    from equipoise.evals.types import ArmRole

    columns = (chosen["baseline_column"], chosen["candidate_column"])
    candidate = chosen["candidate"]
    if any(columns):
        if not all(columns) or candidate is not None or chosen["score_column"]:
            raise UsageError(
                "--baseline-column and --candidate-column go together, with one FILE and no --score-column"
            )
        candidate = chosen["baseline"]
    elif candidate is None:
        raise UsageError(
            "compare needs two result sets, A and B; of one FILE, --baseline-column and --candidate-column"
        )
    sources = {
        ArmRole.BASELINE: Source(text=chosen["baseline"], score_column=columns[0]),
        ArmRole.CANDIDATE: Source(text=candidate, score_column=columns[1]),
    }
    for role, name in ((ArmRole.BASELINE_REPEAT, "baseline_repeat"), (ArmRole.GROSS_CONTROL, "control")):
        if chosen[name] is not None:
            sources[role] = Source(text=chosen[name])
    read = ReadOptions(
        tasks=chosen["tasks"],
        **{
            name: chosen[name]
            for name in (
                "metric",
                "score_is",
                "item_column",
                "score_column",
                "task_column",
                "cluster_column",
                "repeat_column",
                "hash_column",
            )
        },
    )
    inputs = Inputs(
        sources=sources,
        read=read,
        format=chosen["input_format"],
        common_only=chosen["common"],
    )
    gates = Gates(
        margin=chosen["margin"],
        suite_margin=chosen["suite_margin"],
        alpha=chosen["alpha"],
        allow_detected=chosen["allow_detected"],
        max_missing=chosen["max_missing"],
        max_baseline_truncation=chosen["max_truncation"],
        seed=chosen["seed"],
    )
    return inputs, gates
