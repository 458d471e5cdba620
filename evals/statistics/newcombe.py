"""Newcombe's hybrid score interval for a difference of paired proportions."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from scipy.stats import norm

__all__ = ["NewcombeInterval", "newcombe_interval"]

CITATION = (
    "Newcombe RG (1998). Improved confidence intervals for the difference between binomial proportions "
    "based on paired data. Statistics in Medicine 17:2635-2650 (method 10)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewcombeInterval:
    """Two-sided interval of delta = candidate - baseline at ``level``, with the table it came from."""

    both: int
    baseline_only: int
    candidate_only: int
    neither: int
    level: float
    delta: float
    ci_lower: float
    ci_upper: float
    method: str = "Newcombe hybrid score interval"
    citation: str = CITATION


def newcombe_interval(
    both: int, baseline_only: int, candidate_only: int, neither: int, *, level: float = 0.95
) -> NewcombeInterval:
    """Combine the Wilson intervals of the two proportions, allowing for their correlation.

    Parameters
    ----------
    both, baseline_only, candidate_only, neither
        Pairs right under both arms, under one arm only, and under neither.
    level
        Two-sided confidence level.

    Returns
    -------
    NewcombeInterval
        Interval of ``(candidate_only - baseline_only) / n``.

    Raises
    ------
    ValueError
        If a count is negative or all are zero.
    """
    counts = (both, baseline_only, candidate_only, neither)
    n = sum(counts)
    if n < 1 or min(counts) < 0:
        raise ValueError(f"a paired table needs non-negative counts and at least one pair, got {counts}")
    z = float(norm.ppf(0.5 + level / 2.0))
    candidate, baseline = (both + candidate_only) / n, (both + baseline_only) / n
    candidate_lower, candidate_upper = _wilson(both + candidate_only, n, z)
    baseline_lower, baseline_upper = _wilson(both + baseline_only, n, z)
    phi = _phi(both, baseline_only, candidate_only, neither)
    down = _combine(candidate - candidate_lower, baseline_upper - baseline, phi)
    up = _combine(candidate_upper - candidate, baseline - baseline_lower, phi)
    delta = (candidate_only - baseline_only) / n
    return NewcombeInterval(
        both=both,
        baseline_only=baseline_only,
        candidate_only=candidate_only,
        neither=neither,
        level=level,
        delta=delta,
        ci_lower=delta - down,
        ci_upper=delta + up,
    )


def _wilson(successes: int, n: int, z: float) -> tuple[float, float]:
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half_width = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return centre - half_width, centre + half_width


def _phi(both: int, baseline_only: int, candidate_only: int, neither: int) -> float:
    """Correlation of the two arms, with method 10's continuity correction of a positive numerator."""
    n = both + baseline_only + candidate_only + neither
    product = (
        (both + baseline_only)
        * (candidate_only + neither)
        * (both + candidate_only)
        * (baseline_only + neither)
    )
    if product == 0:
        return 0.0
    numerator = float(both * neither - baseline_only * candidate_only)
    if numerator > 0:
        numerator = max(numerator - n / 2, 0.0)
    return numerator / sqrt(product)


def _combine(one: float, other: float, phi: float) -> float:
    return sqrt(max(one * one - 2.0 * phi * one * other + other * other, 0.0))
