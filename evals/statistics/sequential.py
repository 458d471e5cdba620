"""Looks at a run before its end: how much of alpha each may spend on "degraded", and at which level it tests.

A run is looked at when registered fractions of its items are answered. Alpha of the rule "degraded:
upper limit of delta below ``-margin``" is spent over the looks and the end, so that the probability of a
false "degraded" at ``loss == margin`` stays at alpha in all. Nothing is spent on signing off: no look can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, e, inf, log, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.special import gammaln
from scipy.stats import binom, norm

from equipoise.evals.statistics.tango import tango_statistic

__all__ = [
    "CITATION",
    "SPENDING",
    "LookDesign",
    "LookLevels",
    "cumulative_spending",
    "false_nogo_probability",
    "items_by_look",
    "look_levels",
    "normal_critical_values",
]

CITATION = (
    "Lan KKG, DeMets DL (1983). Discrete sequential boundaries for clinical trials. Biometrika 70:659-663; "
    "boundaries by the recursion of Armitage P, McPherson CK, Rowe BC (1969), JRSS A 132:235-244."
)
#: Names of the spending functions.
SPENDING = ("pocock", "obrien-fleming")

_TAIL = 1e-13  # numbers of discordant pairs beyond these tails are left out
_GRID_SIZES = 14  # discordant shares over which the exact probability is held
_LARGEST_P_D = 0.6
_LARGEST_DISCORDANT = 1500  # beyond this many expected discordant pairs the normal levels hold as they are
_NODES = 400  # of the numerical integration, per look


@dataclass(frozen=True, slots=True, kw_only=True)
class LookDesign:
    """A task with one binary answer an item: items at each look and at the end, and its margin."""

    items: tuple[int, ...]
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LookLevels:
    """One-sided levels at which "degraded" is tested at each look and at the end.

    Attributes
    ----------
    fractions
        Shares of the items at the looks, and 1.0 for the end.
    spent
        Alpha spent up to and including each.
    levels
        Level of each single test.
    designs
        Binary tasks whose exact probability of a false "degraded" was held below ``spent``.
    exact
        Largest of those probabilities over tasks and discordant shares, up to and including each;
        NaN without such tasks.
    """

    fractions: tuple[float, ...]
    alpha: float
    spending: str
    spent: tuple[float, ...]
    levels: tuple[float, ...]
    designs: tuple[LookDesign, ...]
    exact: tuple[float, ...]
    method: str = "alpha-spending on Brownian motion, lowered to the exact trinomial probability"
    citation: str = CITATION

    def nogo_alpha(self, look: int) -> float:
        """Level at look number ``look``, counted from 1; the number after the last look is the end."""
        return self.levels[look - 1]

    @property
    def end(self) -> int:
        """Number of the end, one more than there are looks."""
        return len(self.levels)


def items_by_look(items: int, fractions: Sequence[float]) -> tuple[int, ...]:
    """How many of a task's items are answered at each fraction; at least one."""
    return tuple(min(items, max(1, ceil(items * f - 1e-9))) for f in fractions)


def cumulative_spending(spending: str, fractions: Sequence[float], alpha: float) -> tuple[float, ...]:
    """Alpha spent by each fraction; ``alpha`` at 1.0.

    Parameters
    ----------
    spending
        "pocock": ``alpha log(1 + (e - 1) t)``, nearly the same level at every look.
        "obrien-fleming": ``2 - 2 Phi(z(1 - alpha / 2) / sqrt(t))``, very little early on.
    fractions
        Increasing, in (0, 1].
    """
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"alpha must lie in (0, 0.5), got {alpha}")
    if not fractions or any(
        not low < high <= 1.0 for low, high in zip((0.0, *fractions), fractions, strict=False)
    ):
        raise ValueError(f"fractions must increase within (0, 1], got {tuple(fractions)}")
    if spending == "pocock":
        return tuple(alpha * log(1.0 + (e - 1.0) * t) for t in fractions)
    if spending == "obrien-fleming":
        z = float(norm.isf(alpha / 2.0))
        return tuple(2.0 * float(norm.sf(z / sqrt(t))) for t in fractions)
    raise ValueError(f"unknown spending function {spending!r}; known: {', '.join(SPENDING)}")


