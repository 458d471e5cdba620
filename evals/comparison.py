"""One arm against another on one task: estimate, tests, truncation, and what missing answers could change."""

from dataclasses import dataclass, replace
from math import nan, sqrt

import numpy as np
import numpy.typing as npt

from equipoise.evals.errors import EquipoiseError
from equipoise.evals.evidence import Comparison, MissingBounds, Truncation
from equipoise.evals.statistics.cluster import cluster_standard_error
from equipoise.evals.statistics.delta import DeltaEstimate, DifferenceTest
from equipoise.evals.statistics.detectable import (
    DetectableLoss,
    detectable_at_standard_error,
    smallest_detectable_loss,
)
from equipoise.evals.statistics.fixed_benchmark import FixedBenchmarkResult
from equipoise.evals.statistics.mcnemar import McNemarResult, mcnemar_test
from equipoise.evals.statistics.newcombe import NewcombeInterval, newcombe_interval
from equipoise.evals.statistics.primary import difference_test, estimate_delta
from equipoise.evals.statistics.size_control import size_controlled_alpha
from equipoise.evals.statistics.tango import tango_delta_limits
from equipoise.evals.statistics.variance_components import variance_components
from equipoise.evals.types import FloatArray, PairedTable

__all__ = ["Levels", "compare_arms", "item_differences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """One-sided error rates.

    Attributes
    ----------
    alpha
        Of each limit.
    nogo_alpha
        What looks have left for "degraded"; None if the plan registered none.
    control_size
        Lower alpha, where each item has one 0/1 score, until the exact size of the test is at most alpha.
    """

    alpha: float
    nogo_alpha: float | None = None
    control_size: bool = False


def compare_arms(
    table: PairedTable, margin: float, levels: Levels, rng: np.random.Generator
) -> Comparison | None:
    """One arm against another; None if the table has no pairs.

    Scores may be 0/1 or graded, once or repeated, of items that stand alone or share clusters; the method
    follows (see `statistics.primary`).

    Raises
    ------
    EquipoiseError
        If a score is not in [0, 1]; the message names task and arms.
    """
    if table.n == 0:
        return None
    clusters = _clusters(table)
    if levels.control_size and clusters is None and _is_binary(table):
        levels = replace(levels, alpha=size_controlled_alpha(table.n, margin, levels.alpha))
    try:
        estimate = estimate_delta(
            table.baseline, table.candidate, margin=margin, alpha=levels.alpha, rng=rng, clusters=clusters
        )
        alarm = difference_test(table.baseline, table.candidate, rng=rng, clusters=clusters)
        nogo_upper = _nogo_upper(table, estimate, clusters, levels, rng)
    except ValueError as e:
        raise EquipoiseError(
            f"task {table.task!r}, {table.candidate_arm} against {table.baseline_arm}: {e}"
        ) from e
    difference = item_differences(table)
    lost, gained = -float(np.minimum(difference, 0.0).sum()), float(np.maximum(difference, 0.0).sum())
    mcnemar, newcombe = _binary_results(table, clusters)
    return Comparison(
        task=table.task,
        baseline_arm=table.baseline_arm,
        candidate_arm=table.candidate_arm,
        n=table.n,
        n_planned=table.n_planned,
        excluded=dict(table.excluded),
        repeats_baseline=table.baseline.shape[1],
        repeats_candidate=table.candidate.shape[1],
        clusters=None if clusters is None else len(set(table.cluster_ids)),
        baseline_accuracy=float(table.baseline.mean()),
        candidate_accuracy=float(table.candidate.mean()),
        lost=lost,
        gained=gained,
        discordant_share=float(np.mean(difference != 0.0)),
        estimate=estimate,
        nogo_upper=nogo_upper,
        alarm=alarm,
        mcnemar=mcnemar,
        newcombe=newcombe,
        truncation=_truncation(table, margin, levels, clusters, rng),
        missing=_missing_bounds(table, estimate, levels, clusters, rng),
        detectable=_detectable(difference, clusters, binary=mcnemar is not None),
        within_share=_within_share(table, estimate),
    )


def _within_share(table: PairedTable, estimate: DeltaEstimate) -> float | None:
    if isinstance(estimate, FixedBenchmarkResult):
        return 1.0  # its items are all there are: only the sampling of answers varies
    if table.n < 2 or min(table.baseline.shape[1], table.candidate.shape[1]) < 2:
        return None
    return variance_components(table.baseline, table.candidate).within_share


def item_differences(table: PairedTable) -> FloatArray:
    """Mean candidate score less mean baseline score of every item, shape [n]."""
    return np.asarray(table.candidate.mean(axis=1) - table.baseline.mean(axis=1))


def _clusters(table: PairedTable) -> npt.NDArray[np.str_] | None:
    """Cluster labels, [n], where any two items share one."""
    if len(set(table.cluster_ids)) == table.n:
        return None
    return np.array(table.cluster_ids, dtype=np.str_)


def _nogo_upper(
    table: PairedTable,
    estimate: DeltaEstimate,
    clusters: npt.NDArray[np.str_] | None,
    levels: Levels,
    rng: np.random.Generator,
) -> float:
    if levels.nogo_alpha is None or levels.nogo_alpha == levels.alpha:
        return estimate.upper
    return estimate_delta(
        table.baseline,
        table.candidate,
        margin=estimate.margin,
        alpha=levels.nogo_alpha,
        rng=rng,
        clusters=clusters,
    ).upper


def _is_binary(table: PairedTable) -> bool:
    """One 0/1 score an item in each arm."""
    scores = (table.baseline, table.candidate)
    return all(s.shape[1] == 1 and bool(np.all((s == 0.0) | (s == 1.0))) for s in scores)


def _binary_results(
    table: PairedTable, clusters: npt.NDArray[np.str_] | None
) -> tuple[McNemarResult | None, NewcombeInterval | None]:
    if clusters is not None or not _is_binary(table):
        return None, None
    baseline, candidate = table.baseline[:, 0] == 1.0, table.candidate[:, 0] == 1.0
    both = int(np.sum(baseline & candidate))
    b, c = int(np.sum(baseline & ~candidate)), int(np.sum(~baseline & candidate))
    return mcnemar_test(b, c), newcombe_interval(both, b, c, table.n - both - b - c)


def _truncation(
    table: PairedTable,
    margin: float,
    levels: Levels,
    clusters: npt.NDArray[np.str_] | None,
    rng: np.random.Generator,
) -> Truncation:
    baseline, candidate = table.baseline_truncated, table.candidate_truncated
    # Completion is the "score", so that more truncation counts as a loss.
    change = baseline.mean(axis=1) - candidate.mean(axis=1)
    test: DifferenceTest = difference_test(
        (~baseline).astype(np.float64), (~candidate).astype(np.float64), rng=rng, clusters=clusters
    )
    completed = ~(baseline.any(axis=1) | candidate.any(axis=1))
    both: DeltaEstimate | None = None
    if completed.any():
        both = estimate_delta(
            table.baseline[completed],
            table.candidate[completed],
            margin=margin,
            alpha=levels.alpha,
            rng=rng,
            clusters=None if clusters is None else clusters[completed],
        )
    return Truncation(
        baseline=int(baseline.sum()),
        candidate=int(candidate.sum()),
        baseline_answers=baseline.size,
        candidate_answers=candidate.size,
        lost=-float(np.minimum(change, 0.0).sum()),
        gained=float(np.maximum(change, 0.0).sum()),
        test=test,
        both_completed=both,
    )


def _missing_bounds(
    table: PairedTable,
    estimate: DeltaEstimate,
    levels: Levels,
    clusters: npt.NDArray[np.str_] | None,
    rng: np.random.Generator,
) -> MissingBounds:
    """Fill the missing side of every unpaired item the worst way, then the best way."""
    unpaired = table.n_planned - table.n
    if unpaired == 0:
        return MissingBounds(
            unpaired=0,
            worst_delta=estimate.delta,
            lower=estimate.lower,
            best_delta=estimate.delta,
            upper=estimate.upper,
        )
    worst, best = (_filled_limits(table, estimate, levels, clusters, rng, worst=w) for w in (True, False))
    return MissingBounds(
        unpaired=unpaired,
        worst_delta=worst[0],
        lower=worst[1],
        best_delta=best[0],
        upper=best[2],
    )


def _filled_limits(
    table: PairedTable,
    estimate: DeltaEstimate,
    levels: Levels,
    clusters: npt.NDArray[np.str_] | None,
    rng: np.random.Generator,
    *,
    worst: bool,
) -> tuple[float, float, float]:
    """Delta and its limits over all planned items; missing ones are wrong on one side, right on the other."""
    alone_baseline, alone_candidate = table.unpaired_baseline, table.unpaired_candidate
    neither = table.n_planned - table.n - alone_baseline.size - alone_candidate.size
    base_fill, cand_fill = (1.0, 0.0) if worst else (0.0, 1.0)
    base = np.concatenate([alone_baseline, np.full(alone_candidate.size + neither, base_fill)])
    cand = np.concatenate(
        [np.full(alone_baseline.size, cand_fill), alone_candidate, np.full(neither, cand_fill)]
    )
    if clusters is None and _is_binary(table):
        b = float(
            np.sum((table.baseline == 1.0) & (table.candidate == 0.0)) + np.maximum(base - cand, 0.0).sum()
        )
        c = float(
            np.sum((table.baseline == 0.0) & (table.candidate == 1.0)) + np.maximum(cand - base, 0.0).sum()
        )
        lower, upper = tango_delta_limits(b, c, table.n_planned, 1.0 - levels.alpha)
        return (c - b) / table.n_planned, float(lower), float(upper)
    filled = estimate_delta(
        np.concatenate([table.baseline, np.repeat(base[:, None], table.baseline.shape[1], axis=1)]),
        np.concatenate([table.candidate, np.repeat(cand[:, None], table.candidate.shape[1], axis=1)]),
        margin=estimate.margin,
        alpha=levels.alpha,
        rng=rng,
        # Whose cluster an unanswered item belongs to is not in the table: it stands alone.
        clusters=None if clusters is None else np.concatenate([clusters, _labels(base.size, clusters)]),
    )
    return filled.delta, filled.lower, filled.upper


def _labels(count: int, taken: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    """New cluster labels, none of which is taken."""
    longest = int(np.char.str_len(taken).max())
    return np.array([f"{'~' * (longest + 1)}{i}" for i in range(count)], dtype=np.str_)


def _detectable(
    difference: FloatArray, clusters: npt.NDArray[np.str_] | None, *, binary: bool
) -> DetectableLoss:
    n, share = difference.size, float(np.mean(difference != 0.0))
    if binary:
        return smallest_detectable_loss(n, share)
    if clusters is not None:
        error = cluster_standard_error(difference, clusters)
    else:
        error = float(difference.std(ddof=1)) / sqrt(n) if n > 1 else nan
    return detectable_at_standard_error(n, share, error)
