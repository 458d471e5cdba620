"""From paired tables to evidence: every estimate, interval and test of one model, no decision.

Margins and alpha are data here: they say at which loss and level a test is stated.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.evals.errors import EquipoiseError
from equipoise.evals.evidence import (
    ArmMissing,
    Comparison,
    LogprobEvidence,
    MissingBounds,
    PooledComparison,
    SuiteEvidence,
    TaskEvidence,
    Truncation,
)
from equipoise.evals.pairing import LogprobTable
from equipoise.evals.statistics.detectable import smallest_detectable_loss
from equipoise.evals.statistics.excess import ExcessDiscordance, excess_discordance
from equipoise.evals.statistics.logprob import LogprobComparison, compare_logprobs
from equipoise.evals.statistics.mcnemar import mcnemar_test
from equipoise.evals.statistics.missingness import DifferentialMissingness, differential_missingness
from equipoise.evals.statistics.mover import macro_mean, mover_limits
from equipoise.evals.statistics.newcombe import newcombe_interval
from equipoise.evals.statistics.tango import tango_delta_limits, tango_test
from equipoise.evals.types import ArmRole, FloatArray, PairedTable

_Tables = Mapping[ArmRole, PairedTable] | Mapping[ArmRole, LogprobTable]

__all__ = ["LogprobTables", "TaskTables", "analyse", "compare_arms"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskTables:
    """One accuracy task: its margin, and by role the table of that arm against A1."""

    task: str
    margin: float
    tables: Mapping[ArmRole, PairedTable]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogprobTables:
    """One teacher-forced task: its margin (nats a token), and by role the table against A1."""

    task: str
    margin_nats: float
    tables: Mapping[ArmRole, LogprobTable]


def analyse(
    model: str,
    tasks: Sequence[TaskTables],
    *,
    suite_margin: float,
    alpha: float,
    rng: np.random.Generator,
    logprobs: Sequence[LogprobTables] = (),
    parity_violations: Sequence[str] = (),
) -> SuiteEvidence:
    """All evidence about one model.

    Parameters
    ----------
    model
        Name of the model.
    tasks
        The plan's accuracy tasks; each needs at least the table of the candidate.
    suite_margin, alpha
        Margin of the pooled mean; one-sided alpha of all bounds.
    rng
        Source of the bootstrap resamples.
    logprobs
        The plan's teacher-forced tasks.
    parity_violations
        Differences between the arms that the plan does not allow, one sentence each.

    Raises
    ------
    EquipoiseError
        If a task has no candidate table, graded scores, repeats or clusters.
    """
    role_tables: list[tuple[str, _Tables]] = [(t.task, t.tables) for t in tasks]
    role_tables += [(t.task, t.tables) for t in logprobs]
    for name, tables in role_tables:
        if ArmRole.CANDIDATE not in tables:
            raise EquipoiseError(
                f"task {name!r}: the candidate is not paired with the baseline; pair it first"
            )
    if not tasks:
        raise EquipoiseError(f"model {model!r}: no accuracy task to analyse; give the plan at least one")
    evidence = tuple(_analyse_task(t, alpha, rng) for t in tasks)
    roles = frozenset(role for _, tables in role_tables for role in tables)
    pooled = {
        role: _pool([t.comparisons[role] for t in evidence], suite_margin, alpha)
        for role in sorted(roles)
        if all(role in t.comparisons for t in evidence)
    }
    missing = _arms_missing([tables for _, tables in role_tables])
    return SuiteEvidence(
        model=model,
        alpha=alpha,
        suite_margin=suite_margin,
        roles_run=roles | {ArmRole.BASELINE},
        tasks=evidence,
        pooled=pooled,
        logprobs=tuple(_analyse_logprobs(t, alpha, rng) for t in logprobs),
        arms_missing=missing,
        differential_missingness=_differential(missing),
        parity_violations=tuple(parity_violations),
    )


def compare_arms(table: PairedTable, margin: float, alpha: float) -> Comparison | None:
    """One arm against another on one task of binary scores; None if the table has no pairs.

    Raises
    ------
    EquipoiseError
        If the scores are graded or repeated, or items share clusters: the tests of binary, single,
        independent pairs do not hold there.
    """
    if table.n == 0:
        return None
    baseline, candidate = _binary(table)
    both = int(np.sum(baseline & candidate))
    b, c = int(np.sum(baseline & ~candidate)), int(np.sum(~baseline & candidate))
    n = table.n
    return Comparison(
        task=table.task,
        baseline_arm=table.baseline_arm,
        candidate_arm=table.candidate_arm,
        n=n,
        n_planned=table.n_planned,
        excluded=dict(table.excluded),
        baseline_accuracy=float(baseline.mean()),
        candidate_accuracy=float(candidate.mean()),
        tango=tango_test(b, c, n, margin=margin, alpha=alpha),
        newcombe=newcombe_interval(both, b, c, n - both - b - c),
        mcnemar=mcnemar_test(b, c),
        truncation=_truncation(table, margin, alpha),
        missing=_missing_bounds(table, b, c, alpha),
        detectable=smallest_detectable_loss(n, (b + c) / n),
    )


def _analyse_task(task: TaskTables, alpha: float, rng: np.random.Generator) -> TaskEvidence:
    compared = {role: compare_arms(table, task.margin, alpha) for role, table in task.tables.items()}
    return TaskEvidence(
        task=task.task,
        margin=task.margin,
        n_planned=task.tables[ArmRole.CANDIDATE].n_planned,
        comparisons={role: c for role, c in compared.items() if c is not None},
        excess=_excess(task.tables, rng),
    )


def _binary(table: PairedTable) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    where = f"task {table.task!r}, {table.candidate_arm} against {table.baseline_arm}"
    if table.baseline.shape != (table.n, 1) or table.candidate.shape != (table.n, 1):
        raise EquipoiseError(f"{where}: repeated samples are not supported yet; plan repeats = 1")
    scores = np.concatenate([table.baseline, table.candidate])
    if not np.all((scores == 0.0) | (scores == 1.0)):
        raise EquipoiseError(f"{where}: graded scores are not supported yet; grade each item 0 or 1")
    if len(set(table.cluster_ids)) != table.n:
        raise EquipoiseError(
            f"{where}: items that share a cluster are not supported yet; use one item a cluster"
        )
    return table.baseline[:, 0] == 1.0, table.candidate[:, 0] == 1.0


def _truncation(table: PairedTable, margin: float, alpha: float) -> Truncation:
    baseline, candidate = table.baseline_truncated[:, 0], table.candidate_truncated[:, 0]
    completed = ~(baseline | candidate)
    right = table.baseline[completed, 0] == 1.0, table.candidate[completed, 0] == 1.0
    return Truncation(
        baseline=int(baseline.sum()),
        candidate=int(candidate.sum()),
        n=table.n,
        test=mcnemar_test(int(np.sum(baseline & ~candidate)), int(np.sum(~baseline & candidate))),
        both_completed=tango_test(
            int(np.sum(right[0] & ~right[1])),
            int(np.sum(~right[0] & right[1])),
            int(completed.sum()),
            margin=margin,
            alpha=alpha,
        )
        if completed.any()
        else None,
    )


def _missing_bounds(table: PairedTable, b: int, c: int, alpha: float) -> MissingBounds:
    """Fill the missing side of every unpaired item the worst way, then the best way."""
    alone_baseline, alone_candidate = table.unpaired_baseline, table.unpaired_candidate
    neither = table.n_planned - table.n - alone_baseline.size - alone_candidate.size
    worst_b = b + float(alone_baseline.sum()) + float((1.0 - alone_candidate).sum()) + neither
    best_c = c + float((1.0 - alone_baseline).sum()) + float(alone_candidate.sum()) + neither
    lower, _ = tango_delta_limits(worst_b, c, table.n_planned, 1.0 - alpha)
    _, upper = tango_delta_limits(b, best_c, table.n_planned, 1.0 - alpha)
    return MissingBounds(
        unpaired=table.n_planned - table.n,
        worst_delta=(c - worst_b) / table.n_planned,
        lower=float(lower),
        best_delta=(best_c - b) / table.n_planned,
        upper=float(upper),
    )


def _excess(tables: Mapping[ArmRole, PairedTable], rng: np.random.Generator) -> ExcessDiscordance | None:
    """On the items that A1, A2 and B all have; None without a second baseline run or such items."""
    if ArmRole.BASELINE_REPEAT not in tables:
        return None
    primary, noise = tables[ArmRole.CANDIDATE], tables[ArmRole.BASELINE_REPEAT]
    repeat = dict(zip(noise.item_ids, noise.candidate[:, 0].tolist(), strict=True))
    rows = [i for i, item_id in enumerate(primary.item_ids) if item_id in repeat]
    if not rows:
        return None
    again: FloatArray = np.array([repeat[primary.item_ids[i]] for i in rows])
    return excess_discordance(primary.baseline[rows, 0], again, primary.candidate[rows, 0], rng=rng)


def _pool(comparisons: Sequence[Comparison], margin: float, alpha: float) -> PooledComparison:
    tango = [c.tango for c in comparisons]
    deltas = [t.delta for t in tango]
    worst, best = [c.missing.worst_delta for c in comparisons], [c.missing.best_delta for c in comparisons]
    _, missing_lower, _ = mover_limits(worst, [c.missing.lower for c in comparisons], worst)
    _, _, missing_upper = mover_limits(best, best, [c.missing.upper for c in comparisons])
    b, c = int(sum(t.b for t in tango)), int(sum(t.c for t in tango))
    n = sum(t.n for t in tango)
    return PooledComparison(
        mover=macro_mean(
            deltas, [t.lower for t in tango], [t.upper for t in tango], margin=margin, alpha=alpha
        ),
        missing_lower=float(missing_lower),
        missing_upper=float(missing_upper),
        sign_test=mcnemar_test(b, c),
        truncation_test=mcnemar_test(
            sum(c.truncation.test.b for c in comparisons), sum(c.truncation.test.c for c in comparisons)
        ),
        detectable=smallest_detectable_loss(n, (b + c) / n),
    )


def _analyse_logprobs(task: LogprobTables, alpha: float, rng: np.random.Generator) -> LogprobEvidence:
    primary = task.tables[ArmRole.CANDIDATE]
    compared: dict[ArmRole, LogprobComparison] = {
        role: compare_logprobs(
            table.baseline,
            table.candidate,
            table.sequence,
            rng=rng,
            position=table.position,
            baseline_top1=table.baseline_top1,
            candidate_top1=table.candidate_top1,
            alpha=alpha,
        )
        for role, table in task.tables.items()
        if table.baseline.size
    }
    return LogprobEvidence(
        task=task.task,
        margin_nats=task.margin_nats,
        sequences_planned=primary.n_planned,
        sequences_paired=primary.n_paired,
        sequences_cache_not_read=primary.cache_not_read,
        excluded=dict(primary.excluded),
        comparisons=compared,
    )


def _arms_missing(
    tables_by_task: Iterable[_Tables],
) -> tuple[ArmMissing, ...]:
    counts: dict[tuple[ArmRole, str], list[int]] = {}
    for tables in tables_by_task:
        primary = tables[ArmRole.CANDIDATE]
        rows = [(ArmRole.BASELINE, primary.baseline_arm, primary.missing_baseline, primary.n_planned)]
        rows += [(role, t.candidate_arm, t.missing_candidate, t.n_planned) for role, t in tables.items()]
        for role, arm, missing, planned in rows:
            total = counts.setdefault((role, arm), [0, 0])
            total[0] += missing
            total[1] += planned
    return tuple(ArmMissing(role=r, arm=a, missing=m, planned=p) for (r, a), (m, p) in counts.items())


def _differential(missing: Sequence[ArmMissing]) -> DifferentialMissingness | None:
    by_role = {m.role: m for m in missing}
    one, other = by_role.get(ArmRole.BASELINE), by_role.get(ArmRole.CANDIDATE)
    if one is None or other is None:
        return None
    return differential_missingness(one.missing, one.planned, other.missing, other.planned)