def normal_critical_values(fractions: Sequence[float], spent: Sequence[float]) -> tuple[float, ...]:
    """One-sided critical values of Brownian motion looked at in ``fractions``, spending ``spent``.

    Raises
    ------
    ValueError
        If the lists differ in length or ``spent`` does not increase.
    """
    if len(fractions) != len(spent) or any(not a < b for a, b in zip((0.0, *spent), spent, strict=False)):
        raise ValueError(f"need one increasing spent alpha a fraction, got {tuple(spent)}")
    found: list[float] = []
    # Density of the motion at its grid points, over the paths that no look has stopped.
    points, mass = np.zeros(1), np.ones(1)
    before = 0.0
    for t, step in zip(fractions, np.diff((0.0, *spent)), strict=True):
        sd = sqrt(t - before)

        def exceeds(
            x: float, points: NDArray[np.float64] = points, mass: NDArray[np.float64] = mass, sd: float = sd
        ) -> float:
            return float(np.sum(mass * norm.sf((x - points) / sd)))

        low, high = -10.0 * sqrt(t), 40.0 * sqrt(t)
        for _ in range(80):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if exceeds(middle) > step else (low, middle)
        found.append(high / sqrt(t))
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        bottom = -9.0 * sqrt(t)
        x = 0.5 * (high - bottom) * nodes + 0.5 * (high + bottom)
        density = norm.pdf((x[:, None] - points) / sd) @ mass / sd
        points, mass, before = x, density * weights * 0.5 * (high - bottom), t
    return tuple(found)


def look_levels(
    fractions: Sequence[float],
    *,
    alpha: float = 0.05,
    spending: str = "pocock",
    designs: Sequence[LookDesign] = (),
) -> LookLevels:
    """Levels of "degraded" at each look and at the end.

    Parameters
    ----------
    fractions
        Shares of the items at the looks; increasing, in (0, 1). The end is added.
    alpha
        One-sided alpha to spend.
    spending
        See `cumulative_spending`.
    designs
        Binary tasks of the plan. Tango's upper test is liberal at small levels (its statistic is skewed),
        so every level is lowered until the exact probability of a false "degraded" at
        ``loss == margin`` is at most the alpha spent, for each task and any discordant share.

    Notes
    -----
    A level lower than another's stops less often: one list of levels, the lowest of all tasks', is valid
    for every task, and for estimates that are close to normal.
    """
    return _look_levels((*fractions, 1.0), alpha, spending, tuple(designs))


# A run asks for the same levels at every look and in its report.
@lru_cache(maxsize=16)
def _look_levels(
    times: tuple[float, ...], alpha: float, spending: str, designs: tuple[LookDesign, ...]
) -> LookLevels:
    spent = cumulative_spending(spending, times, alpha)
    critical = list(normal_critical_values(times, spent))
    walks = _walks(designs, len(times))
    exact: list[float] = []
    for k in range(len(times)):
        for walk in walks:
            walk.advance(k)
            critical[k] = max(critical[k], walk.smallest_critical_value(spent[k]))
        for walk in walks:
            walk.stop_above(critical[k])
        exact.append(max((w.stopped for w in walks), default=float("nan")))
    return LookLevels(
        fractions=times,
        alpha=alpha,
        spending=spending,
        spent=spent,
        levels=tuple(float(norm.sf(z)) for z in critical),
        designs=designs,
        exact=tuple(exact),
    )


