"""Many runs of a model over time: what each decided, side by side. Nothing is pooled over them."""

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.reports.evidence import PooledRow
from equipoise.reports.format import count, interval, points, size
from equipoise.reports.node import Node
from equipoise.reports.tables import Table, columns

__all__ = ["CAVEAT", "History", "ModelHistory", "PastRun", "Unread", "runs_table", "unread_table"]

CAVEAT = (
    "Each run is a test of its own, at its plan's level and margin. Nothing is pooled over runs and no trend "
    "is tested: whoever picks the best of several runs has not tested it. How often a candidate may be tried "
    "is what its plan's max_attempts says, and the ledger counts."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun(Node):
    """One model in one run, or an attempt in the ledger whose run is not there (then ``pooled`` is None)."""

    run: str
    started: str  # UTC, ISO 8601
    plan: str
    plan_hash: str
    candidate: str
    verdict: str | None  # of the model; None of a run that has none
    pooled: PooledRow | None
    attempt: int | None = None  # its number at this candidate
    max_attempts: int | None = None
    notes: tuple[str, ...] = ()  # what a reader must know: not finished, lost, told otherwise by the ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHistory(Node):
    """One model's runs, the oldest first."""

    model: str
    runs: tuple[PastRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread(Node):
    """What was there and could not be read, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History(Node):
    """``source`` says whether the numbers are those of the stored reports or were computed again."""

    models: tuple[ModelHistory, ...] = ()
    unread: tuple[Unread, ...] = ()
    source: str = ""
    caveat: str = CAVEAT


def runs_table(model: ModelHistory) -> Table:
    """A row for each run; the numbers are those of the pooled mean."""
    return Table(
        title=f"{model.model}: {count(len(model.runs))} run{'s' if len(model.runs) != 1 else ''}",
        columns=columns(
            "started (UTC):word", "run:code", "candidate:code", "plan:code", "n", "delta", "interval",
            "margin", "attempt", "verdict:word",
        ),
        rows=tuple(_cells(run) for run in model.runs),
        caption="Pooled mean: delta = candidate - baseline, in points; the interval is at the plan's level.",
    )  # fmt: skip


def _cells(run: PastRun) -> tuple[str, ...]:
    row = run.pooled
    attempt = "" if run.attempt is None else f"{run.attempt} of {run.max_attempts}"
    return (
        run.started[:16].replace("T", " "),
        run.run,
        run.candidate,
        f"{run.plan} {run.plan_hash[:8]}".strip(),
        count(row.n) if row else "",
        points(row.delta) if row else "",
        interval(row.interval, margin=row.margin) if row else "",
        size(row.margin) if row else "",
        attempt,
        run.verdict or "NO VERDICT",
    )


def unread_table(unread: Sequence[Unread]) -> Table:
    """What could not be read."""
    return Table(
        title="Not read",
        columns=columns("path:code", "why:code"),
        rows=tuple((one.path, one.reason) for one in unread),
    )
