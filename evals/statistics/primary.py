"""Which analysis a task's scores get: decided by their shape alone, never by what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.evals.statistics.bootstrap_t import bootstrap_t
from equipoise.evals.statistics.cluster import cluster_index
from equipoise.evals.statistics.delta import DeltaEstimate, DifferenceTest
from equipoise.evals.statistics.fixed_benchmark import fixed_benchmark
from equipoise.evals.statistics.mcnemar import mcnemar_test
from equipoise.evals.statistics.scores import item_difference, paired_scores
from equipoise.evals.statistics.sign_flip import sign_flip_test
from equipoise.evals.statistics.tango import tango_test

__all__ = ["difference_test", "estimate_delta"]

# Below, items are no sample of a population; with this many repeats they can be taken as fixed instead.
_FEW_ITEMS = 100
_REPEATS_FOR_FIXED_ITEMS = 4


def estimate_delta(
    baseline: ArrayLike,
    candidate: ArrayLike,
    *,
    margin: float,
    alpha: float,
    rng: np.random.Generator,
    clusters: ArrayLike | Sequence[Any] | None = None,
    resamples: int = 10_000,
) -> DeltaEstimate:
    """Estimate delta with one-sided limits by the method that fits the scores' shape.

    ===========================================  ==================================
    scores                                       method
    ===========================================  ==================================
    some items share a cluster                   bootstrap-t over clusters
    single right-or-wrong answers                Tango's score test
    under 100 items, 4 or more repeats           fixed benchmark (these items only)
    all else (repeats, graded scores)            bootstrap-t over items
    ===========================================  ==================================

    Parameters
    ----------
    baseline, candidate
        Scores in [0, 1]; shapes [n, K_A] and [n, K_B], or [n].
    margin, alpha
        Largest tolerated loss, a fraction in (0, 1); one-sided error rate of each limit.
    rng
        Source of the resamples, where there are any.
    clusters
        Label of each item's cluster, shape [n]; all different is the same as None.
    resamples
        Bootstrap resamples, where the method has any.

    Raises
    ------
    ValueError
        If scores or labels are missing, ragged or out of range, or the arms differ in items.
    """
    base, cand = paired_scores(baseline, candidate)
    shared = _shared_clusters(clusters, base.shape[0])
    if shared is not None:
        return bootstrap_t(
            base, cand, margin=margin, alpha=alpha, rng=rng, clusters=shared, resamples=resamples
        )
    if _single_binary(base, cand):
        b, c = _discordant(base, cand)
        return tango_test(b, c, base.shape[0], margin=margin, alpha=alpha)
    if base.shape[0] < _FEW_ITEMS and min(base.shape[1], cand.shape[1]) >= _REPEATS_FOR_FIXED_ITEMS:
        return fixed_benchmark(base, cand, margin=margin, alpha=alpha)
    return bootstrap_t(base, cand, margin=margin, alpha=alpha, rng=rng, resamples=resamples)


def difference_test(
    baseline: ArrayLike,
    candidate: ArrayLike,
    *,
    rng: np.random.Generator,
    clusters: ArrayLike | Sequence[Any] | None = None,
) -> DifferenceTest:
    """Test "no difference at all": exact McNemar for single right-or-wrong answers, else sign flips.

    Parameters
    ----------
    baseline, candidate, rng, clusters
        As in :func:`estimate_delta`; clusters that items share are flipped whole.

    Raises
    ------
    ValueError
        If scores or labels are missing, ragged or out of range, or the arms differ in items.
    """
    base, cand = paired_scores(baseline, candidate)
    shared = _shared_clusters(clusters, base.shape[0])
    if shared is None and _single_binary(base, cand):
        return mcnemar_test(*_discordant(base, cand))
    return sign_flip_test(item_difference(base, cand), rng=rng, clusters=shared)


def _shared_clusters(clusters: ArrayLike | Sequence[Any] | None, n: int) -> NDArray[np.intp] | None:
    """Number of each item's cluster; None where no two items share one."""
    if clusters is None:
        return None
    index, count = cluster_index(clusters, n)
    return index if count < n else None


def _single_binary(base: NDArray[np.float64], cand: NDArray[np.float64]) -> bool:
    return base.shape[1] == cand.shape[1] == 1 and all(
        bool(np.all((s == 0.0) | (s == 1.0))) for s in (base, cand)
    )


def _discordant(base: NDArray[np.float64], cand: NDArray[np.float64]) -> tuple[int, int]:
    """Pairs right under the baseline only, and under the candidate only."""
    return int(np.count_nonzero(base > cand)), int(np.count_nonzero(cand > base))
