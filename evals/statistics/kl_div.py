"""``P log(P/Q) - P + Q``: what one cell adds to KL(P || Q), never negative; sums to KL over all cells."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["kl_div_of_logs", "least_kl_div"]

_Floats = NDArray[np.float64]


def kl_div_of_logs(p_log: _Floats, q_log: _Floats) -> _Floats:
    """Elementwise from log P and log Q, without cancellation where they are close; -inf is 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        fall = p_log - q_log
        p, q = np.exp(p_log), np.exp(q_log)
        close = p * (fall + np.expm1(-fall))
        apart = p * fall - p + q
        found = np.where(p_log == -np.inf, q, np.where(np.abs(fall) < 0.5, close, apart))
    return np.maximum(found, 0.0)


def least_kl_div(p_low: ArrayLike, p_high: ArrayLike, q_low: ArrayLike, q_high: ArrayLike) -> _Floats:
    """The smallest value with P and Q in intervals, elementwise: 0 where the intervals overlap."""
    p_low, q_low = np.maximum(p_low, 0.0), np.maximum(q_low, 0.0)
    above = p_low > q_high
    p, q = np.where(above, p_low, p_high), np.where(above, q_high, q_low)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(p > 0.0, p * np.log(p / q), 0.0) - p + q
    return np.where(above | (q_low > p_high), np.maximum(value, 0.0), 0.0)
