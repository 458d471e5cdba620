"""Losses too small for any one task: a loss that grows with the prompt, or recurs in task after task.

Faults of a KV cache grow with the context, and a consistent loss of half a point hides from every single
task's test. Both tests here flip signs of differences, which needs no model of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from equipoise.evals.statistics.cluster import cluster_index, label_index
from equipoise.evals.statistics.scores import check_difference
from equipoise.evals.statistics.sign_flip import flip_tails

__all__ = ["StratifiedSignResult", "TrendResult", "stratified_sign_test", "trend_test"]

_CITATION_TREND = (
    "Page EB (1963). Ordered hypotheses for multiple treatments: a significance test for linear ranks. "
    "Journal of the American Statistical Association 58:216-230 (rank weights); Fisher RA (1935). The Design "
    "of Experiments, section 21 (sign flips)."
)
_CITATION_STRATA = (
    "Stouffer SA et al. (1949). The American Soldier, vol. 1 (sum of standardised deviates); Fisher RA "
    "(1935). The Design of Experiments, section 21 (sign flips)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendResult:
    """Does the difference change along an ordering of the items?

    Attributes
    ----------
    n, units, nonzero_units
        Items; units whose signs are flipped (items or clusters); those that contribute.
    slope
        Change of delta from the lowest to the highest rank (least squares on ranks); NaN if ``reason``.
    two_sided_p, growing_loss_p, growing_gain_p
        P-values: any trend; delta falls along the ordering (the loss grows); delta rises.
    exact, resamples
        Whether all signs were counted; else how many were drawn.
    reason
        Empty, or why there is no slope (every item has the same score: p-values are then 1).
    """

    n: int
    units: int
    nonzero_units: int
    slope: float
    two_sided_p: float
    growing_loss_p: float
    growing_gain_p: float
    exact: bool
    resamples: int
    reason: str = ""
    method: str = "sign-flip test of a linear trend in ranks"
    citation: str = _CITATION_TREND


@dataclass(frozen=True, slots=True, kw_only=True)
class StratifiedSignResult:
    """Do the strata, small as each loss may be, agree in losing?

    Attributes
    ----------
    n, units, nonzero_units
        Items over all strata; units whose signs are flipped; those that contribute.
    strata, strata_losing, strata_gaining
        Strata; those whose differences sum to a loss, and to a gain.
    lost, gained
        Sums of the losses and of the gains over items, both non-negative.
    statistic
        Mean over strata of (sum of differences / its root mean square under flips), times the root of their
        number: about standard normal under the hypothesis, negative for a loss. Strata without any difference
        do not count; NaN if none has one.
    two_sided_p, loss_p, gain_p
        P-values: any consistent difference; the candidate is worse; it is better.
    exact, resamples
        Whether all signs were counted; else how many were drawn.
    """

    n: int
    units: int
    nonzero_units: int
    strata: int
    strata_losing: int
    strata_gaining: int
    lost: float
    gained: float
    statistic: float
    two_sided_p: float
    loss_p: float
    gain_p: float
    exact: bool
    resamples: int
    method: str = "stratified sign-flip test"
    citation: str = _CITATION_STRATA


def trend_test(
    difference: ArrayLike,
    score: ArrayLike,
    *,
    rng: np.random.Generator,
    clusters: ArrayLike | Sequence[Any] | None = None,
    resamples: int = 20_000,
) -> TrendResult:
    """Does the loss grow with ``score``, such as the length of the prompt?

    Null hypothesis: within each unit (an item, or a cluster with all its items together) the arms are
    exchangeable, so that the unit's differences are as likely to have all their signs reversed, independently
    of the other units. The statistic is ``sum_i (r_i - mean r) D_i`` with ``r`` the midranks of ``score``;
    centring the ranks makes it blind to a loss that is the same at every score. A constant loss violates the
    hypothesis, but the expectation of the statistic stays zero and its variance under flips is not smaller
    than its own, so that a constant loss alone rejects no more often than alpha in large samples.

    Parameters
    ----------
    difference
        Candidate - baseline per item, in [-1, 1]; shape [n].
    score
        What the loss may grow with, finite, shape [n]; only its order matters.
    rng
        Source of the signs; not used up to 20 units that contribute.
    clusters
        Label of each item's cluster, shape [n]. None: items are the units.
    resamples
        Random signs where there are more units.

    Raises
    ------
    ValueError
        If a difference, score or label is missing or the shapes differ.
    """
    d = check_difference(difference)
    s = np.asarray(score, dtype=np.float64)
    if s.shape != d.shape:
        raise ValueError(f"need one score per item: got shape {s.shape} for {d.size} items")
    if not np.isfinite(s).all():
        item = int(np.flatnonzero(~np.isfinite(s))[0])
        raise ValueError(
            f"the score of item {item} is {s[item]:g}; leave the item out of the trend and count it"
        )
    rank = rankdata(s)
    rank -= rank.mean()
    spread = float(np.square(rank).sum())
    units = _unit_sums(rank * d, clusters)
    tails = flip_tails(units, rng=rng, resamples=resamples)
    return TrendResult(
        n=d.size,
        units=units.size,
        nonzero_units=tails.nonzero_units,
        slope=float(np.ptp(rank)) * float((rank * d).sum()) / spread if spread > 0.0 else nan,
        two_sided_p=tails.two_sided,
        growing_loss_p=tails.low,
        growing_gain_p=tails.high,
        exact=tails.exact,
        resamples=0 if tails.exact else resamples,
        reason="" if spread > 0.0 else "every item has the same score: there is nothing to grow with",
    )


def stratified_sign_test(
    difference: ArrayLike,
    stratum: ArrayLike | Sequence[Any],
    *,
    rng: np.random.Generator,
    clusters: ArrayLike | Sequence[Any] | None = None,
    resamples: int = 20_000,
) -> StratifiedSignResult:
    """Pool the differences of many tasks (or tasks by length bucket), each stratum counting alike.

    Null hypothesis: the arms are exchangeable within each unit (an item, or a cluster with all its items
    together), so that the unit's differences are as likely to have all their signs reversed, independently of
    the other units. The statistic adds the strata's sums, each divided by its root mean square under flips,
    which does not depend on the signs: a large or noisy task does not drown the others, and a small loss that
    recurs adds up.

    Parameters
    ----------
    difference
        Candidate - baseline per item of all strata, in [-1, 1]; shape [n].
    stratum
        Label of each item's stratum, such as (task, length bucket), shape [n].
    rng
        Source of the signs; not used up to 20 units that contribute.
    clusters
        Label of each item's cluster, shape [n]; a cluster may reach over strata. Give items of different
        tasks different labels unless they share a document. None: items are the units.
    resamples
        Random signs where there are more units.

    Raises
    ------
    ValueError
        If a difference or a label is missing or the shapes differ.
    """
    d = check_difference(difference)
    index, strata = label_index(
        stratum, d.size, kind="stratum", remedy="give it the name of its task (and length bucket)"
    )
    cluster = np.arange(d.size) if clusters is None else cluster_index(clusters, d.size)[0]
    # Sum of differences of each (cluster, stratum) that occurs: what flips together within one stratum.
    cells, cell = np.unique(cluster * strata + index, return_inverse=True)
    sums = np.bincount(cell, weights=d)
    of_stratum = cells % strata
    mean_square = np.bincount(of_stratum, weights=np.square(sums), minlength=strata)
    total = np.bincount(index, weights=d, minlength=strata)
    varies = mean_square > 1e-20
    scale = np.where(varies, 1.0 / np.sqrt(np.where(varies, mean_square, 1.0)), 0.0)
    units = np.bincount(cluster, weights=d * scale[index]).astype(np.float64)
    tails = flip_tails(units, rng=rng, resamples=resamples)
    return StratifiedSignResult(
        n=d.size,
        units=units.size,
        nonzero_units=tails.nonzero_units,
        strata=strata,
        strata_losing=int(np.count_nonzero(total < -1e-9)),
        strata_gaining=int(np.count_nonzero(total > 1e-9)),
        lost=float(np.maximum(-d, 0.0).sum()),
        gained=float(np.maximum(d, 0.0).sum()),
        statistic=float((total * scale).sum()) / sqrt(varies.sum()) if varies.any() else nan,
        two_sided_p=tails.two_sided,
        loss_p=tails.low,
        gain_p=tails.high,
        exact=tails.exact,
        resamples=0 if tails.exact else resamples,
    )


def _unit_sums(
    values: NDArray[np.float64], clusters: ArrayLike | Sequence[Any] | None
) -> NDArray[np.float64]:
    if clusters is None:
        return values
    index, count = cluster_index(clusters, values.size)
    return np.bincount(index, weights=values, minlength=count).astype(np.float64)
