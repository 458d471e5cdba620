"""``equipoise export``: a run's answers in the files of other tools."""

from pathlib import Path

import click

from equipoise.evals.cli.shell import data_dir_option, errors_exit
from equipoise.evals.errors import UsageError

__all__ = ["export"]


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_",
    type=click.Choice(["parquet", "jsonl", "lm-eval"]),
    default="parquet",
    show_default=True,
    help="lm-eval: a results file and samples with their scores, in a folder for each arm.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="A file, of lm-eval a folder (default: in RUN_DIR)."
)
@click.option("--arm", "arms", multiple=True, metavar="NAME", help="lm-eval: only this arm; repeatable.")
@data_dir_option
@errors_exit
def export(run_dir: Path, format_: str, out: Path | None, arms: tuple[str, ...]) -> None:
    """Write the answers in RUN_DIR for other tools; nothing is asked and nothing decided.

    parquet and jsonl hold every reply whole, as it came. lm-eval's files hold the scores too, and are read
    by `equipoise compare`, lm-eval's own tools and viewers of its logs.
    """
    from equipoise.evals.experiment.export_lm_eval import export_lm_eval
    from equipoise.evals.experiment.results import JOURNAL_NAME
    from equipoise.evals.export import export_jsonl, export_parquet
    from equipoise.evals.journal import Journal

    if format_ == "lm-eval":
        for path in export_lm_eval(run_dir, out or run_dir / "lm-eval", arms=arms):
            click.echo(f"wrote {path}")
        return
    if arms:
        raise UsageError("--arm goes with --format lm-eval; parquet and jsonl have a column for it")
    path = out or run_dir / f"samples.{format_}"
    with Journal.read(run_dir / JOURNAL_NAME) as journal:
        written = {"parquet": export_parquet, "jsonl": export_jsonl}[format_](journal, path)
    click.echo(f"wrote {path}: {written} samples")
