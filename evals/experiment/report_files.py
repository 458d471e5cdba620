"""The files of a report: whole or not there at all, the HTML page with its flips beside it."""

from pathlib import Path

from equipoise.evals.experiment.results import AllFlips
from equipoise.reports import html
from equipoise.reports.model import Report

__all__ = ["write_page", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Put ``text`` where ``path`` says, as UTF-8; a reader never sees half of it."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)  # a link that lies there would be written through
    with partial.open("xb") as file:
        file.write(data)
    partial.replace(path)


def write_page(path: Path, report: Report, flips: AllFlips) -> Path:
    """Write the HTML report, and as ``NAME-flips.jsonl`` the flips that would make it too large."""
    companion = path.with_name(f"{path.stem}-flips.jsonl")
    page = html.page(report, flips, companion_name=companion.name)
    write_text(path, page.html)
    if page.companion:
        write_text(companion, page.companion)
    else:
        companion.unlink(missing_ok=True)  # of a report that was written here before
    return path
