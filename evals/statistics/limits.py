"""Limits of delta with their tests, and what stands in for them where the data show no spread.

With zero estimated standard error a t or bootstrap interval collapses to a point. Tango's score interval on
fractional counts does not: a score is taken as the chance of a right answer, so that ``b`` is the sum of the
losses and ``c`` the sum of the gains. Since ``abs(D) <= 1`` its variance bounds that of any such scores.

Short of that, few discordant pairs give too small a standard error exactly when they give too high a mean:
Tango's limits at the effective number of pairs are the guard.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import nan

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from equipoise.evals.statistics.tango import tango_statistic, tango_test

__all__ = [
    "ONE_CLUSTER",
    "Limits",
    "has_no_spread",
    "limits_without_spread",
    "score_sides",
    "undefined_limits",
    "unseen_share",
    "widest",
    "with_effective_pairs",
    "with_score_limits",
    "with_unseen_units",
]

ONE_CLUSTER = "all items share one cluster: nothing shows how much clusters differ"
# Differences are rounded at 1e-12 and lie in [-1, 1].
_ROUNDING = 1e-11


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """One-sided limits of delta and the p-values that agree with them; NaN where undefined."""

    standard_error: float
    lower: float
    upper: float
    noninferiority_p: float
    equivalence_p: float
    fallback: str = ""
    reason: str = ""


def undefined_limits(reason: str) -> Limits:
    """No limits, and why; NaN passes no comparison."""
    return Limits(
        standard_error=nan, lower=nan, upper=nan, noninferiority_p=nan, equivalence_p=nan, reason=reason
    )


def has_no_spread(sums: NDArray[np.float64], sizes: NDArray[np.float64]) -> bool:
    """Whether every unit's mean difference is the same; ``sums`` and ``sizes`` have shape [units]."""
    return bool(np.max(np.abs(sums / sizes - sums.sum() / sizes.sum())) <= _ROUNDING)


def limits_without_spread(
    difference: NDArray[np.float64], units: int, *, margin: float, alpha: float, unit: str
) -> Limits:
    """Tango's limits on fractional counts; ``fallback`` says so.

    Parameters
    ----------
    difference
        Candidate - baseline per item, shape [n].
    units
        Independent units, items or clusters. A cluster counts as one observation, however many items it
        holds: that all of them agree says nothing of how clusters would disagree.
    margin, alpha
        As in :func:`~equipoise.evals.statistics.tango.tango_test`.
    unit
        What a unit is called: "item" or "cluster".
    """
    share = units / difference.size
    lost = float(np.maximum(-difference, 0.0).sum()) * share
    gained = float(np.maximum(difference, 0.0).sum()) * share
    tango = tango_test(lost, gained, units, margin=margin, alpha=alpha)
    return Limits(
        standard_error=0.0,
        lower=tango.lower,
        upper=tango.upper,
        noninferiority_p=tango.noninferiority_p,
        equivalence_p=tango.equivalence_p,
        fallback=(
            f"every {unit} changed alike, so the spread between {unit}s is zero; the limits are Tango's on "
            f"fractional counts (lost {lost:g}, gained {gained:g} of {units} {unit}s)"
        ),
    )


def widest(limits: Limits, other: Limits) -> Limits:
    """The wider of two limits on each side, with the larger p-values; notes of the first."""
    return replace(
        limits,
        lower=min(limits.lower, other.lower),
        upper=max(limits.upper, other.upper),
        noninferiority_p=max(limits.noninferiority_p, other.noninferiority_p),
        equivalence_p=max(limits.equivalence_p, other.equivalence_p),
    )


def with_unseen_units(limits: Limits, delta: float, units: int, *, margin: float, alpha: float) -> Limits:
    """The limits, no narrower than what units that the sample happened to miss could change.

    A share q of units that went from all right to all wrong goes unseen with probability ``(1 - q)^units``,
    and then nothing in the data tells: spread between units is estimated from the others. The true delta
    may then be ``delta - q (1 + delta)``, and in the other direction ``delta + q (1 - delta)``. q is Tango's
    limit of no discordant pair in ``units``, ``z^2 / (units + z^2)``, about 2.7 / units at alpha .05.

    Parameters
    ----------
    limits
        Of independent units: items, or clusters.
    delta
        Mean difference, in [-1, 1].
    """
    q = unseen_share(units, alpha)
    noninferiority_p = _unseen_p(delta, units, margin)
    return widest(
        limits,
        Limits(
            standard_error=limits.standard_error,
            lower=delta - q * (1.0 + delta),
            upper=delta + q * (1.0 - delta),
            noninferiority_p=noninferiority_p,
            equivalence_p=max(noninferiority_p, _unseen_p(-delta, units, margin)),
        ),
    )


