"""``equipoise export``: a run's answers and results in the files of other tools."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.evals.cli.shell import data_dir_option, errors_exit
from equipoise.evals.errors import PlanError, UsageError

if TYPE_CHECKING:
    from equipoise.evals.export import Progress
    from equipoise.evals.journal import Journal

__all__ = ["export"]

_SAMPLES = ("parquet", "jsonl")
_LOGS = ("lm-eval", "inspect")
_TRACKERS = ("mlflow", "wandb", "trackio")
_FORMATS = (*_SAMPLES, *_LOGS, "hf-eval-results", *_TRACKERS, "prometheus")


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--format", "format_", type=click.Choice(_FORMATS), default="parquet", show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, allow_dash=True),
    help="A file (parquet, jsonl, prometheus; - for standard output of the latter), else a folder "
    "(default: in RUN_DIR). For trackers a folder that keeps everything on this machine (default: the "
    "tracker's own settings).",
)
@click.option("--force", is_flag=True, help="Replace what is there already.")
@click.option(
    "--arm", "arms", multiple=True, metavar="NAME", help="lm-eval, inspect: only this arm; repeatable."
)
@click.option("--no-scores", is_flag=True, help="parquet: leave the scores out, which need the tasks' data.")
@click.option(
    "--dataset",
    "datasets",
    multiple=True,
    metavar="TASK=OWNER/NAME[:TASK_ID]",
    help="hf-eval-results: the hub's data set that a task is of; repeatable.",
)
@click.option(
    "--project", default="equipoise", show_default=True, help="Trackers: the project or experiment."
)
@data_dir_option
@errors_exit
def export(
    *,
    run_dir: Path,
    format_: str,
    out: Path | None,
    force: bool,
    arms: tuple[str, ...],
    no_scores: bool,
    datasets: tuple[str, ...],
    project: str,
) -> None:
    """Write the run in RUN_DIR for other tools; nothing is asked and nothing decided.

    \b
    parquet          a row for every answer: scores, statuses, tokens, times, and the reply whole
    jsonl            every answer whole, as it came, one a line
    lm-eval          results and samples as lm-eval logs them, a folder for each arm
    inspect          logs for `inspect view`, one for each task, a folder for each arm
    hf-eval-results  .eval_results/TASK.yaml for the model repositories of baseline and candidate
    mlflow, wandb, trackio
                     parameters, numbers, tags and the report (pip install 'equipoise[mlflow]' ...)
    prometheus       numbers in the text format, for a pushgateway

    What lm-eval and inspect would have logged is also read by `equipoise compare`.
    """
    _refuse("--arm", arms, format_, _LOGS)
    _refuse("--dataset", datasets, format_, ("hf-eval-results",))
    _refuse("--no-scores", no_scores, format_, ("parquet",))
    if out is not None and str(out) == "-" and format_ != "prometheus":
        raise UsageError("--out - goes with --format prometheus; give a path")
    if format_ in _SAMPLES:
        _export_samples(run_dir, out or run_dir / f"samples.{format_}", format_, force, no_scores)
    elif format_ in _LOGS:
        _export_logs(run_dir, out or run_dir / format_, format_, force, arms)
    elif format_ in _TRACKERS:
        from equipoise.evals.experiment.export_trackers import export_to_tracker

        where = export_to_tracker(run_dir, format_, project=project, out=out, force=force)
        click.echo(f"logged to {where}")
    elif format_ == "prometheus":
        _export_prometheus(run_dir, out or run_dir / "report.prom", force)
    else:
        _export_hub(run_dir, out or run_dir / format_, force, datasets)


def _refuse(flag: str, given: object, format_: str, formats: tuple[str, ...]) -> None:
    if given and format_ not in formats:
        raise UsageError(f"{flag} goes with --format {' or '.join(formats)}, not with {format_}")


def _export_samples(run_dir: Path, path: Path, format_: str, force: bool, no_scores: bool) -> None:
    from equipoise.evals.experiment.export_samples import grader
    from equipoise.evals.experiment.questions import questions_of
    from equipoise.evals.experiment.results import JOURNAL_NAME, plan_of
    from equipoise.evals.export import export_jsonl, export_parquet
    from equipoise.evals.journal import Journal
    from equipoise.evals.new_file import refuse_existing

    with Journal.read(run_dir / JOURNAL_NAME) as journal:
        refuse_existing(path, force=force)  # before the tasks' data are read
        grade = None
        if format_ == "parquet" and not no_scores:
            try:
                grade = grader(questions_of(plan_of(journal)))
            except PlanError as e:
                raise UsageError(f"{e} (--no-scores exports without them)") from e
        with _progress(journal) as progress:
            if format_ == "parquet":
                written = export_parquet(journal, path, grade=grade, force=force, progress=progress)
            else:
                written = export_jsonl(journal, path, force=force, progress=progress)
    click.echo(f"wrote {path}: {written} samples")


@contextmanager
def _progress(journal: "Journal") -> Iterator["Progress"]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=journal.count(), label="samples", file=sys.stderr, width=0) as bar:
        yield bar.update


def _export_logs(run_dir: Path, out: Path, format_: str, force: bool, arms: tuple[str, ...]) -> None:
    from equipoise.evals.experiment.export_inspect import export_inspect
    from equipoise.evals.experiment.export_lm_eval import export_lm_eval
    from equipoise.evals.experiment.results import JOURNAL_NAME
    from equipoise.evals.journal import Journal

    if format_ == "lm-eval":
        written = export_lm_eval(run_dir, out, arms=arms, force=force)
    else:
        with Journal.read(run_dir / JOURNAL_NAME) as journal, _progress(journal) as progress:
            written = export_inspect(run_dir, out, arms=arms, force=force, progress=progress)
    for path in written:
        click.echo(f"wrote {path}")


def _export_hub(run_dir: Path, out: Path, force: bool, datasets: tuple[str, ...]) -> None:
    from equipoise.evals.experiment.export_hub import export_hub
    from equipoise.evals.interop.hub_export import hub_dataset

    named = {}
    for text in datasets:
        task, given, dataset = text.partition("=")
        if not given:
            raise UsageError(f"--dataset {text!r}: give TASK=OWNER/NAME or TASK=OWNER/NAME:TASK_ID")
        named[task] = hub_dataset(dataset)
    written, left_out = export_hub(run_dir, out, datasets=named, force=force)
    for why in left_out:
        click.echo(f"left out {why}", err=True)
    for path in written:
        click.echo(f"wrote {path}")


def _export_prometheus(run_dir: Path, out: Path, force: bool) -> None:
    from equipoise.evals.experiment.results import analyse_run
    from equipoise.evals.new_file import new_file
    from equipoise.reports import prometheus

    text = prometheus.render(analyse_run(run_dir))
    if str(out) == "-":
        click.echo(text, nl=False)
        return
    with new_file(out, force=force) as new:
        new.write_text(text, encoding="utf-8")
    click.echo(f"wrote {out}")
