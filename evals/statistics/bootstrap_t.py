"""Studentized bootstrap of the mean difference: repeats, graded scores and few clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.evals.statistics.cluster import cluster_index, cluster_sums, t_limits
from equipoise.evals.statistics.limits import (
    ONE_CLUSTER,
    Limits,
    has_no_spread,
    limits_without_spread,
    score_sides,
    undefined_limits,
    widest,
    with_effective_pairs,
    with_unseen_units,
)
from equipoise.evals.statistics.resample import distinct_rows, resampled_totals
from equipoise.evals.statistics.scores import check_margin, item_difference, paired_scores

__all__ = ["BootstrapTResult", "bootstrap_t"]

CITATION = (
    "Hall P (1988). Theoretical comparison of bootstrap confidence intervals. Annals of Statistics "
    "16:927-953; with clusters: Field CA, Welsh AH (2007). Bootstrapping clustered data. Journal of the "
    "Royal Statistical Society B 69:369-390."
)
# Sums of squares below this share of their terms are rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapTResult:
    """Mean difference over items with studentized-bootstrap limits.

    Attributes
    ----------
    n, clusters
        Items, and clusters (None where every item stands alone).
    repeats_baseline, repeats_candidate
        Samples per item and arm.
    delta, standard_error
        Mean over items of candidate - baseline, and its standard error between items or clusters.
    lower, upper
        One-sided ``1 - alpha`` limits of delta, kept in [-1, 1]; NaN where undefined, then see ``reason``.
    noninferiority_p, equivalence_p
        P-values against "loss >= margin" and "abs(loss) >= margin": the share of resamples whose limit
        reaches the margin, counting the data as one resample. At most alpha exactly where the limit holds.
    fallback
        Empty, or why a limit is Tango's: on fractional counts, or at the effective number of pairs.
    reason
        Empty, or why there are no limits.
    """

    n: int
    clusters: int | None
    repeats_baseline: int
    repeats_candidate: int
    delta: float
    standard_error: float
    lower: float
    upper: float
    margin: float
    alpha: float
    noninferiority_p: float
    equivalence_p: float
    resamples: int
    fallback: str = ""
    reason: str = ""
    method: str = "bootstrap-t over items"
    citation: str = CITATION


def bootstrap_t(
    baseline: ArrayLike,
    candidate: ArrayLike,
    *,
    margin: float,
    rng: np.random.Generator,
    alpha: float = 0.05,
    clusters: ArrayLike | Sequence[Any] | None = None,
    resamples: int = 10_000,
) -> BootstrapTResult:
    """Non-inferiority and equivalence of the mean over items, items (or clusters) being the sample.

    Repeats of one item are averaged, never taken for further items. A resample without spread is an
    infinite pivot of the sign of its deviation (0 if it does not deviate): dropping such resamples would
    narrow the limits exactly where few items vary. A limit that is infinite for it is Tango's instead.

    Parameters
    ----------
    baseline, candidate
        Scores in [0, 1]; shapes [n, K_A] and [n, K_B], or [n].
    margin
        Largest tolerated loss, a fraction in (0, 1).
    rng
        Source of the resamples.
    alpha
        One-sided error rate of each limit.
    clusters
        Label of each item's cluster, shape [n]: clusters are then resampled whole, delta is the ratio of
        the resampled sums and sizes, and the standard error is cluster-robust. None: items are.
    resamples
        Bootstrap resamples; at least ``1 / alpha - 1``.

    Returns
    -------
    BootstrapTResult
        One cluster gives NaN limits and a reason. Where every item (or cluster) changed alike there is
        nothing to resample: Tango's limits on fractional counts stand in, and ``fallback`` says so. No limit
        is narrower than items (or clusters) that the sample missed allow (`limits.with_unseen_units`); nor
        than Tango's at the effective number of pairs (`limits.with_effective_pairs`); with clusters, nor than
        :func:`~equipoise.evals.statistics.cluster.cluster_t`.

    Raises
    ------
    ValueError
        If scores or labels are missing, ragged or out of range, the arms differ in items, ``margin`` or
        ``alpha`` is out of range, or ``resamples`` cannot resolve ``alpha``.
    """
    check_margin(margin, alpha)
    base, cand = paired_scores(baseline, candidate)
    d = item_difference(base, cand)
    if clusters is None:
        count, index, sums, sizes = None, np.arange(d.size), d, np.ones(d.size)
    else:
        index, count = cluster_index(clusters, d.size)
        sums, sizes = cluster_sums(d, index, count)
    limits = _bootstrap_limits(
        d, sums, sizes, clusters=count, margin=margin, alpha=alpha, resamples=resamples, rng=rng
    )
    if count is not None:
        limits = widest(limits, t_limits(d, index, count, margin, alpha))
    return BootstrapTResult(
        n=d.size,
        clusters=count,
        repeats_baseline=base.shape[1],
        repeats_candidate=cand.shape[1],
        delta=float(d.mean()),
        standard_error=limits.standard_error,
        lower=limits.lower,
        upper=limits.upper,
        margin=margin,
        alpha=alpha,
        noninferiority_p=limits.noninferiority_p,
        equivalence_p=limits.equivalence_p,
        resamples=resamples,
        fallback=limits.fallback,
        reason=limits.reason,
        method=f"bootstrap-t over {'items' if count is None else 'clusters'}",
    )


def studentized_pivots(
    sums: NDArray[np.float64], sizes: NDArray[np.float64], *, resamples: int, rng: np.random.Generator
) -> tuple[float, float, NDArray[np.float64]]:
    """Mean over items, its standard error, and ``(mean* - mean) / se*`` of resampled units.

    Parameters
    ----------
    sums, sizes
        Sum of differences and number of items of each unit, shape [units]; two units or more that differ.

    Returns
    -------
    delta, standard_error, pivots
        Pivots have shape [resamples]; infinite where a resample has no spread but another mean.
    """
    units = sums.size
    inflation = units / (units - 1.0)
    delta = float(sums.sum() / sizes.sum())
    residual = sums - delta * sizes
    se = float(np.sqrt(inflation * np.square(residual).sum()) / sizes.sum())
    s, m, counts = distinct_rows(sums, sizes)
    e = s - delta * m  # centred: the deviation of a resampled mean is then a plain total
    if np.all(m == m[0]):
        totals = resampled_totals(np.stack([e, e * e], axis=1), counts, resamples=resamples, rng=rng)
        weight = np.full(resamples, units * m[0])
        scale = totals[:, 1]
        deviation = totals[:, 0] / weight
        squares = scale - np.square(totals[:, 0]) / units
    else:
        columns = np.stack([e, m, e * e, e * m, m * m], axis=1)
        totals = resampled_totals(columns, counts, resamples=resamples, rng=rng)
        weight = totals[:, 1]
        deviation = totals[:, 0] / weight
        scale = totals[:, 2] + np.square(deviation) * totals[:, 4]
        squares = scale - 2.0 * deviation * totals[:, 3]
    flat = squares <= _ROUNDING * scale
    error = np.sqrt(inflation * np.where(flat, 0.0, squares)) / weight
    with np.errstate(divide="ignore", invalid="ignore"):
        pivots = deviation / error
    # Neither a spread nor a deviation: no evidence either way.
    pivots[np.abs(deviation) <= _ROUNDING] = 0.0
    return delta, se, pivots


def _bootstrap_limits(
    d: NDArray[np.float64],
    sums: NDArray[np.float64],
    sizes: NDArray[np.float64],
    *,
    clusters: int | None,
    margin: float,
    alpha: float,
    resamples: int,
    rng: np.random.Generator,
) -> Limits:
    beyond = _resamples_beyond(resamples, alpha)
    if clusters == 1:
        return undefined_limits(ONE_CLUSTER)
    if has_no_spread(sums, sizes):
        unit = "item" if clusters is None else "cluster"
        return limits_without_spread(d, sums.size, margin=margin, alpha=alpha, unit=unit)
    delta, se, pivots = studentized_pivots(sums, sizes, resamples=resamples, rng=rng)
    # One limit per resample: quantiles and p-values read the same numbers, so they cannot disagree.
    limits = delta - pivots * se
    ordered = np.partition(limits, (beyond, resamples - 1 - beyond))
    lower, upper = float(ordered[beyond]), float(ordered[resamples - 1 - beyond])
    loss_p, gain_p, fallback = _share(limits <= -margin), _share(limits >= margin), ""
    if not (np.isfinite(lower) and np.isfinite(upper)):
        # More than alpha of all resamples miss every unit that varies: resampling bounds nothing there. The
        # largest cluster counts as one pair, so that the variance of no cluster's sum is understated.
        low, high, score_loss_p, score_gain_p = score_sides(
            d, d.size / float(sizes.max()), margin=margin, alpha=alpha
        )
        lower, loss_p = (lower, loss_p) if np.isfinite(lower) else (low, score_loss_p)
        upper, gain_p = (upper, gain_p) if np.isfinite(upper) else (high, score_gain_p)
        fallback = "too few units vary to resample; the limit is Tango's on fractional counts"
    result = Limits(
        standard_error=se,
        lower=max(-1.0, lower),
        upper=min(1.0, upper),
        noninferiority_p=loss_p,
        equivalence_p=max(loss_p, gain_p),
        fallback=fallback,
    )
    result = with_effective_pairs(result, d, margin=margin, alpha=alpha)
    return with_unseen_units(result, delta, sums.size, margin=margin, alpha=alpha)


def _resamples_beyond(resamples: int, alpha: float) -> int:
    """How many resamples may lie beyond a limit: most m with ``(1 + m) / (resamples + 1) <= alpha``."""
    beyond = floor(alpha * (resamples + 1)) - 1
    if (2 + beyond) / (resamples + 1) <= alpha:  # the product was rounded down
        beyond += 1
    elif (1 + beyond) / (resamples + 1) > alpha:
        beyond -= 1
    if beyond < 0:
        raise ValueError(
            f"{resamples} resamples cannot resolve alpha = {alpha}; use {floor(1 / alpha)} or more"
        )
    return beyond


def _share(reached: NDArray[np.bool_]) -> float:
    return (1.0 + float(np.count_nonzero(reached))) / (reached.size + 1.0)
