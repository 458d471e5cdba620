"""Entropy of whole numbers, as they occur."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["entropy_bits", "entropy_of_counts"]


def entropy_of_counts(counts: NDArray[np.integer[Any]]) -> float:
    """Shannon entropy in bits of a histogram; 0 for an empty one."""
    total = int(counts.sum())
    if total == 0:
        return 0.0
    share = counts[counts > 0] / total
    return float(-(share * np.log2(share)).sum())


def entropy_bits(values: NDArray[np.integer[Any]]) -> float:
    """Entropy of non-negative numbers, each drawn alone: what a code without context cannot beat."""
    return entropy_of_counts(np.bincount(values.ravel()))
