"""Power of the K = 1 non-inferiority test, by exact enumeration of the paired trinomial.

Given ``n`` pairs, a discordant share ``p_d`` and a true ``loss``, the counts (b, c, rest) are
multinomial with probabilities ``((p_d + loss) / 2, (p_d - loss) / 2, 1 - p_d)``. For a fixed number of
discordant pairs T is increasing in b, so that the rejection region is "b at most some bound": one
binomial tail for each number of discordant pairs, instead of a sum over all (b, c).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, norm

from equipoise.evals.statistics.tango import CITATION, tango_statistic

__all__ = [
    "DecidingSize",
    "RejectionRegion",
    "SampleSize",
    "items_to_decide",
    "largest_rejecting_b",
    "rejection_probability",
    "rejection_region",
    "sample_size",
    "sample_size_formula",
]

# Power is not monotone in n (counts are whole): a size is accepted if the next few keep the power too.
_SAWTOOTH_SIZES = 12
_MAX_ITEMS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RejectionRegion:
    """Tables at which T(margin) <= -z: for each number of discordant pairs the largest such b, or -1."""

    n: int
    margin: float
    z: float
    largest_b: NDArray[np.int_]  # [discordant pairs, from 0]

    def probability(self, p_d: float, loss: float, *, equivalence: bool = False) -> float:
        """Exact probability of the region under a discordant share and a true loss."""
        discordant = _likely(self.n, p_d)
        return _probability(
            discordant, self.largest_b[discordant], self.n, p_d, loss, equivalence=equivalence
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSize:
    """Items that a task needs: ``n`` by formula (a start value), ``n_exact`` by exact power."""

    margin: float
    power: float
    p_d: float
    loss: float
    alpha: float
    equivalence: bool
    n: int
    n_exact: int
    power_at_n: float
    power_exact: float
    method: str = "normal formula; exact trinomial enumeration of Tango's test"
    citation: str = CITATION


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidingSize:
    """Items that would probably decide an undecided task, if what was seen is the truth.

    ``items`` is None if the observed loss is so near the margin that no feasible number would;
    ``noninferior`` says which way it would be decided.
    """

    b: int
    c: int
    n: int
    margin: float
    alpha: float
    power: float
    items: int | None
    noninferior: bool
    method: str = "exact trinomial enumeration below the margin, normal formula above it"
    citation: str = CITATION


def rejection_probability(
    n: int,
    margin: float,
    p_d: float,
    loss: float,
    *,
    alpha: float = 0.05,
    equivalence: bool = False,
    z: float | None = None,
) -> float:
    """Exact probability that Tango's test finds the candidate non-inferior (or equivalent).

    Parameters
    ----------
    n
        Pairs.
    margin
        Margin (fraction). With ``loss == margin`` the result is the test's exact size there.
    p_d
        Probability that a pair is discordant; at least ``abs(loss)``.
    loss
        True loss of the candidate (fraction).
    alpha
        One-sided alpha.
    equivalence
        Require the test against ``-margin`` too.
    z
        Critical value; the normal quantile of ``1 - alpha`` if None.

    Raises
    ------
    ValueError
        If ``abs(loss) <= p_d <= 1`` or ``n >= 1`` fails.
    """
    if n < 1 or not 0.0 <= p_d <= 1.0 or abs(loss) > p_d * (1 + 1e-12):
        raise ValueError(f"need n >= 1 and abs(loss) <= p_d <= 1, got n={n}, p_d={p_d}, loss={loss}")
    critical = float(norm.ppf(1.0 - alpha)) if z is None else z
    discordant = _likely(n, p_d)
    largest_b = largest_rejecting_b(discordant, n, margin, critical)
    return _probability(discordant, largest_b, n, p_d, loss, equivalence=equivalence)


def rejection_region(n: int, margin: float, z: float, *, max_p_d: float = 1.0) -> RejectionRegion:
    """The region for every number of discordant pairs that shares up to ``max_p_d`` can give."""
    discordant = np.arange(_likely(n, max_p_d)[-1] + 1)
    return RejectionRegion(n=n, margin=margin, z=z, largest_b=largest_rejecting_b(discordant, n, margin, z))


def sample_size_formula(
    margin: float,
    power: float,
    p_d: float,
    *,
    loss: float = 0.0,
    alpha: float = 0.05,
    equivalence: bool = False,
) -> int:
    """Items by ``(z(1 - alpha) + z(power))^2 p_d / (margin - loss)^2``; equivalence halves beta.

    A start value only: it over-promises where ``p_d < 3 * margin``.
    """
    room = margin - (abs(loss) if equivalence else loss)
    if room <= 0:
        raise ValueError(f"no number of items shows a loss of {loss} to be within a margin of {margin}")
    if not 0.0 < power < 1.0:
        raise ValueError(f"power must lie in (0, 1), got {power}")
    beta = (1.0 - power) / 2.0 if equivalence and loss == 0.0 else 1.0 - power
    z = float(norm.ppf(1.0 - alpha) + norm.ppf(1.0 - beta))
    return max(1, ceil(z * z * p_d / (room * room)))


def sample_size(
    margin: float,
    power: float,
    p_d: float,
    *,
    loss: float = 0.0,
    alpha: float = 0.05,
    equivalence: bool = False,
) -> SampleSize:
    """Items for a wanted power, by formula and by exact search.

    Parameters
    ----------
    margin, power, p_d, loss
        Margin, wanted power, discordant share and assumed true loss (all fractions).
    equivalence
        Size the equivalence test instead of non-inferiority.

    Raises
    ------
    ValueError
        If the loss leaves no room within the margin, or more than ten million items would be needed.
    """
    formula = sample_size_formula(margin, power, p_d, loss=loss, alpha=alpha, equivalence=equivalence)

    def power_at(n: int) -> float:
        return rejection_probability(n, margin, p_d, loss, alpha=alpha, equivalence=equivalence)

    low, high = 0, formula
    while high <= _MAX_ITEMS and power_at(high) < power:
        low, high = high, high * 2
    if high > _MAX_ITEMS:
        raise ValueError(f"more than {_MAX_ITEMS:,} items would be needed; widen the margin {margin}")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_at(middle) >= power else (middle, high)
    while any(power_at(high + k) < power for k in range(_SAWTOOTH_SIZES)):
        high += 1
    return SampleSize(
        margin=margin,
        power=power,
        p_d=p_d,
        loss=loss,
        alpha=alpha,
        equivalence=equivalence,
        n=formula,
        n_exact=high,
        power_at_n=power_at(formula),
        power_exact=power_at(high),
    )


def items_to_decide(
    b: int, c: int, n: int, *, margin: float, alpha: float = 0.05, power: float = 0.8
) -> DecidingSize:
    """Items that would show non-inferiority, or a loss beyond the margin, at the observed rates.

    Parameters
    ----------
    b, c, n
        Observed discordant counts and pairs.
    margin, alpha, power
        Margin of the task, one-sided alpha, wanted probability of a decision.
    """
    loss, p_d = (b - c) / n, (b + c) / n
    items: int | None = None
    if loss < margin:
        try:
            items = sample_size(margin, power, p_d, loss=loss, alpha=alpha).n_exact
        except ValueError:
            items = None
    elif loss > margin:
        z = float(norm.ppf(1.0 - alpha) + norm.ppf(power))
        items = ceil(z * z * p_d / (loss - margin) ** 2)
    return DecidingSize(
        b=b,
        c=c,
        n=n,
        margin=margin,
        alpha=alpha,
        power=power,
        items=items if items is not None and items <= _MAX_ITEMS else None,
        noninferior=loss < margin,
    )


def largest_rejecting_b(discordant: NDArray[np.int_], n: int, margin: float, z: float) -> NDArray[np.int_]:
    """For each number of discordant pairs the largest b with T(margin) <= -z, or -1 if there is none."""
    low = np.full_like(discordant, -1)
    high = discordant + 1  # T(margin) > -z at b = discordant + 1 is taken for granted, never evaluated
    while np.any(high - low > 1):
        middle = (low + high) // 2
        b = np.maximum(middle, 0)
        rejects = (middle < 0) | (tango_statistic(b, discordant - b, n, margin) <= -z)
        low, high = np.where(rejects, middle, low), np.where(rejects, high, middle)
    return low


def _likely(n: int, p_d: float) -> NDArray[np.int_]:
    """Numbers of discordant pairs that are not too rare to count: the tails left out are below 1e-12."""
    mean = n * p_d
    reach = 8.0 * sqrt(mean * (1.0 - p_d)) + 25.0
    return np.arange(max(0, int(mean - reach)), min(n, int(mean + reach) + 1) + 1)


def _probability(
    discordant: NDArray[np.int_],
    largest_b: NDArray[np.int_],
    n: int,
    p_d: float,
    loss: float,
    *,
    equivalence: bool,
) -> float:
    share = min(max((p_d + loss) / (2.0 * p_d), 0.0), 1.0) if p_d > 0 else 0.5
    rejects = np.asarray(binom.cdf(largest_b, discordant, share), dtype=np.float64)
    if equivalence:  # T(-margin) with b and c swapped is -T(margin): the lower bound mirrors the upper
        below = np.asarray(binom.cdf(discordant - largest_b - 1, discordant, share), dtype=np.float64)
        rejects = np.where(largest_b >= discordant - largest_b, rejects - below, 0.0)
    return float(np.sum(np.asarray(binom.pmf(discordant, n, p_d)) * rejects))
