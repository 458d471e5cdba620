"""Is a ledger whole? Its lines among themselves, and against the runs that lie beside it.

The chain of hashes shows any change but one: lines cut off the end. The journals of the runs remember
the line that registered them and the outcome they reported, which shows that too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from equipoise.evals import ledger_file
from equipoise.evals.errors import JournalError, LedgerError, UsageError
from equipoise.evals.experiment.attempt_register import CLOSED_RECORD
from equipoise.evals.experiment.results import JOURNAL_NAME
from equipoise.evals.experiment.served_digest import ATTEMPT_RECORD
from equipoise.evals.journal import Journal
from equipoise.evals.ledger import LEDGER_NAME, Attempt, Ledger

__all__ = ["LedgerCheck", "check_ledger", "ledger_at"]

MAX_RUNS = 10_000
DEFAULT = Path("runs") / LEDGER_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCheck:
    """A ledger found whole. ``notes`` are what a reader should know and nobody needs to mend."""

    path: Path
    lines: int
    head: str  # hash of the last line
    attempts: tuple[Attempt, ...]
    runs: int  # beside it, that agree with it
    notes: tuple[str, ...]


def ledger_at(path: Path | None) -> Path:
    """The ledger that is meant: a file, the one in a directory, or the default one.

    Raises
    ------
    UsageError
        There is none.
    """
    chosen = path or DEFAULT
    if chosen.is_dir():
        chosen = chosen / LEDGER_NAME
    if not chosen.is_file():
        raise UsageError(f"{chosen}: no ledger there; give its path, or that of the directory of the runs")
    return chosen


def check_ledger(path: Path) -> LedgerCheck:
    """Check every line, and every run beside the ledger against it.

    Raises
    ------
    LedgerError
        Names the first broken line; or the run whose line is missing.
    """
    lines = ledger_file.read(path)
    attempts = Ledger(path).attempts()
    notes = []
    if lines.torn:
        notes.append(f"{lines.torn} bytes of an unfinished last line, which the next run mends")
    agreeing = 0
    for journal in _journals(path.parent):
        try:
            found = list(_against(path, attempts, journal))
        except JournalError as e:
            notes.append(f"not compared: {e}")
            continue
        agreeing += not found
        notes += found
    head = lines.head
    return LedgerCheck(
        path=path, lines=len(lines.lines), head=head, attempts=attempts, runs=agreeing, notes=tuple(notes)
    )


def _journals(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*/{JOURNAL_NAME}"))[:MAX_RUNS]


def _against(path: Path, attempts: tuple[Attempt, ...], journal_path: Path) -> Iterator[str]:
    """Notes about a run that this ledger does not speak of."""
    if journal_path.parent.is_symlink():  # runs/latest
        return
    by_line = {a.sha256: a for a in attempts}
    with Journal.read(journal_path) as journal:
        records = {str(v.get("model")): v for _, _, v in journal.records(ATTEMPT_RECORD)}
        closed = [v for _, _, v in journal.records(CLOSED_RECORD)]
    name = journal_path.parent.name
    for model, record in records.items():
        known = by_line.get(record.get("attempts", {}).get("sha256"))
        if known is None and attempts and record.get("ledger") == attempts[0].sha256:
            raise LedgerError(
                f"{path}: after line {path.read_bytes().count(10)}: the line that registered run {name!r}, "
                f"model {model!r} is missing: lines were cut off the end; restore the file from a copy"
            )
        if known is None:
            yield f"run {name!r}, model {model!r} was registered in another ledger"
            continue
        reported = closed[-1].get(model) if closed else None
        if reported is not None and reported != known.outcome:
            raise LedgerError(
                f"{path}: run {name!r}, model {model!r} reported {reported}, but the ledger says "
                f"{known.outcome}: lines were cut off the end; restore the file from a copy"
            )
