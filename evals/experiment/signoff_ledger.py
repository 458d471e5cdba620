"""What the ledger says of a run that is to be signed off, and whether it still says so later."""

from collections.abc import Mapping
from pathlib import Path

from equipoise.evals import ledger_file
from equipoise.evals.attempts import Attempts, attempts_of
from equipoise.evals.errors import LedgerError
from equipoise.evals.ledger import Attempt, Ledger, until
from equipoise.evals.signoff_document import LedgerAttempt, LedgerFacts

__all__ = ["ledger_facts", "prefix_problem"]


def ledger_facts(
    path: Path, recorded: Mapping[str, Attempts], outcomes: Mapping[str, str | None]
) -> tuple[LedgerFacts | None, tuple[str, ...]]:
    """The ledger as it is, with this run's attempts, and in what it disagrees with the run.

    Parameters
    ----------
    recorded : mapping
        By model, the attempts as the run's journal has them.
    outcomes : mapping
        By model, the verdict as computed from the journal.

    Returns
    -------
    facts : LedgerFacts or None
        None where no ledger was kept, or none can be read.
    problems : tuple of str
        A sentence each.
    """
    if not recorded:
        return None, ()
    if not path.is_file():
        return None, (f"the ledger {path} is not there; name the run's own with --ledger",)
    try:
        lines = ledger_file.read(path)
        attempts = Ledger(path).attempts()
    except LedgerError as e:
        return None, (str(e),)
    found: list[LedgerAttempt] = []
    problems: list[str] = []
    for model, known in recorded.items():
        own = next((a for a in attempts if a.sha256 == known.sha256), None)
        if own is None:
            problems.append(f"{path}: the attempt of model {model} is not in this ledger")
            continue
        problems += _disagreements(path, model, known, own, attempts)
        verdict = outcomes.get(model)
        if verdict is not None and own.outcome != verdict:
            problems.append(
                f"{path}: it says that model {model} was {own.outcome}, and the run's answers say {verdict}"
            )
        found.append(
            LedgerAttempt(
                model=model,
                id=known.id,
                line_sha256=known.sha256,
                number=known.number,
                max_attempts=known.max_attempts,
                bound=known.bound,
                outcome=own.outcome,
            )
        )
    facts = LedgerFacts(name=path.name, lines=len(lines.lines), head=lines.head, attempts=tuple(found))
    return facts, tuple(problems)


def _disagreements(
    path: Path, model: str, known: Attempts, own: Attempt, attempts: tuple[Attempt, ...]
) -> list[str]:
    """Earlier attempts that the ledger has and the run's journal has not, or the reverse."""
    mine = (own.registration.candidate, own.registration.baseline)
    same = [a for a in attempts if (a.registration.candidate, a.registration.baseline) == mine]
    now = attempts_of(until(same, own.registration.id))
    if own.registration.id != known.id or mine != (known.candidate, known.baseline):
        return [f"{path}: the attempt of model {model} is at something else than the run's journal says"]
    # Outcomes may have come since: an attempt that was unfinished then is perhaps closed today.
    there = {(a.run, a.unix_s, a.plan_hash) for a in now.earlier}
    here = {(a.run, a.unix_s, a.plan_hash) for a in known.earlier}
    return [
        f"{path}: the earlier attempt of run {run} at model {model} is in {where} alone"
        for run, unix_s, plan_hash in sorted(there ^ here)
        for where in ("the ledger" if (run, unix_s, plan_hash) in there else "the run's journal",)
    ]


def prefix_problem(path: Path, signed: LedgerFacts) -> str | None:
    """In what a ledger is not the signed one, grown; None if it is.

    Raises
    ------
    LedgerError
        A line is broken.
    """
    lines = ledger_file.read(path).lines
    if len(lines) < signed.lines:
        return f"{path}: it has {len(lines)} lines, and had {signed.lines} when the sign-off was made"
    if signed.lines and lines[signed.lines - 1].sha256 != signed.head:
        return f"{path}: up to line {signed.lines} it is not the ledger that the sign-off was made with"
    return None
