"""Exact size of Tango's test at its margin: the worst over discordant shares, and how to bring it down.

The nominal 5% test passes up to 6.8% of the time where few pairs are discordant. A larger critical value
brings the exact size to alpha or below at every share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import norm

from equipoise.evals.statistics.power import rejection_region
from equipoise.evals.statistics.tango import CITATION

__all__ = ["WorstCaseSize", "size_controlled_alpha", "size_controlled_z", "worst_case_size"]

# The size as a function of p_d has a wave as long as a pair or so, which soon flattens out: the default grid
# has four shares to a pair at first, then shares evenly spaced in their logarithm.
_SHARES_PER_PAIR = 4
_PAIRS_IN_STEPS = 30
_WIDE_SHARES = 80
# Arms that are not negatively correlated differ on at most half of the items.
_LARGEST_SHARE = 0.6
_Z_BISECTIONS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCaseSize:
    """Largest exact probability of a false "non-inferior" at ``loss == margin``, over shares p_d."""

    n: int
    margin: float
    alpha: float
    p_d: tuple[float, ...]
    sizes: tuple[float, ...]
    worst_size: float
    worst_p_d: float
    method: str = "exact trinomial enumeration of Tango's test"
    citation: str = CITATION


def worst_case_size(
    n: int, margin: float, *, alpha: float = 0.05, p_d: tuple[float, ...] = (), z: float | None = None
) -> WorstCaseSize:
    """Exact size at ``loss == margin`` over a grid of discordant shares.

    Parameters
    ----------
    p_d
        Shares to try; each at least ``margin``. By default about 200 from the margin to 0.6: the size between
        them is at most .0003 above theirs.
    z
        Critical value; the normal quantile of ``1 - alpha`` if None.
    """
    critical = float(norm.ppf(1.0 - alpha)) if z is None else z
    shares = p_d or _default_shares(n, margin)
    region = rejection_region(n, margin, critical, max_p_d=max(shares))
    sizes = tuple(region.probability(share, margin) for share in shares)
    worst = int(np.argmax(sizes))
    return WorstCaseSize(
        n=n,
        margin=margin,
        alpha=alpha,
        p_d=shares,
        sizes=sizes,
        worst_size=sizes[worst],
        worst_p_d=shares[worst],
    )


@lru_cache(maxsize=4096)
def size_controlled_z(n: int, margin: float, *, alpha: float = 0.05, p_d: tuple[float, ...] = ()) -> float:
    """Smallest critical value, at least the normal one, whose exact size on the grid is <= alpha."""

    shares = p_d or _default_shares(n, margin)
    suspects: list[float] = []  # shares that were the worst before come first: one is often enough

    def too_large(z: float) -> bool:
        for tried in (tuple(suspects[-3:]), shares):
            if tried:
                found = worst_case_size(n, margin, alpha=alpha, p_d=tried, z=z)
                if found.worst_size > alpha:
                    suspects.append(found.worst_p_d)
                    return True
        return False

    low = float(norm.ppf(1.0 - alpha))
    if not too_large(low):
        return low
    step = 0.02  # most excesses are small, and the bisection then starts narrow
    while too_large(low + step):
        low, step = low + step, 2.0 * step
    high = low + step
    for _ in range(_Z_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if too_large(middle) else (low, middle)
    return high


def size_controlled_alpha(n: int, margin: float, alpha: float = 0.05) -> float:
    """Nominal one-sided alpha, at most ``alpha``, at which Tango's exact size is at most ``alpha``.

    For single right-or-wrong answers of ``n`` independent items: give it to `tango_test` in place of
    ``alpha``. Takes about a second for a new ``(n, margin, alpha)``; then remembered.
    """
    return min(alpha, float(norm.sf(size_controlled_z(n, margin, alpha=alpha))))


def _default_shares(n: int, margin: float) -> tuple[float, ...]:
    largest = max(margin, _LARGEST_SHARE)
    steps = margin + np.arange(_PAIRS_IN_STEPS * _SHARES_PER_PAIR) / (_SHARES_PER_PAIR * n)
    wide = np.geomspace(margin, largest, _WIDE_SHARES)
    return tuple(float(x) for x in np.unique(np.concatenate((steps[steps < largest], wide))))
