"""Rules that others use to pass a release, on the same data: none of them is used by Equipoise.

Each returns whether the candidate passes. Names say the nominal level of a false pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from scipy.stats import t as student

__all__ = [
    "Resampled",
    "drop_zero_error_passes",
    "percentile_passes",
    "resample",
    "resample_tables",
    "t_passes",
    "tolerance_passes",
    "unpaired_z_passes",
]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def t_passes(
    delta: ArrayLike, standard_error: ArrayLike, units: ArrayLike, margin: float, *, alpha: float
) -> Flags:
    """Lower one-sided ``1 - alpha`` t bound of the mean paired difference lies above ``-margin``."""
    critical = np.asarray(student.ppf(1.0 - alpha, np.asarray(units) - 1.0))
    return np.asarray(delta - critical * np.asarray(standard_error) > -margin)


def unpaired_z_passes(
    right_baseline: ArrayLike, right_candidate: ArrayLike, n: ArrayLike, *, alpha: float = 0.05
) -> Flags:
    """ "Not significantly different": two-sided two-proportion z test, the pairing ignored."""
    x, y, n_ = (np.asarray(v, dtype=np.float64) for v in (right_baseline, right_candidate, n))
    pooled = (x + y) / (2.0 * n_)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(x == y, 0.0, (y - x) / n_ / np.sqrt(pooled * (1.0 - pooled) * 2.0 / n_))
    return np.asarray(np.abs(z) < norm.ppf(1.0 - alpha / 2.0))


def tolerance_passes(delta: ArrayLike, margin: float) -> Flags:
    """Score of the candidate at least that of the baseline minus a tolerance, here the margin."""
    return np.asarray(np.asarray(delta) >= -margin - 1e-12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampled:
    """Means and their standard errors, of the data and of its resamples (the last axis of the latter)."""

    delta: Floats  # [...]
    standard_error: Floats  # [...]
    deltas: Floats  # [..., resamples]
    standard_errors: Floats  # [..., resamples]


def resample(difference: Floats, resamples: int, rng: np.random.Generator) -> Resampled:
    """Bootstrap of the items' mean differences [n], through the counts of their distinct values."""
    values, counts = np.unique(difference, return_counts=True)
    n = difference.size
    weights = np.vstack([counts, rng.multinomial(n, counts / n, size=resamples)]).astype(np.float64)
    return _moments(weights, values, n)


def resample_tables(
    b: NDArray[np.int64], c: NDArray[np.int64], n: int, resamples: int, rng: np.random.Generator
) -> Resampled:
    """Bootstrap of many paired tables [tables] at once: differences are -1 (b), +1 (c) and 0."""
    counts = np.stack([b, c, n - b - c], axis=-1)
    drawn = rng.multinomial(n, counts[:, None, :] / n, size=(b.size, resamples))
    weights = np.concatenate([counts[:, None, :], drawn], axis=1).astype(np.float64)
    return _moments(weights, np.array([-1.0, 1.0, 0.0]), n)


def percentile_passes(sample: Resampled, margin: float, *, alpha: float) -> Flags:
    """The ``alpha`` quantile of the resampled means lies above ``-margin``."""
    return np.asarray(np.quantile(sample.deltas, alpha, axis=-1) > -margin)


def drop_zero_error_passes(sample: Resampled, margin: float, *, alpha: float) -> Flags:
    """Bootstrap-t that leaves out resamples without spread; data without spread are taken as certain."""
    pivots = np.full(sample.deltas.shape, np.nan)
    usable = sample.standard_errors > 1e-12
    np.divide(sample.deltas - sample.delta[..., None], sample.standard_errors, out=pivots, where=usable)
    certain = ~usable.any(axis=-1) | (sample.standard_error <= 1e-12)
    pivots[certain] = 0.0
    upper = np.nanquantile(pivots, 1.0 - alpha, axis=-1)
    return np.asarray(sample.delta - upper * sample.standard_error > -margin)


def _moments(weights: Floats, values: Floats, n: int) -> Resampled:
    """From counts of each value [..., 1 + resamples, values], the data in the first place."""
    mean = weights @ values / n
    variance = np.maximum(weights @ np.square(values) / n - np.square(mean), 0.0) / (n - 1.0)
    variance = np.where(variance < 1e-18, 0.0, variance)
    error = np.sqrt(variance)
    return Resampled(
        delta=mean[..., 0],
        standard_error=error[..., 0],
        deltas=mean[..., 1:],
        standard_errors=error[..., 1:],
    )
