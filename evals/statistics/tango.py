"""Tango's score test and interval for a difference of paired proportions.

Notation, used by every paired-binary module of this folder: of ``n`` pairs, ``b`` are right under the
baseline and wrong under the candidate, ``c`` the other way round. The candidate's *loss* is
``(b - c) / n``; results are stated for ``delta = -loss``, so that higher is better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

__all__ = ["CITATION", "TangoResult", "tango_delta_limits", "tango_statistic", "tango_test"]

CITATION = (
    "Tango T (1998). Equivalence test and confidence interval for the difference in proportions "
    "for the paired-sample design. Statistics in Medicine 17:891-908."
)

_Real = np.float64 | NDArray[np.float64]

# T is monotone in the loss, so bisection on [-1, 1] is safe; 60 halvings reach the float64 spacing.
_BISECTIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TangoResult:
    """Score test of one paired table against a margin, with the intervals that invert it.

    Attributes
    ----------
    b, c, n
        Baseline-only right, candidate-only right, number of pairs.
    margin, alpha, level
        Margin (fraction), one-sided alpha of ``lower`` and ``upper``, level of the two-sided interval.
    delta
        ``(c - b) / n``.
    lower, upper
        Lower and upper *one-sided* ``1 - alpha`` bounds of delta.
    ci_lower, ci_upper
        Two-sided interval of delta at ``level``.
    statistic_at_margin, statistic_at_minus_margin
        T at a loss of ``margin`` and of ``-margin``.
    noninferiority_p
        P-value against "loss >= margin".
    equivalence_p
        P-value against "abs(loss) >= margin" (two one-sided tests).
    """

    b: float
    c: float
    n: int
    margin: float
    alpha: float
    level: float
    delta: float
    lower: float
    upper: float
    ci_lower: float
    ci_upper: float
    statistic_at_margin: float
    statistic_at_minus_margin: float
    noninferiority_p: float
    equivalence_p: float
    method: str = "Tango score test"
    citation: str = CITATION


def tango_statistic(b: ArrayLike, c: ArrayLike, n: ArrayLike, loss: ArrayLike) -> NDArray[np.float64]:
    """Score statistic T of the hypothesis that the candidate's loss equals ``loss``.

    Parameters
    ----------
    b, c, n
        Discordant counts and number of pairs; broadcast together. Counts may be fractional.
    loss
        Hypothesised ``p_b - p_c`` in [-1, 1]; broadcast with the counts.

    Returns
    -------
    NDArray[np.float64]
        Approximately standard normal under the hypothesis and decreasing in ``loss``. Where the
        restricted variance is zero, T is 0 if the data agree with ``loss`` exactly, else infinite.
    """
    b_, c_, n_, d0 = (np.asarray(x, dtype=np.float64) for x in (b, c, n, loss))
    big_b = -b_ - c_ + (2.0 * n_ - b_ + c_) * d0
    big_c = -c_ * d0 * (1.0 - d0)
    root = np.sqrt(np.maximum(big_b * big_b - 8.0 * n_ * big_c, 0.0))
    # The restricted maximum-likelihood estimate of p_c. The textbook form cancels when big_b > 0.
    denominator = np.where(big_b > 0, root + big_b, 1.0)
    q = np.where(big_b > 0, -2.0 * big_c / denominator, (root - big_b) / (4.0 * n_))
    variance = n_ * np.maximum(2.0 * q + d0 * (1.0 - d0), 0.0)
    numerator = b_ - c_ - n_ * d0
    # A numerator within rounding of zero is zero: at zero variance it would otherwise be infinite.
    numerator = np.where(np.abs(numerator) <= 1e-12 * n_, 0.0, numerator)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = numerator / np.sqrt(variance)
    return np.where(numerator == 0.0, 0.0, statistic)


def tango_delta_limits(
    b: ArrayLike, c: ArrayLike, n: ArrayLike, confidence: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One-sided limits of ``delta`` by inverting T; together a ``2 * confidence - 1`` interval.

    Parameters
    ----------
    b, c, n
        Discordant counts and number of pairs; broadcast together. Counts may be fractional.
    confidence
        Confidence of each limit taken alone, in (0.5, 1).

    Returns
    -------
    lower, upper
        Limits of ``delta = (c - b) / n``. Valid at zero discordance and at ``n == 1``.
    """
    b_, c_, n_ = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (b, c, n)))
    _check_counts(b_, c_, n_)
    if not 0.5 < confidence < 1.0:
        raise ValueError(f"confidence must lie in (0.5, 1), got {confidence}")
    z = float(norm.ppf(confidence))
    # Both sides in one inversion: the cost is in the number of array operations.
    lower, upper = -_invert(b_, c_, n_, np.array([-z, z]).reshape((2,) + (1,) * b_.ndim))
    return lower, upper


