"""Bootstrap-t bounds of means over tokens, with whole sequences resampled.

A mean over tokens is a ratio, sum of values / number of tokens, and both vary between sequences.
Many such means (a bound and its buckets, say) are bounded from one set of resamples.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, nan

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["CITATION", "METHOD", "RatioBounds", "clusters_of", "ratio_bounds"]

METHOD = "cluster bootstrap-t over sequences"
CITATION = (
    "Field CA, Welsh AH (2007). Bootstrapping clustered data. Journal of the Royal Statistical Society B "
    "69:369-390; Hall P (1992). The Bootstrap and Edgeworth Expansion (studentized bootstrap)."
)
# Resamples are drawn in blocks of about this many sequences, to bound memory.
_BLOCK_DRAWS = 1 << 20
# Below these shares of their terms, a variance and a shift are rounding, not spread.
_ZERO_VARIANCE, _ZERO_SHIFT = 1e-12, 1e-13

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatioBounds:
    """One entry for each mean, shape [means].

    ``lower`` and ``upper`` are one-sided ``1 - alpha`` bounds: NaN where ``reasons`` says why there is
    none, infinite where the resamples do not bound the mean.
    """

    mean: _Floats
    standard_error: _Floats
    lower: _Floats
    upper: _Floats
    reasons: tuple[str, ...]


def clusters_of(labels: ArrayLike) -> tuple[NDArray[np.generic], NDArray[np.intp]]:
    """Distinct labels and the number of each token's label, shape [tokens].

    Tokens of a sequence mostly stand together, so only the starts of runs are sorted.
    """
    flat = np.asarray(labels)
    if flat.ndim != 1 or flat.size == 0:
        raise ValueError(f"need one sequence per token, at least one token; got shape {flat.shape}")
    starts = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]]))
    names, index = np.unique(flat[starts], return_inverse=True)
    return names, np.repeat(index, np.diff(starts, append=flat.size))


def ratio_bounds(
    sums: ArrayLike, lengths: ArrayLike, *, alpha: float, resamples: int, rng: np.random.Generator
) -> RatioBounds:
    """Bound ``sum(sums) / sum(lengths)`` for each row.

    Parameters
    ----------
    sums
        Sum of the values of each sequence's tokens, shape [means, sequences].
    lengths
        Number of those tokens, same shape; 0 where a sequence has none (it is then not resampled).
    alpha
        One-sided alpha of each bound; the bounds of several means are not adjusted to one another.
    resamples
        Number of resamples, each of as many sequences as have tokens.
    rng
        Source of the resamples.

    Notes
    -----
    The standard error is the cluster-robust one of a ratio, sqrt(G/(G-1) sum_g e_g^2) / tokens with
    e_g = sum_g - mean x length_g. A resample without spread is an infinite pivot, never dropped:
    dropping it narrows the interval. Time grows with resamples x sequences, not with tokens.
    """
    totals, counts = np.asarray(sums, dtype=np.float64), np.asarray(lengths, dtype=np.float64)
    if totals.ndim != 2 or totals.shape != counts.shape or np.any(counts.sum(axis=1) <= 0):
        raise ValueError(f"need sums and lengths of one shape, with tokens in each row; got {totals.shape}")
    finite: NDArray[np.bool_] = np.isfinite(np.abs(totals).max(axis=1))
    totals = np.where(finite[:, None], totals, 0.0)
    groups = (counts > 0).sum(axis=1)
    mean = totals.sum(axis=1) / counts.sum(axis=1)
    residual = totals - mean[:, None] * counts
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(groups / (groups - 1.0) * np.square(residual).sum(axis=1)) / counts.sum(axis=1)
    reasons = []
    for ok, g, se in zip(finite, groups, error, strict=True):
        if not ok:
            reasons.append("a token's value is infinite")
        elif g < 2:
            reasons.append("one sequence shows no spread between sequences")
        elif se <= 1e-15:
            reasons.append("every sequence changed alike: no spread between sequences")
        else:
            reasons.append("")
    lower, upper = np.full(mean.size, nan), np.full(mean.size, nan)
    bounded = np.array([not reason for reason in reasons])
    present = counts > 0
    for members in np.unique(present[bounded], axis=0):
        rows = np.flatnonzero(bounded & (present == members).all(axis=1))
        pivots = _pivots(residual[rows][:, members], counts[rows][:, members], resamples, rng)
        pivots.sort(axis=0)
        low, high = (pivots[max(0, ceil(level * resamples - 1e-9) - 1)] for level in (alpha, 1.0 - alpha))
        lower[rows], upper[rows] = mean[rows] - high * error[rows], mean[rows] - low * error[rows]
    error[groups < 2] = nan
    return RatioBounds(
        mean=np.where(finite, mean, np.inf),
        standard_error=np.where(finite, error, nan),
        lower=lower,
        upper=upper,
        reasons=tuple(reasons),
    )


def _pivots(residual: _Floats, lengths: _Floats, resamples: int, rng: np.random.Generator) -> _Floats:
    """(mean* - mean) / se* of each resample and mean, shape [resamples, means]."""
    means, clusters = residual.shape
    # With weights w: tokens* = w.l, shift* = w.r / tokens*, and sum_g w (r - shift* l)^2 in three terms.
    terms = np.concatenate(
        [lengths, residual, np.square(residual), residual * lengths, np.square(lengths)]
    ).T.copy()
    # What a shift is compared with to tell it from rounding.
    spread = np.abs(residual / lengths).max(axis=1)
    pivots = np.empty((resamples, means))
    block = max(1, _BLOCK_DRAWS // clusters)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        picks = rng.integers(0, clusters, size=(rows, clusters))
        picks += np.arange(0, rows * clusters, clusters)[:, None]
        weights = np.bincount(picks.ravel(), minlength=rows * clusters).reshape(rows, clusters)
        tokens, shift, rr, rl, ll = np.split(weights.astype(np.float64) @ terms, 5, axis=1)
        shift /= tokens
        squares = rr - 2.0 * shift * rl + np.square(shift) * ll
        squares[squares <= _ZERO_VARIANCE * (rr + np.square(shift) * ll)] = 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            pivot = shift * tokens / np.sqrt(clusters / (clusters - 1.0) * squares)
        pivots[start : start + rows] = np.where(np.abs(shift) <= _ZERO_SHIFT * spread, 0.0, pivot)
    return pivots
