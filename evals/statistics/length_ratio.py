"""How much longer are the candidate's answers? The ratio of mean completion tokens, with an interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, nan, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student_t

__all__ = ["LengthRatioResult", "length_ratio"]

CITATION = (
    "Cochran WG (1977). Sampling Techniques, 3rd ed., ch. 6 (ratio estimates); cluster-robust variance: "
    "Liang KY, Zeger SL (1986). Biometrika 73:13-22."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRatioResult:
    """Ratio candidate / baseline of mean lengths over paired items; 1 means equally long.

    Attributes
    ----------
    n, clusters
        Items; groups of items that vary together (None if every item stands alone).
    level
        Of the two-sided intervals.
    baseline_mean, candidate_mean
        Mean tokens an answer, each item counted once whatever its repeats.
    ratio, lower, upper
        Ratio of the two means and its interval. A few very long answers weigh as much as they cost.
    two_sided_p
        P-value against "ratio = 1"; 1 if no item differs.
    geometric_ratio, geometric_lower, geometric_upper
        Geometric mean of the items' own ratios: what happens to a typical item.
    n_geometric
        Items with a length above zero on both sides, the only ones that have a ratio of their own.
    reason
        Why a value is NaN; empty if none is.
    """

    n: int
    clusters: int | None
    level: float
    baseline_mean: float
    candidate_mean: float
    ratio: float
    lower: float
    upper: float
    two_sided_p: float
    geometric_ratio: float
    geometric_lower: float
    geometric_upper: float
    n_geometric: int
    reason: str = ""
    method: str = "ratio of means, delta method on the log scale, t limits"
    citation: str = CITATION


def length_ratio(
    baseline: ArrayLike,
    candidate: ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    level: float = 0.95,
) -> LengthRatioResult:
    """Compare the lengths of paired answers.

    Parameters
    ----------
    baseline, candidate
        Completion tokens, shape [n] or [n, repeats] (the arms may differ in repeats); zero is a length.
    clusters
        Label of each item's cluster, shape [n]; items of one cluster may vary together.
    level
        Level of the two-sided intervals.

    Returns
    -------
    LengthRatioResult
        With ``e_i = candidate_i / mean(candidate) - baseline_i / mean(baseline)``, the variance of the log
        ratio is that of the mean of e (of its cluster sums), with t limits at one degree less than there
        are items (clusters). Undefined values are NaN and ``reason`` says why: a mean of zero, a single
        item or cluster, or no variation at all (an interval of width zero would claim certainty).

    Raises
    ------
    ValueError
        If there is no item, the shapes disagree, or a length is negative or not finite.
    """
    one, other = _item_means(baseline, "baseline"), _item_means(candidate, "candidate")
    if one.shape != other.shape:
        raise ValueError(f"the arms have {one.size} and {other.size} items; give paired items in one order")
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie in (0, 1), got {level}")
    group, count = _groups(clusters, one.size)
    mean_one, mean_other = float(one.mean()), float(other.mean())
    reasons: list[str] = []
    ratio = lower = upper = p = nan
    if mean_one == 0.0:
        reasons.append("the baseline's answers are all empty")
    else:
        ratio = mean_other / mean_one
    if mean_one > 0.0 and mean_other > 0.0:
        spread = other / mean_other - one / mean_one
        lower, upper, p = _limits(log(ratio), spread, group, level, reasons)
        if np.array_equal(one, other):
            p = 1.0
    elif mean_one > 0.0:
        reasons.append("the candidate's answers are all empty: the ratio is 0, without an interval")
    elif mean_other == 0.0:
        p = 1.0
    both = (one > 0.0) & (other > 0.0)
    geometric = geometric_lower = geometric_upper = nan
    if both.any():
        logs = np.log(other[both] / one[both])
        centre = float(logs.mean())
        geometric = exp(centre)
        kept = np.unique(group[both], return_inverse=True)[1]
        geometric_lower, geometric_upper, _ = _limits(centre, logs - centre, kept, level, reasons)
    else:
        reasons.append("no item has an answer on both sides")
    return LengthRatioResult(
        n=one.size,
        clusters=count,
        level=level,
        baseline_mean=mean_one,
        candidate_mean=mean_other,
        ratio=ratio,
        lower=lower,
        upper=upper,
        two_sided_p=p,
        geometric_ratio=geometric,
        geometric_lower=geometric_lower,
        geometric_upper=geometric_upper,
        n_geometric=int(both.sum()),
        reason="; ".join(dict.fromkeys(reasons)),
    )


def _item_means(lengths: ArrayLike, arm: str) -> NDArray[np.float64]:
    values = np.asarray(lengths, dtype=np.float64)
    if values.ndim not in (1, 2) or values.size == 0:
        raise ValueError(f"{arm}: lengths need shape [n] or [n, repeats] with n > 0, got {values.shape}")
    if not np.all(np.isfinite(values) & (values >= 0.0)):
        raise ValueError(f"{arm}: a length is negative or not a number; leave out items without a length")
    return values if values.ndim == 1 else values.mean(axis=1)


def _groups(clusters: ArrayLike | None, n: int) -> tuple[NDArray[np.intp], int | None]:
    """Group number of each item, and how many groups; None where every item is its own."""
    if clusters is None:
        return np.arange(n), None
    labels = np.asarray(clusters)
    if labels.shape != (n,):
        raise ValueError(f"clusters need one label an item, shape [{n}], got {labels.shape}")
    unique, group = np.unique(labels, return_inverse=True)
    return group, None if unique.size == n else unique.size


def _limits(
    centre: float,
    residual: NDArray[np.float64],  # mean zero, the influence of each item on the log ratio
    group: NDArray[np.intp],
    level: float,
    reasons: list[str],
) -> tuple[float, float, float]:
    """Limits of exp(centre), and the p-value of centre = 0."""
    sums = np.bincount(group, weights=residual)
    if sums.size < 2:
        reasons.append("one item or cluster alone has no variation to make an interval of")
        return nan, nan, nan
    error = sqrt(sums.size / (sums.size - 1) * float(sums @ sums)) / residual.size
    if error <= 1e-12:  # rounding of a variance that is zero
        reasons.append("every item has the same ratio: there is no variation to make an interval of")
        return nan, nan, nan
    half = float(student_t.ppf(0.5 + level / 2.0, sums.size - 1)) * error
    p = 2.0 * float(student_t.sf(abs(centre) / error, sums.size - 1))
    return exp(centre - half), exp(centre + half), p