def unseen_share(units: int, alpha: float) -> float:
    """Largest share of units that a sample of so many may well have missed; see `with_unseen_units`."""
    z = float(norm.isf(alpha))
    return z * z / (units + z * z)


def _unseen_p(delta: float, units: int, margin: float) -> float:
    """Tango's p-value of no discordant pair, against the unseen share that a loss of ``margin`` needs."""
    share = (margin + delta) / (1.0 + delta) if delta > -1.0 else -1.0
    return float(norm.cdf(tango_statistic(0, 0, units, share))) if share > 0.0 else 1.0


def score_sides(
    difference: NDArray[np.float64], pairs: float, *, margin: float, alpha: float, scale: float = 1.0
) -> tuple[float, float, float, float]:
    """Tango's limits of the mean difference on fractional counts, with their p-values.

    Parameters
    ----------
    difference
        Candidate - baseline per item, shape [n].
    pairs
        Independent pairs that the items are worth.
    scale
        Difference that counts as one discordant pair, in (0, 1].

    Returns
    -------
    lower, upper, loss_p, gain_p
        P-values against a loss, and a gain, of ``margin``; 0 where ``margin`` is beyond ``scale``.
    """
    share = pairs / difference.size / scale
    lost, gained = (float(np.maximum(x, 0.0).sum()) * share for x in (-difference, difference))
    low, high = (scale * x for x in _limits(lost, gained, pairs, float(norm.isf(alpha))))
    if margin >= scale:
        return low, high, 0.0, 0.0
    loss_p = float(norm.cdf(tango_statistic(lost, gained, pairs, margin / scale)))
    return low, high, loss_p, float(norm.sf(tango_statistic(lost, gained, pairs, -margin / scale)))


def _limits(lost: float, gained: float, pairs: float, z: float) -> tuple[float, float]:
    """As `tango_delta_limits` of one table, in a tenth of its time: a bootstrap is not much slower."""
    loss, end = (lost - gained) / pairs, 1.0 - 1e-12

    def beyond(x: float, target: float) -> float:
        return float(tango_statistic(lost, gained, pairs, x)) - target

    most = brentq(beyond, loss, end, args=(-z,), xtol=1e-12) if beyond(end, -z) < 0.0 else 1.0
    least = brentq(beyond, -end, loss, args=(z,), xtol=1e-12) if beyond(-end, z) > 0.0 else -1.0
    return -float(most), -float(least)


def with_score_limits(
    limits: Limits, difference: NDArray[np.float64], *, margin: float, alpha: float
) -> Limits:
    """`with_effective_pairs` where all differences are -1, 0 or 1; the limits as they are elsewhere."""
    if not np.all((difference == 0.0) | (np.abs(difference) == 1.0)):
        return limits
    return with_effective_pairs(limits, difference, margin=margin, alpha=alpha)


def with_effective_pairs(
    limits: Limits, difference: NDArray[np.float64], *, margin: float, alpha: float
) -> Limits:
    """The limits, no narrower than Tango's at the effective number of pairs.

    Few discordant pairs give too small a standard error exactly when they give too high a mean: at a loss of
    the margin, with one pair in fifty discordant, t limits pass up to one in five, resampled ones one in ten.
    Where discordant pairs are many, all agree.

    In clusters counts and pairs are divided by the design effect, the ratio of the clustered to the
    unclustered variance (not below 1): Rao JNK, Scott AJ (1992). A simple method for the analysis of
    clustered binary data. Biometrics 48:577-585. Differences other than -1, 0 and 1 count in units of
    ``sum(D^2) / sum(abs(D))``, which makes the variance of the counts that of the differences.

    Parameters
    ----------
    limits
        With a positive standard error.
    difference
        Candidate - baseline per item, shape [n]; not all 0.
    """
    n = difference.size
    effect = max(1.0, limits.standard_error**2 / (float(difference.var()) / n)) if n > 1 else 1.0
    pairs = max(1.0, n / effect)
    scale = min(1.0, float(np.square(difference).sum() / np.abs(difference).sum()))
    low, high, loss_p, gain_p = score_sides(difference, pairs, margin=margin, alpha=alpha, scale=scale)
    score = Limits(
        standard_error=limits.standard_error,
        lower=low,
        upper=high,
        noninferiority_p=loss_p,
        equivalence_p=max(loss_p, gain_p),
    )
    note = f"few pairs are discordant: Tango's limits at {pairs:.4g} effective of {n} pairs are wider"
    wider = low < limits.lower or high > limits.upper
    notes = [x for x in (limits.fallback, note if wider else "") if x]
    return replace(widest(limits, score), fallback="; ".join(notes))
