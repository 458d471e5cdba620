"""Adjustment of p-values for many tests: Holm for alarms, Benjamini-Hochberg for exploration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["AdjustedPValues", "benjamini_hochberg", "holm", "holm_adjusted"]

HOLM_CITATION = (
    "Holm S (1979). A simple sequentially rejective multiple test procedure. "
    "Scandinavian Journal of Statistics 6:65-70."
)
BH_CITATION = (
    "Benjamini Y, Hochberg Y (1995). Controlling the false discovery rate. "
    "Journal of the Royal Statistical Society B 57:289-300."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustedPValues:
    """Raw and adjusted p-values in the caller's order; a test rejects when its adjusted p <= alpha."""

    p: tuple[float, ...]
    adjusted: tuple[float, ...]
    method: str
    citation: str


def holm(p: ArrayLike) -> AdjustedPValues:
    """Holm's step-down adjustment: strong control of the family-wise error, any dependence.

    Raises
    ------
    ValueError
        If a p-value is NaN or outside [0, 1].
    """
    raw = _check(p)
    return AdjustedPValues(
        p=tuple(raw.tolist()),
        adjusted=tuple(holm_adjusted(raw).tolist()),
        method="Holm step-down",
        citation=HOLM_CITATION,
    )


def holm_adjusted(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's adjustment along the last axis, for many families at once; the shape is kept."""
    m = p.shape[-1]
    order = np.argsort(p, axis=-1, kind="stable")
    stepped = np.maximum.accumulate(np.take_along_axis(p, order, axis=-1) * (m - np.arange(m)), axis=-1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(stepped, 1.0), axis=-1)
    return adjusted


def benjamini_hochberg(p: ArrayLike) -> AdjustedPValues:
    """Benjamini-Hochberg step-up adjustment: false discovery rate, independent or positively dependent.

    Raises
    ------
    ValueError
        If a p-value is NaN or outside [0, 1].
    """
    raw = _check(p)
    m = raw.size
    order = np.argsort(raw, kind="stable")
    scaled = raw[order] * m / (np.arange(m) + 1.0)
    stepped = np.minimum.accumulate(scaled[::-1])[::-1]
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(stepped, 1.0)
    return AdjustedPValues(
        p=tuple(raw.tolist()),
        adjusted=tuple(adjusted.tolist()),
        method="Benjamini-Hochberg step-up",
        citation=BH_CITATION,
    )


def _check(p: ArrayLike) -> NDArray[np.float64]:
    raw = np.atleast_1d(np.asarray(p, dtype=np.float64))
    if raw.ndim != 1 or not np.all((raw >= 0.0) & (raw <= 1.0)):
        raise ValueError(f"p-values must be one row of numbers in [0, 1], got {raw.tolist()}")
    return raw
