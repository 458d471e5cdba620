"""``equipoise history``: the runs in some directories, by model and time, with what the ledgers add."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.evals.errors import EquipoiseError, LedgerError, UsageError
from equipoise.evals.experiment.report_attempts import utc
from equipoise.evals.experiment.results import JOURNAL_NAME, analyse_run
from equipoise.evals.experiment.signoff_report import REPORT_NAME
from equipoise.evals.journal import Journal
from equipoise.evals.ledger import LEDGER_NAME, UNFINISHED, WITHDRAWN, Attempt, Ledger
from equipoise.reports import json as json_report
from equipoise.reports.history import History, ModelHistory, PastRun, Unread
from equipoise.reports.model import ModelReport, Report

__all__ = ["history_of"]

MAX_RUNS = 10_000
MAX_REPORT_BYTES = 256 << 20
STORED = "Numbers are those of the stored reports; --recompute decides every run again from its journal."
COMPUTED = "Every run with a journal was decided again from it."
NO_RUN = "in the ledger, and its run directory is not among these"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    path: Path  # of the run directory, or of a report
    report: Report


def history_of(paths: Sequence[Path], *, recompute: bool = False, ledger: Path | None = None) -> History:
    """Every run that these paths lead to, and every attempt that their ledgers know beside them.

    Parameters
    ----------
    paths : sequence of Path
        Run directories, folders of them, or reports (JSON).
    ledger : Path or None
        By default those that lie beside the run directories.

    Raises
    ------
    UsageError
        A path does not exist, or there is no run at all.
    """
    found: list[_Found] = []
    unread: list[Unread] = []
    at = {path: list(_places(path)) for path in paths}
    runs = list(dict.fromkeys(place for places in at.values() for place in places))
    if not runs:
        raise UsageError(
            f"no run in {', '.join(map(str, paths))}: give run directories, a folder of them, or JSON reports"
        )
    unread += [Unread(path=str(path), reason="no run in it") for path, places in at.items() if not places]
    for place in runs[:MAX_RUNS]:
        try:
            found.append(_Found(path=place, report=_report(place, recompute=recompute)))
        except EquipoiseError as e:
            unread.append(Unread(path=str(place), reason=str(e)))
    if len(runs) > MAX_RUNS:
        unread.append(Unread(path="...", reason=f"{len(runs) - MAX_RUNS} more runs; name fewer"))
    attempts: list[Attempt] = []
    for path in [ledger] if ledger is not None else _ledgers(runs):
        try:
            attempts += Ledger(path).attempts()
        except LedgerError as e:
            unread.append(Unread(path=str(path), reason=str(e)))
    return History(
        models=tuple(_by_model(found, attempts, [Path(u.path).name for u in unread])),
        unread=tuple(unread),
        source=COMPUTED if recompute else STORED,
    )


def _places(path: Path) -> Iterator[Path]:
    """The run directories and reports that a path leads to; links in a folder are not followed."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or directory; give run directories or a folder of them")
    if path.is_file() or _is_run(path):
        yield path.resolve()
        return
    children = sorted(child for child in path.iterdir() if child.is_dir() and not child.is_symlink())
    yield from (child.resolve() for child in children if _is_run(child))


def _is_run(path: Path) -> bool:
    return (path / JOURNAL_NAME).exists() or (path / REPORT_NAME).exists()


def _report(place: Path, *, recompute: bool) -> Report:
    stored = place if place.is_file() else place / REPORT_NAME
    journal = place / JOURNAL_NAME
    if place.is_dir() and journal.exists() and (recompute or not stored.exists()):
        return analyse_run(place)
    try:
        if stored.stat().st_size > MAX_REPORT_BYTES:
            raise UsageError(f"{stored} has over {MAX_REPORT_BYTES} bytes; that is no report")
        report = json_report.load(stored.read_text(encoding="utf-8"), source=str(stored))
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{stored}: cannot be read ({e})") from e
    if place.is_dir() and journal.exists():
        with Journal.read(journal) as kept:
            registered = kept.metadata.plan_hash
        if registered != report.run.plan_hash:
            raise UsageError(
                f"{stored} is of another plan than the journal beside it; --recompute reads that"
            )
    return report


def _ledgers(places: Iterable[Path]) -> list[Path]:
    beside = dict.fromkeys(place.parent / LEDGER_NAME for place in places if place.is_dir())
    return [path for path in beside if path.is_file()]


def _by_model(
    found: Sequence[_Found], attempts: Sequence[Attempt], unread: Sequence[str]
) -> Iterator[ModelHistory]:
    runs: dict[str, list[PastRun]] = {}
    told = {_key(a): a for a in attempts}
    for one in found:
        names = {m.name: m for m in one.report.models}
        for name in names or dict.fromkeys(one.report.provenance.models):
            past = _past(one, name, names.get(name))
            attempt = told.pop((one.report.run.run_id, one.report.run.plan_hash, name), None)
            runs.setdefault(name, []).append(_with_ledger(past, attempt))
    for attempt in told.values():
        if attempt.outcome != WITHDRAWN and attempt.registration.run not in unread:
            runs.setdefault(attempt.registration.model, []).append(_lost(attempt))
    for name in sorted(runs):
        yield ModelHistory(model=name, runs=tuple(sorted(runs[name], key=lambda r: (r.started, r.run))))


def _key(attempt: Attempt) -> tuple[str, str, str]:
    r = attempt.registration
    return r.run, r.plan_hash, r.model


def _past(one: _Found, name: str, model: ModelReport | None) -> PastRun:
    run, source = one.report.run, one.report.provenance
    own = next((a for a in run.attempts if a.current and a.model == name), None)
    candidate = next((a for a in source.arms if a.model == name and a.role == "candidate"), None)
    notes = [] if run.state == "final" else [f"{run.state}: {run.headline}"]
    if not run.eligible_for_sign_off:
        notes.append("a comparison of results that were already there: not eligible for sign-off")
    if run.early_stop:
        notes.append(run.early_stop)
    return PastRun(
        run=run.run_id,
        started=source.started or run.created,
        plan=run.plan_name,
        plan_hash=run.plan_hash,
        candidate=(candidate.variant or candidate.url) if candidate else "",
        verdict=model.verdict if model else None,
        pooled=model.pooled if model else None,
        attempt=own.number if own else None,
        max_attempts=run.max_attempts if own else None,
        notes=tuple(notes),
    )


def _with_ledger(past: PastRun, attempt: Attempt | None) -> PastRun:
    """The run with a note where the ledger tells it otherwise."""
    if attempt is None or attempt.outcome in (past.verdict, UNFINISHED):
        return past
    told = f"the ledger says {attempt.outcome}, this report {past.verdict or 'no verdict'}"
    return replace(past, notes=(*past.notes, told))


def _lost(attempt: Attempt) -> PastRun:
    r = attempt.registration
    return PastRun(
        run=r.run,
        started=utc(attempt.unix_s),
        plan=r.plan,
        plan_hash=r.plan_hash,
        candidate="",
        verdict=attempt.outcome,
        pooled=None,
        notes=(NO_RUN,),
    )
