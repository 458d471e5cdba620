"""Items that share a document, a conversation or a template: cluster-robust standard error and t limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from equipoise.evals.statistics.limits import (
    ONE_CLUSTER,
    Limits,
    has_no_spread,
    limits_without_spread,
    undefined_limits,
    with_score_limits,
)
from equipoise.evals.statistics.scores import check_difference, check_margin

__all__ = ["ClusterTResult", "cluster_index", "cluster_standard_error", "cluster_t", "t_limits"]

CITATION = (
    "Liang K-Y, Zeger SL (1986). Longitudinal data analysis using generalized linear models. "
    "Biometrika 73:13-22; Cameron AC, Miller DL (2015). A practitioner's guide to cluster-robust inference. "
    "Journal of Human Resources 50:317-372."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTResult:
    """Mean difference of clustered items with t limits on ``clusters - 1`` degrees of freedom.

    Attributes
    ----------
    n, clusters
        Items and clusters.
    delta, standard_error
        Mean over items of candidate - baseline, and its cluster-robust standard error (NaN for one cluster).
    lower, upper
        One-sided ``1 - alpha`` limits of delta, kept in [-1, 1]; NaN where undefined, then see ``reason``.
    noninferiority_p, equivalence_p
        P-values against "loss >= margin" and "abs(loss) >= margin"; NaN where the limits are.
    fallback
        Empty, or why a limit is Tango's: on fractional counts, or at the effective number of pairs.
    reason
        Empty, or why there are no limits.
    """

    n: int
    clusters: int
    delta: float
    standard_error: float
    lower: float
    upper: float
    margin: float
    alpha: float
    noninferiority_p: float
    equivalence_p: float
    fallback: str = ""
    reason: str = ""
    method: str = "cluster-robust t"
    citation: str = CITATION


def cluster_t(
    difference: ArrayLike, clusters: ArrayLike | Sequence[Any], *, margin: float, alpha: float = 0.05
) -> ClusterTResult:
    """Non-inferiority and equivalence of the mean difference of clustered items.

    Clusters are taken to be independent draws; within one, anything goes. Too sure of itself with few
    clusters, and with many where few of them carry the change: decisions are made by
    :func:`~equipoise.evals.statistics.bootstrap_t.bootstrap_t` with ``clusters``, never narrower than this.

    Parameters
    ----------
    difference
        Candidate - baseline per item (a mean over repeats where there are some), in [-1, 1]; shape [n].
    clusters
        Label of each item's cluster, shape [n].
    margin
        Largest tolerated loss, a fraction in (0, 1).
    alpha
        One-sided error rate of each limit.

    Returns
    -------
    ClusterTResult
        One cluster gives NaN limits and a reason. Clusters that all changed alike give no spread, from
        which a t interval would conclude certainty: Tango's limits on fractional counts stand in. For single
        right-or-wrong answers (all differences -1, 0 or 1) the limits are no narrower than Tango's at the
        effective number of pairs: t alone is too sure when few pairs are discordant.

    Raises
    ------
    ValueError
        If a difference or a label is missing, or ``margin`` or ``alpha`` is out of range.
    """
    check_margin(margin, alpha)
    d = check_difference(difference)
    index, count = cluster_index(clusters, d.size)
    limits = t_limits(d, index, count, margin, alpha)
    return ClusterTResult(
        n=d.size,
        clusters=count,
        delta=float(d.mean()),
        standard_error=limits.standard_error,
        lower=limits.lower,
        upper=limits.upper,
        margin=margin,
        alpha=alpha,
        noninferiority_p=limits.noninferiority_p,
        equivalence_p=limits.equivalence_p,
        fallback=limits.fallback,
        reason=limits.reason,
    )


def cluster_standard_error(values: ArrayLike, clusters: ArrayLike | Sequence[Any]) -> float:
    """Standard error of the mean over items: ``sqrt(G/(G-1) * sum_g (sum_{i in g} e_i)^2) / n``.

    Parameters
    ----------
    values
        One finite value an item, shape [n].
    clusters
        Label of each item's cluster, shape [n].

    Returns
    -------
    float
        NaN with one cluster. Every item in a cluster of its own gives the usual standard error.

    Raises
    ------
    ValueError
        If a value is not finite or a label is missing.
    """
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 1 or v.size == 0 or not np.isfinite(v).all():
        raise ValueError(f"values need shape [n] with n >= 1 and must be finite, got shape {v.shape}")
    index, count = cluster_index(clusters, v.size)
    return _robust_se(*cluster_sums(v, index, count)) if count > 1 else nan


def cluster_index(clusters: ArrayLike | Sequence[Any], n: int) -> tuple[NDArray[np.intp], int]:
    """Number each item's cluster from 0 on.

    Returns
    -------
    index, count
        Cluster of each item, shape [n], and the number of clusters.

    Raises
    ------
    ValueError
        If there are not ``n`` labels, or a label is None, empty or NaN.
    """
    remedy = "give it the id of its document or, if it shares none, a label of its own"
    return label_index(clusters, n, kind="cluster", remedy=remedy)


def label_index(
    labels: ArrayLike | Sequence[Any], n: int, *, kind: str, remedy: str
) -> tuple[NDArray[np.intp], int]:
    """Number labels in order of appearance; ``kind`` and ``remedy`` word the errors of missing ones."""
    listed = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)  # type: ignore[arg-type]
    if len(listed) != n:
        raise ValueError(f"need one {kind} label per item: got {len(listed)} labels for {n} items")
    # A dictionary, not np.unique: labels may mix types, which numpy would turn into one kind of text.
    numbers: dict[Any, int] = {}
    index = np.array([numbers.setdefault(label, len(numbers)) for label in listed], dtype=np.intp)
    for label in numbers:
        # NaN is the one label that differs from itself.
        if label is None or label == "" or label != label:  # noqa: PLR0124
            item = int(np.flatnonzero(index == numbers[label])[0])
            raise ValueError(f"item {item} has no {kind} (its label is {label!r}); {remedy}")
    return index, len(numbers)


def cluster_sums(
    values: NDArray[np.float64], index: NDArray[np.intp], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum of the values and number of items of each cluster, both shape [count]."""
    sums = np.bincount(index, weights=values, minlength=count).astype(np.float64)
    return sums, np.bincount(index, minlength=count).astype(np.float64)