def false_nogo_probability(design: LookDesign, levels: Sequence[float], p_d: float) -> float:
    """Exact probability that some look or the end calls a task degraded whose loss equals its margin.

    Parameters
    ----------
    design
        Items at each look and at the end; margin.
    levels
        One-sided level of each test.
    p_d
        Discordant share, at least the margin.
    """
    walk = _Walk(design, p_d)
    for k, level in enumerate(levels):
        walk.advance(k)
        walk.stop_above(float(norm.isf(level)))
    return walk.stopped


def _walks(designs: Sequence[LookDesign], looks: int) -> list[_Walk]:
    found = []
    for design in dict.fromkeys(designs):
        if len(design.items) != looks:
            raise ValueError(f"need items at {looks} looks (the end included), got {design.items}")
        shares = np.geomspace(design.margin, max(_LARGEST_P_D, design.margin), _GRID_SIZES)
        found += [
            _Walk(design, float(share)) for share in shares if share * design.items[-1] <= _LARGEST_DISCORDANT
        ]
    return found


class _Walk:
    """Joint probability of (b, c), at ``loss == margin``, over the paths that no look has stopped."""

    def __init__(self, design: LookDesign, p_d: float) -> None:
        if not design.margin <= p_d * (1.0 + 1e-12) <= 1.0 + 1e-12:
            raise ValueError(f"p_d must lie between the margin {design.margin} and 1, got {p_d}")
        self._design = design
        self._p_b, self._p_c = (p_d + design.margin) / 2.0, max((p_d - design.margin) / 2.0, 0.0)
        self._mass = np.ones((1, 1))  # [b - first b, c - first c]
        self._first = (0, 0)
        self._statistic = np.zeros((1, 1))
        self.stopped = 0.0

    def advance(self, look: int) -> None:
        """Add the items between the look before and this one."""
        items = self._design.items
        step = items[look] - (items[look - 1] if look else 0)
        if step > 0:
            b, c = (np.arange(int(binom.ppf(_TAIL, step, p)), int(binom.isf(_TAIL, step, p)) + 1)
                    for p in (self._p_b, self._p_c))  # fmt: skip
            pmf = _trinomial(b[:, None], c[None, :], step, self._p_b, self._p_c)
            self._mass = np.maximum(fftconvolve(self._mass, pmf), 0.0)
            self._first = (self._first[0] + int(b[0]), self._first[1] + int(c[0]))
        rows, columns = self._mass.shape
        self._statistic = tango_statistic(
            self._first[0] + np.arange(rows)[:, None],
            self._first[1] + np.arange(columns)[None, :],
            items[look],
            self._design.margin,
        )

    def smallest_critical_value(self, spent: float) -> float:
        """Above it lies no more probability than is still to spend."""
        order = np.argsort(-self._statistic, axis=None)
        tail = self.stopped + np.cumsum(self._mass.ravel()[order])
        first = int(np.searchsorted(tail, spent, side="right"))
        if first == tail.size:
            return -inf
        # Just above the first table that would spend too much, and all that share its statistic.
        at = float(self._statistic.ravel()[order[first]])
        return at + 1e-9 * max(1.0, abs(at))

    def stop_above(self, critical: float) -> None:
        above = self._statistic > critical
        self.stopped += float(self._mass[above].sum())
        self._mass = np.where(above, 0.0, self._mass)


def _trinomial(
    b: NDArray[np.int_], c: NDArray[np.int_], n: int, p_b: float, p_c: float
) -> NDArray[np.float64]:
    rest = n - b - c
    with np.errstate(divide="ignore", invalid="ignore"):
        log_pmf = gammaln(n + 1) - gammaln(b + 1) - gammaln(c + 1) - gammaln(np.maximum(rest, 0) + 1)
        log_pmf = log_pmf + b * np.log(p_b) + np.where(c > 0, c * np.log(p_c), 0.0)
        log_pmf = log_pmf + np.where(rest > 0, rest * np.log1p(-min(p_b + p_c, 1.0)), 0.0)
    return np.where(rest >= 0, np.exp(log_pmf), 0.0)
