"""``equipoise history``: what many runs decided over time."""

import os
import shutil
import sys
from pathlib import Path

import click

from equipoise.evals.cli.shell import data_dir_option, errors_exit
from equipoise.evals.errors import UsageError

__all__ = ["history"]


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR|REPORT...")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["terminal", "markdown", "json"]),
    default="terminal",
    show_default=True,
)
@click.option("--output", type=click.Path(path_type=Path), help="Write to a file instead of standard output.")
@click.option("--recompute", is_flag=True, help="Decide every run again from its journal (slow).")
@click.option(
    "--ledger",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    envvar="EQUIPOISE_LEDGER",
    help="Ledger of attempts (default: those beside the run directories; EQUIPOISE_LEDGER).",
)
@data_dir_option
@errors_exit
def history(
    paths: tuple[Path, ...], format_: str, output: Path | None, recompute: bool, ledger: Path | None
) -> None:
    """Show the runs in DIR..., by model and time: verdicts, pooled deltas and intervals, attempts.

    DIR is a run directory or a folder of them. Runs that are broken or unfinished are listed with the reason,
    attempts whose run is gone as the ledger has them. Nothing is pooled, and nothing decided: exits 0.
    """
    from equipoise.evals.experiment.history import history_of
    from equipoise.reports import history_text

    found = history_of(paths, recompute=recompute, ledger=ledger)
    if format_ == "terminal":
        colour = output is None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        width = shutil.get_terminal_size((100, 40)).columns
        plain = not _encodes_lines(sys.stdout.encoding if output is None else "utf-8")
        text = history_text.render_terminal(found, width=width, colour=colour, ascii_only=plain)
    else:
        text = {"markdown": history_text.render_markdown, "json": history_text.render_json}[format_](found)
    if output is None:
        click.echo(text, nl=False)
        return
    from equipoise.evals.experiment.report_files import write_text

    try:
        write_text(output, text)
    except OSError as e:
        raise UsageError(f"--output {output} cannot be written ({e.strerror}); give another file") from e
    click.echo(f"wrote {output}", err=True)


def _encodes_lines(encoding: str | None) -> bool:
    try:
        "─├┤●│┊┼◂▸".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
