"""The pooled mean of the tasks' deltas, its limits recovered from the tasks' own limits (MOVER)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["MoverResult", "macro_mean", "mover_limits"]

CITATION = (
    "Zou GY, Donner A (2008). Construction of confidence limits about effect measures: a general approach. "
    "Statistics in Medicine 27:1693-1702 (method of variance estimates recovery)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverResult:
    """Unweighted mean of the tasks' deltas, every task counting alike whatever its number of items.

    Attributes
    ----------
    deltas, lowers, uppers
        Per task: delta and its one-sided ``1 - alpha`` limits.
    margin, alpha
        Margin of the pooled mean and one-sided alpha.
    delta, lower, upper
        The mean and its one-sided ``1 - alpha`` limits.
    noninferior, equivalent
        ``lower > -margin``; and also ``upper < margin``.
    """

    deltas: tuple[float, ...]
    lowers: tuple[float, ...]
    uppers: tuple[float, ...]
    margin: float
    alpha: float
    delta: float
    lower: float
    upper: float
    noninferior: bool
    equivalent: bool
    method: str = "MOVER macro-mean"
    citation: str = CITATION


def mover_limits(
    deltas: ArrayLike, lowers: ArrayLike, uppers: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean over the last axis (tasks) with its limits: ``mean - sqrt(sum (delta - lower)^2) / tasks``.

    Returns
    -------
    mean, lower, upper
        Each of the shape of the inputs without their last axis.
    """
    d, low, high = (np.asarray(x, dtype=np.float64) for x in (deltas, lowers, uppers))
    tasks = d.shape[-1]
    mean = d.mean(axis=-1)
    below = np.sqrt(np.square(d - low).sum(axis=-1)) / tasks
    above = np.sqrt(np.square(high - d).sum(axis=-1)) / tasks
    return mean, mean - below, mean + above


def macro_mean(
    deltas: ArrayLike, lowers: ArrayLike, uppers: ArrayLike, *, margin: float, alpha: float = 0.05
) -> MoverResult:
    """Non-inferiority and equivalence of the mean over independent tasks.

    Parameters
    ----------
    deltas, lowers, uppers
        Per task, in one order: delta and its lower and upper one-sided ``1 - alpha`` limits.
    margin
        Margin of the mean, a fraction in (0, 1).
    alpha
        One-sided alpha at which the limits were computed.

    Raises
    ------
    ValueError
        If the lists are empty or of unequal length, or a limit lies on the wrong side of its delta.
    """
    d, low, high = (np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (deltas, lowers, uppers))
    if d.size == 0 or d.ndim != 1 or not d.shape == low.shape == high.shape:
        raise ValueError(
            f"need one delta, lower and upper per task, got {d.shape}, {low.shape}, {high.shape}"
        )
    if not np.all((low <= d + 1e-12) & (d <= high + 1e-12)):
        raise ValueError("every task needs lower <= delta <= upper (NaN is not a limit)")
    mean, lower, upper = (float(x) for x in mover_limits(d, low, high))
    return MoverResult(
        deltas=tuple(d.tolist()),
        lowers=tuple(low.tolist()),
        uppers=tuple(high.tolist()),
        margin=margin,
        alpha=alpha,
        delta=mean,
        lower=lower,
        upper=upper,
        noninferior=lower > -margin,
        equivalent=lower > -margin and upper < margin,
    )
