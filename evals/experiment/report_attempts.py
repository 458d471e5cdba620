"""The report's rows about attempts: those that the ledger knew when this run was decided, and this one."""

import datetime
from collections.abc import Mapping

from equipoise.evals.attempts import Attempts
from equipoise.evals.verdict import RunVerdict, SuiteVerdict
from equipoise.reports.model import Attempt

__all__ = ["attempt_rows", "utc"]


def attempt_rows(
    verdict: RunVerdict, attempts: Mapping[str, Attempts], *, run_id: str, plan_hash: str
) -> tuple[Attempt, ...]:
    """Model by model, the earlier attempts in their order, then this one."""
    return tuple(
        row
        for m in verdict.models
        if m.model in attempts
        for row in _rows(m, attempts[m.model], run_id, plan_hash)
    )


def _rows(verdict: SuiteVerdict, known: Attempts, run_id: str, plan_hash: str) -> list[Attempt]:
    rows, number = [], 0
    for a in known.earlier:
        number += a.counts
        rows.append(
            Attempt(
                model=a.model,
                run_id=a.run,
                number=number if a.counts else None,
                registered=utc(a.unix_s),
                plan_hash=a.plan_hash,
                outcome=a.outcome,
                alpha=a.alpha,
            )
        )
    own = Attempt(
        model=verdict.model,
        run_id=run_id,
        number=known.number,
        registered=utc(known.unix_s),
        plan_hash=plan_hash,
        outcome=verdict.outcome.value,
        alpha=known.alpha,
        current=True,
    )
    return [*rows, own]


def utc(unix_s: float) -> str:
    """A time as ISO 8601 in UTC, to the second."""
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).isoformat(timespec="seconds")