def t_limits(
    d: NDArray[np.float64], index: NDArray[np.intp], count: int, margin: float, alpha: float
) -> Limits:
    """Cluster-robust t limits of the mean of ``d`` [n]; ``index`` [n] numbers the ``count`` clusters."""
    if count == 1:
        return undefined_limits(ONE_CLUSTER)
    sums, sizes = cluster_sums(d, index, count)
    if has_no_spread(sums, sizes):
        return limits_without_spread(d, count, margin=margin, alpha=alpha, unit="cluster")
    delta, se = float(d.mean()), _robust_se(sums, sizes)
    freedom = count - 1
    reach = float(stdtrit(freedom, 1.0 - alpha)) * se
    noninferiority_p = float(stdtr(freedom, -(delta + margin) / se))
    limits = Limits(
        standard_error=se,
        lower=max(-1.0, delta - reach),
        upper=min(1.0, delta + reach),
        noninferiority_p=noninferiority_p,
        equivalence_p=max(noninferiority_p, float(stdtr(freedom, (delta - margin) / se))),
    )
    return with_score_limits(limits, d, margin=margin, alpha=alpha)


def _robust_se(sums: NDArray[np.float64], sizes: NDArray[np.float64]) -> float:
    residual = sums - sums.sum() / sizes.sum() * sizes
    count = sums.size
    return float(np.sqrt(count / (count - 1.0) * np.square(residual).sum()) / sizes.sum())
