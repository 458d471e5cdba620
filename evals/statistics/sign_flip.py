"""Sign-flip permutation test of "no difference at all" for graded or repeated scores, and for clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.evals.statistics.cluster import cluster_index
from equipoise.evals.statistics.scores import check_difference

__all__ = ["FlipTails", "SignFlipResult", "flip_tails", "sign_flip_test"]

CITATION = (
    "Fisher RA (1935). The Design of Experiments, section 21; Phipson B, Smyth GK (2010). Permutation "
    "p-values should never be zero. Statistical Applications in Genetics and Molecular Biology 9:39."
)
# Up to here all 2^units signs are counted.
_EXACT_UNITS = 20
# Distinct absolute values up to here are flipped together, by a binomial draw each.
_FEW_VALUES = 64
# Tables of 2 KiB, and random bytes, at a time: they stay in a core's cache.
_TABLES = 128
_BLOCK_DRAWS = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class SignFlipResult:
    """Test of the differences' symmetry about zero.

    Attributes
    ----------
    n, units, nonzero_units
        Items; units whose signs are flipped (items or clusters); those that do not cancel to zero.
    lost, gained
        Sums of the losses and of the gains over items, both non-negative: for single right-or-wrong answers
        the discordant counts b and c.
    two_sided_p, loss_p, gain_p
        P-values: any difference; the candidate is worse; it is better.
    exact
        Whether all signs were counted; else ``resamples`` were drawn and the data counted as one of them.
    """

    n: int
    units: int
    nonzero_units: int
    lost: float
    gained: float
    two_sided_p: float
    loss_p: float
    gain_p: float
    exact: bool
    resamples: int
    method: str = "sign-flip permutation test over items"
    citation: str = CITATION


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipTails:
    """Tail probabilities of a sum under random signs: at most, at least, as far from zero as observed."""

    low: float
    high: float
    two_sided: float
    nonzero_units: int
    exact: bool


def sign_flip_test(
    difference: ArrayLike,
    *,
    rng: np.random.Generator,
    clusters: ArrayLike | Sequence[Any] | None = None,
    resamples: int = 20_000,
) -> SignFlipResult:
    """Is the sum of the differences farther from zero than exchangeable arms would make it?

    Null hypothesis: the arms are exchangeable within each unit, so that each unit's difference is as likely
    to be ``+x`` as ``-x``, independently of the others. Single right-or-wrong answers give exact McNemar.

    Parameters
    ----------
    difference
        Candidate - baseline per item (a mean over repeats where there are some), in [-1, 1]; shape [n].
    rng
        Source of the signs; not used up to 20 units that are not zero.
    clusters
        Label of each item's cluster, shape [n]: the sum of a cluster is then a unit. None: items are.
    resamples
        Random signs where there are more units; a p-value is ``(1 + count) / (resamples + 1)``.

    Raises
    ------
    ValueError
        If a difference or a label is missing, or ``resamples`` is less than 1.
    """
    d = check_difference(difference)
    if clusters is None:
        units = d
    else:
        index, count = cluster_index(clusters, d.size)
        units = np.bincount(index, weights=d, minlength=count).astype(np.float64)
    tails = flip_tails(units, rng=rng, resamples=resamples)
    return SignFlipResult(
        n=d.size,
        units=units.size,
        nonzero_units=tails.nonzero_units,
        lost=float(np.maximum(-d, 0.0).sum()),
        gained=float(np.maximum(d, 0.0).sum()),
        two_sided_p=tails.two_sided,
        loss_p=tails.low,
        gain_p=tails.high,
        exact=tails.exact,
        resamples=0 if tails.exact else resamples,
        method=f"sign-flip permutation test over {'items' if clusters is None else 'clusters'}",
    )


def flip_tails(units: NDArray[np.float64], *, rng: np.random.Generator, resamples: int) -> FlipTails:
    """Where the sum of ``units`` lies among the sums with every unit's sign drawn at random.

    Parameters
    ----------
    units
        Contribution of each unit, shape [units].
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    size = np.abs(units)
    # Sums that differ by rounding are ties, and ties count as reached.
    tolerance = 1e-10 * float(size.sum())
    observed = float(units.sum())
    nonzero = size[size > 1e-10 * float(size.max(initial=0.0))]
    if nonzero.size <= _EXACT_UNITS:
        low = _exact_tail(nonzero, observed + tolerance)
        high = _exact_tail(nonzero, -observed + tolerance)  # the law is symmetric
        extreme = 2.0 * _exact_tail(nonzero, -abs(observed) + tolerance)
        return FlipTails(
            low=low, high=high, two_sided=min(1.0, extreme), nonzero_units=nonzero.size, exact=True
        )
    sums = _random_sums(np.sort(nonzero), resamples, rng)

    def p(reached: NDArray[np.bool_]) -> float:
        return (1.0 + float(np.count_nonzero(reached))) / (resamples + 1.0)

    return FlipTails(
        low=p(sums <= observed + tolerance),
        high=p(sums >= observed - tolerance),
        two_sided=p(np.abs(sums) >= abs(observed) - tolerance),
        nonzero_units=nonzero.size,
        exact=False,
    )


def _exact_tail(size: NDArray[np.float64], bound: float) -> float:
    """Share of all signs whose sum is at most ``bound``: two halves are tabulated, then met in the middle."""
    half = size.size // 2
    left, right = _all_sums(size[:half]), np.sort(_all_sums(size[half:]))
    reached = np.searchsorted(right, bound - left, side="right").sum()
    return float(reached) / 2.0**size.size


def _all_sums(size: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.zeros(1)
    for x in size:  # at most 10 times, doubling
        sums = np.concatenate((sums - x, sums + x))
    return sums


def _random_sums(size: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Sums under random signs, shape [resamples]; ``size`` is sorted and positive."""
    starts = np.flatnonzero(np.concatenate(([True], np.diff(size) > 1e-11)))
    if starts.size <= _FEW_VALUES:
        # Equal sizes are interchangeable: only how many of them are positive matters.
        counts = np.diff(np.append(starts, size.size))
        positive = rng.binomial(counts, 0.5, size=(resamples, starts.size))
        return (2.0 * positive - counts) @ size[starts]
    # Eight units to a byte: each random byte picks one of 256 tabulated sums.
    groups = np.zeros((-(-size.size // 8), 8))
    groups.ravel()[: size.size] = size
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)  # [256, 8]
    tables = groups @ (2.0 * bits.T - 1.0)  # [groups, 256]
    sums = np.zeros(resamples)
    for first in range(0, groups.shape[0], _TABLES):
        _add_looked_up(sums, tables[first : first + _TABLES], rng)
    return sums


def _add_looked_up(sums: NDArray[np.float64], tables: NDArray[np.float64], rng: np.random.Generator) -> None:
    """Add to each sum one entry, drawn at random, of every table; ``tables`` has shape [tables, 256]."""
    offsets = np.arange(tables.shape[0]) * 256
    lines = max(1, _BLOCK_DRAWS // offsets.size)
    place, value = np.empty((lines, offsets.size), dtype=np.intp), np.empty((lines, offsets.size))
    for start in range(0, sums.size, lines):
        part = sums[start : start + lines]
        draws = part.size * offsets.size
        words = rng.integers(0, 2**64 - 1, size=-(-draws // 8), dtype=np.uint64, endpoint=True)
        np.add(words.view(np.uint8)[:draws].reshape(-1, offsets.size), offsets, out=place[: part.size])
        tables.take(place[: part.size], out=value[: part.size], mode="clip")
        part += value[: part.size].sum(axis=1)
