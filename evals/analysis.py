"""From paired tables to evidence: every estimate, interval and test of one model, no decision.

Margins and alpha are data here: they say at which loss and level a test is stated.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt

import numpy as np
import numpy.typing as npt

from equipoise.evals.comparison import Levels, compare_arms, item_differences
from equipoise.evals.errors import EquipoiseError
from equipoise.evals.evidence import (
    ArmMissing,
    Comparison,
    PooledComparison,
    SuiteEvidence,
    TaskEvidence,
)
from equipoise.evals.exploration import explore
from equipoise.evals.logprob_analysis import LogprobTables, analyse_logprobs
from equipoise.evals.pairing import LogprobTable
from equipoise.evals.statistics.cluster import cluster_standard_error
from equipoise.evals.statistics.delta import DifferenceTest
from equipoise.evals.statistics.detectable import (
    DetectableLoss,
    detectable_at_standard_error,
    smallest_detectable_loss,
)
from equipoise.evals.statistics.excess import ExcessDiscordance, excess_discordance
from equipoise.evals.statistics.mcnemar import McNemarResult, mcnemar_test
from equipoise.evals.statistics.missingness import DifferentialMissingness, differential_missingness
from equipoise.evals.statistics.mover import macro_mean, mover_limits
from equipoise.evals.statistics.sign_flip import sign_flip_test
from equipoise.evals.types import ArmRole, FloatArray, PairedTable

_Tables = Mapping[ArmRole, PairedTable] | Mapping[ArmRole, LogprobTable]

__all__ = ["LogprobTables", "TaskTables", "analyse"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskTables:
    """One accuracy task: its margin, and by role the table of that arm against A1."""

    task: str
    margin: float
    tables: Mapping[ArmRole, PairedTable]


def analyse(
    model: str,
    tasks: Sequence[TaskTables],
    *,
    suite_margin: float,
    alpha: float,
    rng: np.random.Generator,
    nogo_alpha: float | None = None,
    control_size: bool = False,
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
        Source of the resamples.
    nogo_alpha
        One-sided alpha that looks have left for "degraded"; None if the plan registered no looks.
    control_size
        Lower alpha of each 0/1 task until its exact size is at most alpha.
    logprobs
        The plan's teacher-forced tasks.
    parity_violations
        Differences between the arms that the plan does not allow, one sentence each.

    Raises
    ------
    EquipoiseError
        If a task has no candidate table, or there is no task.
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
    levels = Levels(alpha=alpha, nogo_alpha=nogo_alpha, control_size=control_size)
    evidence = tuple(_analyse_task(t, levels, rng) for t in tasks)
    roles = frozenset(role for _, tables in role_tables for role in tables)
    pooled = {
        role: _pool(
            [t.comparisons[role] for t in evidence], [t.tables[role] for t in tasks], suite_margin, alpha, rng
        )
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
        logprobs=tuple(analyse_logprobs(t, alpha, rng) for t in logprobs),
        arms_missing=missing,
        differential_missingness=_differential(missing),
        parity_violations=tuple(parity_violations),
        exploration=explore(
            list(zip(evidence, (t.tables for t in tasks), strict=True)), alpha=alpha, rng=rng.spawn(1)[0]
        ),
    )


def _analyse_task(task: TaskTables, levels: Levels, rng: np.random.Generator) -> TaskEvidence:
    compared = {role: compare_arms(table, task.margin, levels, rng) for role, table in task.tables.items()}
    return TaskEvidence(
        task=task.task,
        margin=task.margin,
        n_planned=task.tables[ArmRole.CANDIDATE].n_planned,
        comparisons={role: c for role, c in compared.items() if c is not None},
        excess=_excess(task.tables, rng),
        unpaired={
            f"{t.candidate_arm} against {t.baseline_arm}": t.excluded
            for role, t in task.tables.items()
            if compared[role] is None
        },
    )


def _excess(tables: Mapping[ArmRole, PairedTable], rng: np.random.Generator) -> ExcessDiscordance | None:
    """On the items that A1, A2 and B all have; None without a second baseline run or such items.

    Repeats are compared by the item's mean score.
    """
    if ArmRole.BASELINE_REPEAT not in tables:
        return None
    primary, noise = tables[ArmRole.CANDIDATE], tables[ArmRole.BASELINE_REPEAT]
    repeat = dict(zip(noise.item_ids, noise.candidate.mean(axis=1).tolist(), strict=True))
    rows = [i for i, item_id in enumerate(primary.item_ids) if item_id in repeat]
    if not rows:
        return None
    again: FloatArray = np.array([repeat[primary.item_ids[i]] for i in rows])
    return excess_discordance(
        primary.baseline[rows].mean(axis=1), again, primary.candidate[rows].mean(axis=1), rng=rng
    )


def _pool(
    comparisons: Sequence[Comparison],
    tables: Sequence[PairedTable],
    margin: float,
    alpha: float,
    rng: np.random.Generator,
) -> PooledComparison:
    estimates = [c.estimate for c in comparisons]
    deltas = [e.delta for e in estimates]
    lowers, uppers = _finite([e.lower for e in estimates], -1.0), _finite([e.upper for e in estimates], 1.0)
    worst, best = [c.missing.worst_delta for c in comparisons], [c.missing.best_delta for c in comparisons]
    _, missing_lower, _ = mover_limits(worst, _finite([c.missing.lower for c in comparisons], -1.0), worst)
    _, _, missing_upper = mover_limits(best, best, _finite([c.missing.upper for c in comparisons], 1.0))
    _, _, nogo_upper = mover_limits(deltas, deltas, _finite([c.nogo_upper for c in comparisons], 1.0))
    return PooledComparison(
        mover=macro_mean(deltas, lowers, uppers, margin=margin, alpha=alpha),
        nogo_upper=float(nogo_upper),
        missing_lower=float(missing_lower),
        missing_upper=float(missing_upper),
        lost=sum(c.lost for c in comparisons),
        gained=sum(c.gained for c in comparisons),
        sign_test=_pooled_test(
            comparisons, [c.alarm for c in comparisons], [item_differences(t) for t in tables], tables, rng
        ),
        truncation_test=_pooled_test(
            comparisons,
            [c.truncation.test for c in comparisons],
            [t.baseline_truncated.mean(axis=1) - t.candidate_truncated.mean(axis=1) for t in tables],
            tables,
            rng,
        ),
        detectable=_pooled_detectable(comparisons, tables),
    )


def _finite(limits: Sequence[float], worst: float) -> list[float]:
    """Where a task's data give no limit (one cluster, say), anything is possible."""
    return [x if isfinite(x) else worst for x in limits]


