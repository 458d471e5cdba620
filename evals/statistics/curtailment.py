"""Stopping for futility: how probable is it still that a comparison ends non-inferior?

Stochastic curtailment. With ``n`` of ``items`` answered, the conditional power is the probability of
non-inferiority at the end, given the answers so far and the plan's assumptions for the rest. Stopping where
it is below gamma loses at most gamma of the power: the probability of "stopped, and would have passed" is
the mean of the conditional power over the runs that stop. Every function takes arrays; nothing here can
turn a comparison into a passed one.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom, norm

from equipoise.evals.statistics.power import largest_rejecting_b
from equipoise.evals.statistics.tango import tango_delta_limits, tango_statistic

__all__ = [
    "CITATION",
    "conditional_power",
    "macro_conditional_power",
    "project_counts",
    "project_estimate",
    "still_possible",
]

CITATION = (
    "Lan KKG, Simon R, Halperin M (1982). Stochastically curtailed tests in long-term clinical trials. "
    "Sequential Analysis 1:207-219."
)

_TAIL = 1e-12

_Array = NDArray[np.float64]


def still_possible(
    b: ArrayLike, c: ArrayLike, n: int, items: int, *, margin: float, alpha: float = 0.05
) -> NDArray[np.bool_]:
    """Whether Tango's test would pass if the candidate alone were right on every item to come.

    Parameters
    ----------
    b, c
        Discordant counts among the ``n`` pairs so far.
    n, items
        Pairs so far and at the end.
    margin, alpha
        Of the test at the end.
    """
    b_, c_ = _checked(b, c, n, items)
    best = tango_statistic(b_, c_ + (items - n), items, margin)
    return np.asarray(best <= -float(norm.isf(alpha)))


def conditional_power(
    b: ArrayLike,
    c: ArrayLike,
    n: int,
    items: int,
    *,
    margin: float,
    p_d: float,
    loss: float,
    alpha: float = 0.05,
) -> _Array:
    """Exact probability that Tango's test passes at the end, given (b, c) so far.

    Parameters
    ----------
    b, c
        Discordant counts among the ``n`` pairs so far; broadcast together.
    n, items
        Pairs so far and at the end.
    margin, alpha
        Of the test at the end.
    p_d, loss
        Assumed for the pairs to come: they are multinomial with probabilities
        ``((p_d + loss) / 2, (p_d - loss) / 2, 1 - p_d)``.
    """
    b_, c_ = _checked(b, c, n, items)
    if not abs(loss) <= p_d * (1.0 + 1e-12) <= 1.0 + 1e-12:
        raise ValueError(f"need abs(loss) <= p_d <= 1, got p_d={p_d}, loss={loss}")
    rest = items - n
    to_come = np.arange(int(binom.ppf(_TAIL, rest, p_d)), int(binom.isf(_TAIL, rest, p_d)) + 1)
    share = min(max((p_d + loss) / (2.0 * p_d), 0.0), 1.0) if p_d > 0.0 else 0.5
    so_far = (b_ + c_).astype(np.int64)
    totals = np.arange(int(so_far.min() + to_come[0]), int(so_far.max() + to_come[-1]) + 1)
    largest = largest_rejecting_b(totals, items, margin, float(norm.isf(alpha)))
    room = largest[so_far[..., None] + to_come - totals[0]] - b_[..., None]  # [..., pairs to come]
    passes = np.asarray(binom.cdf(room, to_come, share), dtype=np.float64)
    return np.asarray(passes @ np.asarray(binom.pmf(to_come, rest, p_d), dtype=np.float64))


def project_counts(
    b: ArrayLike,
    c: ArrayLike,
    n: int,
    items: int,
    *,
    p_d: float,
    loss: float,
    alpha: float = 0.05,
) -> tuple[_Array, _Array, _Array]:
    """Where a binary task's delta will be at the end: its mean, its lower half-width, its deviation.

    Returns
    -------
    mean, half_width, standard_deviation
        Given (b, c) so far and the assumptions for the rest. The half-width is that of Tango's one-sided
        limit at the expected counts.
    """
    b_, c_ = _checked(b, c, n, items)
    rest = items - n
    at_end = b_ + rest * (p_d + loss) / 2.0, c_ + rest * (p_d - loss) / 2.0
    mean = (at_end[1] - at_end[0]) / items
    lower, _ = tango_delta_limits(*at_end, items, 1.0 - alpha)
    deviation = sqrt(rest * (p_d - loss * loss)) / items
    return mean, mean - lower, np.full_like(mean, deviation)


def project_estimate(
    delta: ArrayLike, lower: ArrayLike, n: int, items: int, *, loss: float, alpha: float = 0.05
) -> tuple[_Array, _Array, _Array]:
    """As `project_counts`, for any estimate: its half-width shrinks with the square root of the items.

    Parameters
    ----------
    delta, lower
        Estimate so far and its one-sided ``1 - alpha`` limit; where that is not finite, all is NaN.
    n, items
        Items so far and at the end.
    loss
        Assumed for the items to come.
    """
    d, low = np.broadcast_arrays(np.asarray(delta, dtype=np.float64), np.asarray(lower, dtype=np.float64))
    low = np.where(np.isfinite(low), low, np.nan)
    part = n / items
    half_width = (d - low) * sqrt(part)
    deviation = half_width / float(norm.isf(alpha)) * sqrt(1.0 - part)
    return part * d - (1.0 - part) * loss, half_width, deviation


def macro_conditional_power(
    mean: ArrayLike, half_width: ArrayLike, standard_deviation: ArrayLike, *, margin: float
) -> _Array:
    """Probability that the macro-mean ends with a lower limit (MOVER) above ``-margin``; normal.

    Parameters
    ----------
    mean, half_width, standard_deviation
        As projected, tasks on the last axis. One task is a macro-mean of one.
    margin
        Of the macro-mean.

    Returns
    -------
    NDArray[np.float64]
        Of the inputs' shape without the last axis; NaN where an input is.
    """
    d, w, s = (np.asarray(x, dtype=np.float64) for x in (mean, half_width, standard_deviation))
    tasks = d.shape[-1]
    room = d.mean(axis=-1) + margin - np.sqrt(np.square(w).sum(axis=-1)) / tasks
    deviation = np.sqrt(np.square(s).sum(axis=-1)) / tasks
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(norm.cdf(np.where(deviation > 0.0, room / deviation, np.sign(room) * np.inf)))


def _checked(b: ArrayLike, c: ArrayLike, n: int, items: int) -> tuple[_Array, _Array]:
    b_, c_ = np.broadcast_arrays(np.asarray(b, dtype=np.float64), np.asarray(c, dtype=np.float64))
    if not 0 <= n <= items or items < 1 or np.any((b_ < 0) | (c_ < 0) | (b_ + c_ > n)):
        raise ValueError(f"need 0 <= b + c <= n <= items and items >= 1, got n={n}, items={items}")
    return b_, c_
