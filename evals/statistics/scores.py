"""Paired scores as every analysis takes them: checked, then one difference per item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["check_difference", "check_margin", "check_scores", "item_difference", "paired_scores"]

# Means over unequal numbers of repeats reach one fraction along different roundings (2/3 - 1/3, 1/3 - 0).
# Rounding them alike, far below any difference of scores, makes equal differences compare equal.
_DECIMALS = 12


def paired_scores(
    baseline: ArrayLike, candidate: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both arms' scores as [n, K_A] and [n, K_B], item i of one beside item i of the other.

    Parameters
    ----------
    baseline, candidate
        Scores in [0, 1]: one row an item and one column a repeat, or shape [n] for single samples.
        The numbers of repeats may differ between the arms, not within one.

    Raises
    ------
    ValueError
        If an arm has no item or no repeat, its items differ in repeats, the arms differ in items, or a
        score is missing (NaN) or outside [0, 1]; the message names the arm, the item and the repeat.
    """
    base, cand = check_scores(baseline, "baseline"), check_scores(candidate, "candidate")
    if base.shape[0] != cand.shape[0]:
        raise ValueError(
            f"baseline has {base.shape[0]} items and candidate {cand.shape[0]}: pair them by item id first, "
            "and count what does not pair"
        )
    return base, cand


def check_scores(scores: ArrayLike, arm: str) -> NDArray[np.float64]:
    """One arm's scores as [n, K]; see :func:`paired_scores`."""
    try:
        array = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{arm}: {_why_no_array(scores)}") from error
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise ValueError(f"{arm}: scores need shape [n] or [n, repeats], got {array.shape}")
    if array.size == 0:
        raise ValueError(f"{arm}: need at least one item with one score, got shape {array.shape}")
    # NaN fails both comparisons.
    valid = (array >= 0.0) & (array <= 1.0)
    if not valid.all():
        item, repeat = (int(x) for x in np.argwhere(~valid)[0])
        value = float(array[item, repeat])
        remedy = (
            "exclude the item from both arms and count it"
            if np.isnan(value)
            else "rescale the scores to [0, 1]"
        )
        raise ValueError(f"{arm}: the score of item {item}, repeat {repeat} is {value:g}; {remedy}")
    return array


def item_difference(baseline: NDArray[np.float64], candidate: NDArray[np.float64]) -> NDArray[np.float64]:
    """``D_i`` = mean over the candidate's repeats - mean over the baseline's, in [-1, 1]; shape [n]."""
    difference: NDArray[np.float64] = candidate.mean(axis=1) - baseline.mean(axis=1)
    return np.round(difference, _DECIMALS)


def check_difference(difference: ArrayLike) -> NDArray[np.float64]:
    """Per-item differences, checked: shape [n], n >= 1, finite, in [-1, 1].

    Raises
    ------
    ValueError
        Naming the first item that is not so.
    """
    array = np.asarray(difference, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"difference needs one value per item, shape [n] with n >= 1, got {array.shape}")
    valid = np.abs(array) <= 1.0
    if not valid.all():
        item = int(np.flatnonzero(~valid)[0])
        raise ValueError(
            f"the difference of item {item} is {float(array[item]):g}; differences of scores lie in [-1, 1]: "
            "exclude items without a score and count them, or rescale"
        )
    return np.round(array, _DECIMALS)


def check_margin(margin: float, alpha: float) -> None:
    """Raise ValueError unless ``margin`` lies in (0, 1) and ``alpha`` in (0, 0.5)."""
    if not 0.0 < margin < 1.0:
        raise ValueError(f"margin must lie in (0, 1), got {margin}")
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"alpha must lie in (0, 0.5), got {alpha}")


def _why_no_array(scores: Any) -> str:
    """Which item has another number of repeats than the first; only asked once conversion failed."""
    rows = [len(row) if isinstance(row, Sequence | np.ndarray) else 1 for row in scores]
    for item, repeats in enumerate(rows):
        if repeats != rows[0]:
            return (
                f"item {item} has {repeats} repeats and item 0 has {rows[0]}; ask the missing repeats again, "
                "or exclude the item from both arms and count it"
            )
    return "scores must be numbers, one row an item and one column a repeat"
