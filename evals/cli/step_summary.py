"""The report in the summary page of a GitHub Actions step, where there is one."""

import os
from pathlib import Path

import click

from equipoise.reports import markdown
from equipoise.reports.model import Report

__all__ = ["append_step_summary"]

VARIABLE = "GITHUB_STEP_SUMMARY"
MAX_PAGE_BYTES = 1 << 20  # GitHub drops the whole page of a step beyond this


def append_step_summary(report: Report) -> None:
    """Append the markdown report to the file that GITHUB_STEP_SUMMARY names, if it is set.

    A page that cannot be written is a warning on stderr: the exit code is the verdict and stays what it is.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return
    text = "\n" + markdown.render(report)  # what an earlier command of the step left may lack its newline
    try:
        path = Path(named)
        size = path.stat().st_size if path.exists() else 0
        if size + len(text.encode()) > MAX_PAGE_BYTES:
            raise OSError(0, f"it has {size:,} bytes, and the limit of a step is {MAX_PAGE_BYTES:,}")
        with path.open("a", encoding="utf-8") as page:
            page.write(text)
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else e
        click.echo(
            f"warning: the step summary {named} ({VARIABLE}) was not written: {why}; "
            "the report is in the run directory",
            err=True,
        )
