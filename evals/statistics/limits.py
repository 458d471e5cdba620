"""Limits of delta with their tests, and what stands in for them where the data show no spread.

With zero estimated standard error a t or bootstrap interval collapses to a point. Tango's score interval on
fractional counts does not: a score is taken as the chance of a right answer, so that ``b`` is the sum of the
losses and ``c`` the sum of the gains. Since ``abs(D) <= 1`` its variance bounds that of any such scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from equipoise.evals.statistics.tango import tango_test

__all__ = ["ONE_CLUSTER", "Limits", "has_no_spread", "limits_without_spread", "undefined_limits"]

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