def tango_test(
    b: float, c: float, n: int, *, margin: float, alpha: float = 0.05, level: float = 0.95
) -> TangoResult:
    """Non-inferiority and equivalence of a candidate to its baseline on one paired table.

    Parameters
    ----------
    b, c
        Pairs right under the baseline only, and under the candidate only.
    n
        All pairs, concordant ones included.
    margin
        Largest tolerated loss, a fraction in (0, 1).
    alpha
        One-sided error rate of the bounds ``lower`` and ``upper``.
    level
        Level of the two-sided interval.

    Raises
    ------
    ValueError
        If the counts are negative, exceed ``n``, or ``margin``, ``alpha`` or ``level`` is out of range.
    """
    if not 0.0 < margin < 1.0:
        raise ValueError(f"margin must lie in (0, 1), got {margin}")
    if not (0.0 < alpha < 0.5 and 0.0 < level < 1.0):
        raise ValueError(f"alpha must lie in (0, 0.5) and level in (0, 1), got {alpha} and {level}")
    counts = (np.float64(b), np.float64(c), np.float64(n))
    _check_counts(*(np.asarray(x) for x in counts))
    one, two = float(norm.ppf(1.0 - alpha)), float(norm.ppf(0.5 + level / 2.0))
    lower, upper, ci_lower, ci_upper = (-_invert(*counts, np.array([-one, one, -two, two]))).tolist()
    at_margin = float(tango_statistic(b, c, n, margin))
    at_minus_margin = float(tango_statistic(b, c, n, -margin))
    noninferiority_p = float(norm.cdf(at_margin))
    return TangoResult(
        b=b,
        c=c,
        n=n,
        margin=margin,
        alpha=alpha,
        level=level,
        delta=(c - b) / n,
        lower=lower,
        upper=upper,
        ci_lower=ci_lower,
        ci_upper=ci_upper,
        statistic_at_margin=at_margin,
        statistic_at_minus_margin=at_minus_margin,
        noninferiority_p=noninferiority_p,
        equivalence_p=max(noninferiority_p, float(norm.sf(at_minus_margin))),
    )


def _invert(b: _Real, c: _Real, n: _Real, target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Loss at which T falls to ``target``; on the target's side of the estimate, where T is 0."""
    estimate = np.broadcast_to((b - c) / n, np.broadcast_shapes(target.shape, np.shape(b)))
    low, high = np.where(target < 0, estimate, -1.0), np.where(target < 0, 1.0, estimate)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        above = tango_statistic(b, c, n, middle) > target
        low = np.where(above, middle, low)
        high = np.where(above, high, middle)
    return 0.5 * (low + high)


def _check_counts(b: NDArray[np.float64], c: NDArray[np.float64], n: NDArray[np.float64]) -> None:
    valid = (n >= 1) & (b >= 0) & (c >= 0) & (b + c <= n * (1 + 1e-12))
    if not np.all(valid):
        at = int(np.flatnonzero(~np.atleast_1d(valid).ravel())[0])
        b0, c0, n0 = (float(np.atleast_1d(x).ravel()[at]) for x in (b, c, n))
        raise ValueError(f"counts need n >= 1, b, c >= 0 and b + c <= n; got b={b0:g}, c={c0:g}, n={n0:g}")
