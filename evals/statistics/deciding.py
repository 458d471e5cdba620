"""After an undecided comparison: how many items or repeats would decide it, whichever method made it.

For one binary table `items_to_decide` enumerates exactly; what is here needs only the estimate and its
limits, so that it serves bootstrap-t, cluster-robust and fixed-benchmark estimates alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite

from scipy.stats import norm

from equipoise.evals.statistics.delta import DeltaEstimate

__all__ = ["WITHIN_SHARE_TARGET", "UnitsToDecide", "units_to_decide"]

CITATION = (
    "Cochran WG (1977). Sampling Techniques, 3rd ed., ch. 10 (units and subunits); "
    "Miller E (2024). Adding error bars to evals. arXiv:2411.00640."
)

# Repeats pay while they carry at least this share of the variance; below it only items do.
WITHIN_SHARE_TARGET = 0.2
_MAX_ITEMS = 10_000_000
_MAX_REPEATS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsToDecide:
    """Sizes that would probably decide, if the difference and the variances seen are the truth.

    Attributes
    ----------
    items
        Items at the present repeats; None if no feasible number would.
    repeats
        Repeats an arm at the present items; None if no number would, or the within-item share is unknown.
    advised_items, advised_repeats
        What to ask: repeats raised while they carry 20% of the variance or more, then items. None if no
        feasible size would decide.
    within_share
        Share of the variance of delta that repeats of the same item would shrink.
    noninferior
        Which way it would be decided.
    reason
        Why a size is None; empty if none is.
    """

    n: int
    repeats_asked: int
    delta: float
    margin: float
    alpha: float
    power: float
    within_share: float | None
    items: int | None
    repeats: int | None
    advised_items: int | None
    advised_repeats: int | None
    noninferior: bool
    reason: str
    method: str = "normal approximation from the estimate's own limits"
    citation: str = CITATION

    @property
    def advice(self) -> str:
        """What would decide, in words; or why nothing would."""
        if self.advised_items is None or self.advised_repeats is None:
            return self.reason
        if self.advised_repeats == self.repeats_asked:
            return f"about {self.advised_items:,} items"
        if self.advised_items == self.n:
            return f"about {self.advised_repeats:,} repeats of the same items"
        return f"about {self.advised_items:,} items with {self.advised_repeats:,} repeats each"


def units_to_decide(
    estimate: DeltaEstimate, *, power: float = 0.8, within_share: float | None = None, repeats: int = 1
) -> UnitsToDecide:
    """Items and repeats that would show non-inferiority, or a loss beyond the margin.

    The standard error is read off the limit that faces the margin, ``(delta - lower) / z(1 - alpha)``, and
    taken to shrink with the square root of the items; its within-item part with that of the repeats too.

    Parameters
    ----------
    estimate
        The undecided estimate. With clusters, items stand for clusters of the present size.
    power
        Wanted probability of a decision.
    within_share
        Share of the variance of delta due to repeats of the same item, in [0, 1] (see
        `variance_components`); 1 for the fixed-benchmark estimand; None if unknown.
    repeats
        Repeats an arm that the estimate used.

    Raises
    ------
    ValueError
        If ``power``, ``within_share`` or ``repeats`` is out of range.
    """
    if not 0.5 <= power < 1.0:
        raise ValueError(f"power must lie in [0.5, 1), got {power}")
    if within_share is not None and not 0.0 <= within_share <= 1.0:
        raise ValueError(f"within_share must lie in [0, 1] or be None, got {within_share}")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    noninferior = estimate.delta > -estimate.margin
    half_width = estimate.delta - estimate.lower if noninferior else estimate.upper - estimate.delta
    room = abs(estimate.delta + estimate.margin)
    items = alone = advised_items = advised_repeats = None
    reason = ""
    if not (isfinite(half_width) and isfinite(room)):
        reason = "no number can be said: the estimate has no finite limits"
    elif room == 0.0:
        reason = "the difference seen is at the margin itself: no number of items"
    else:
        z = float(norm.ppf(1.0 - estimate.alpha))
        # How many times smaller the variance must become.
        factor = (half_width * (z + float(norm.ppf(power))) / (z * room)) ** 2
        items = _feasible(estimate.n * factor, _MAX_ITEMS)
        share = 0.0 if within_share is None else within_share
        alone = _repeats_alone(factor, share, repeats) if within_share is not None else None
        advised_repeats, advised_items = _advised(estimate.n, repeats, factor, share, alone)
        if advised_items is None:
            reason = "no feasible number of items: the difference seen is too near the margin"
    return UnitsToDecide(
        n=estimate.n,
        repeats_asked=repeats,
        delta=estimate.delta,
        margin=estimate.margin,
        alpha=estimate.alpha,
        power=power,
        within_share=within_share,
        items=items,
        repeats=alone,
        advised_items=advised_items,
        advised_repeats=advised_repeats,
        noninferior=noninferior,
        reason=reason,
    )


def _advised(
    n: int, repeats: int, factor: float, share: float, alone: int | None
) -> tuple[int | None, int | None]:
    """Repeats and items: repeats until their share is small or they decide alone, then items."""
    wanted = repeats if factor <= 1.0 else _repeats_until_small(share, repeats, alone)
    if alone is not None and alone <= wanted and factor > 1.0:
        return alone, n
    items = _feasible(n * factor * (1.0 - share + share * repeats / wanted), _MAX_ITEMS)
    return (wanted, items) if items is not None else (None, None)


def _repeats_alone(factor: float, share: float, repeats: int) -> int | None:
    """Repeats that shrink the variance by ``factor`` at the present items; None if no number does."""
    if factor <= 1.0:
        return repeats
    left_for_within = 1.0 / factor - (1.0 - share)
    if share == 0.0 or left_for_within <= 0.0:
        return None
    return _feasible(repeats * share / left_for_within, _MAX_REPEATS)


def _repeats_until_small(share: float, repeats: int, alone: int | None) -> int:
    """Fewest repeats at which the within-item share falls under the target; ``alone`` where it never does."""
    if share == 1.0:
        return alone or repeats
    if share < WITHIN_SHARE_TARGET:
        return repeats
    # share r / (1 - share + share r) < target, with r = repeats now / repeats then
    r = WITHIN_SHARE_TARGET * (1.0 - share) / (share * (1.0 - WITHIN_SHARE_TARGET))
    return min(int(repeats / r) + 1, _MAX_REPEATS)


def _feasible(size: float, most: int) -> int | None:
    return max(ceil(size - 1e-9), 1) if size <= most else None
