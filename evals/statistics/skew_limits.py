"""One-sided limits of a mean corrected for skewness: what the bootstrap-t comes to, without resampling."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

__all__ = ["CITATION", "skew_corrected_limits"]

CITATION = (
    "Hall P (1992). On the removal of skewness by transformation. Journal of the Royal Statistical Society B "
    "54:221-228."
)


def skew_corrected_limits(
    mean: ArrayLike, variance: ArrayLike, third_moment: ArrayLike, n: int, alpha: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Limits of the expectation by Hall's cubic transformation of the t statistic.

    Agrees with the studentized bootstrap to second order in ``1 / sqrt(n)``; used where thousands of
    simulated experiments need limits, never for an experiment that was run.

    Parameters
    ----------
    mean, variance, third_moment
        Sample mean, variance and third central moment of ``n`` differences; broadcast together. The
        limits are NaN where the variance is 0.
    alpha
        One-sided error rate of each limit.

    Returns
    -------
    lower, upper
    """
    m, v, m3 = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (mean, variance, third_moment)))
    with np.errstate(divide="ignore", invalid="ignore"):
        sd = np.sqrt(v)
        skewness = m3 / (sd * v)
    flat = np.abs(skewness) < 1e-9  # the transformation tends to the identity
    gamma = np.where(flat, 1.0, skewness)
    z = float(norm.isf(alpha))

    def deviation(quantile: float) -> NDArray[np.float64]:
        at = quantile / np.sqrt(n)
        cubic = 3.0 / gamma * (np.cbrt(1.0 + gamma * (at - gamma / (6.0 * n))) - 1.0)
        return np.asarray(np.where(flat, at, cubic))

    undefined = v <= 0.0
    lower = np.where(undefined, np.nan, m - sd * deviation(z))
    upper = np.where(undefined, np.nan, m - sd * deviation(-z))
    return lower, upper