def _pooled_test(
    comparisons: Sequence[Comparison],
    tests: Sequence[DifferenceTest],
    differences: Sequence[FloatArray],
    tables: Sequence[PairedTable],
    rng: np.random.Generator,
) -> DifferenceTest:
    """McNemar on the summed discordant pairs where every task has them, else sign flips over all items."""
    pairs = [t for t in tests if isinstance(t, McNemarResult)]
    if len(pairs) == len(tests):
        return mcnemar_test(sum(t.b for t in pairs), sum(t.c for t in pairs))
    clusters = _joint_clusters(comparisons, tables)
    return sign_flip_test(np.concatenate(differences), rng=rng, clusters=clusters)


def _joint_clusters(
    comparisons: Sequence[Comparison], tables: Sequence[PairedTable]
) -> npt.NDArray[np.int64] | None:
    """Cluster numbers over all tasks' items; tasks share no cluster. None if every item stands alone."""
    if all(c.clusters is None for c in comparisons):
        return None
    numbers: list[npt.NDArray[np.int64]] = []
    start = 0
    for table in tables:
        names, index = np.unique(np.array(table.cluster_ids, dtype=np.str_), return_inverse=True)
        numbers.append(index.astype(np.int64) + start)
        start += names.size
    return np.concatenate(numbers)


def _pooled_detectable(comparisons: Sequence[Comparison], tables: Sequence[PairedTable]) -> DetectableLoss:
    n = sum(c.n for c in comparisons)
    share = sum(c.discordant_share * c.n for c in comparisons) / n
    if all(c.mcnemar is not None for c in comparisons):
        return smallest_detectable_loss(n, share)
    difference = np.concatenate([item_differences(t) for t in tables])
    clusters = _joint_clusters(comparisons, tables)
    if clusters is None:
        error = float(difference.std(ddof=1)) / sqrt(n) if n > 1 else nan
    else:
        error = cluster_standard_error(difference, clusters)
    return detectable_at_standard_error(n, share, error)


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
