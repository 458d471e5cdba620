"""Items and repeats of one task for a wanted power, and that power by simulating the analysis itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np
from scipy.stats import norm

from equipoise.evals.statistics.deciding import WITHIN_SHARE_TARGET
from equipoise.evals.statistics.item_model import item_model
from equipoise.evals.statistics.power import sample_size
from equipoise.evals.statistics.primary import estimate_delta
from equipoise.evals.statistics.task_draws import TaskDesign, draw_task

__all__ = ["RepeatsSize", "SimulatedPower", "advised_repeats", "repeats_size", "simulated_power"]

CITATION = (
    "Cochran WG (1977). Sampling Techniques, 3rd ed., ch. 10 (units and subunits); "
    "Hall P (1992). JRSSB 54:221-228 (limits corrected for skewness)."
)
# Below so many items with repeats the analysis speaks of those items only, which is another claim.
_LEAST_ITEMS = 100
_MAX_ITEMS = 1_000_000
_SEARCH_DRAWS = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatsSize:
    """Size of one task, its assumptions and what it gives.

    Attributes
    ----------
    between, within
        omega^2, and the within-item variance of one answer (the same in both arms).
    repeats
        Answers an item in each arm: as asked, or the fewest that bring ``within_share`` under 20%.
    within_share
        Share of the variance of delta that further repeats would shrink.
    n, n_exact
        Items by the normal formula (a start value), and by searching the power: exact enumeration with one
        answer an item, else limits corrected for skewness on simulated items of mixed difficulty.
    power_exact
        Power at ``n_exact``.
    note
        Empty, or what limited the search.
    """

    margin: float
    power: float
    p_d: float
    noise_p_d: float
    loss: float
    alpha: float
    equivalence: bool
    between: float
    within: float
    repeats: int
    within_share: float
    n: int
    n_exact: int
    power_exact: float
    note: str = ""
    method: str = "normal formula from variance components; power searched"
    citation: str = CITATION


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPower:
    """Share of simulated experiments that the analysis finds non-inferior (or equivalent)."""

    items: int
    repeats: int
    power: float
    standard_error: float
    draws: int
    method: str = "items of mixed difficulty, analysed as a run is"


def advised_repeats(p_d: float, noise_p_d: float, loss: float = 0.0, *, most: int = 32) -> int:
    """Fewest repeats at which answers to one item carry under 20% of the variance; at most ``most``."""
    between = _between(p_d, noise_p_d, loss)
    if noise_p_d == 0.0:
        return 1
    if between == 0.0:
        return most
    share = WITHIN_SHARE_TARGET
    return min(most, floor(noise_p_d * (1.0 - share) / (share * between) * (1 + 1e-12)) + 1)


def repeats_size(
    margin: float,
    power: float,
    p_d: float,
    *,
    noise_p_d: float = 0.0,
    loss: float = 0.0,
    alpha: float = 0.05,
    equivalence: bool = False,
    repeats: int | None = None,
    most_repeats: int = 32,
    rng: np.random.Generator,
) -> RepeatsSize:
    """Raise repeats until they carry under 20% of the variance, then add items until the power is there.

    ``Var(delta) = (omega^2 + noise_p_d / K) / N`` with ``omega^2 = p_d - noise_p_d - loss^2``: single answers
    of candidate and baseline differ because the item changed or because answers vary.

    Parameters
    ----------
    margin, power, p_d, loss
        Margin, wanted power, discordant share of single answers (candidate against baseline), assumed loss.
    noise_p_d
        Discordant share of the baseline asked twice; twice the within-item variance.
    repeats
        Fix the repeats instead.
    most_repeats
        Cap of the rule.
    rng
        Source of the simulated items; not used with one repeat.

    Raises
    ------
    ValueError
        If no items have such rates, the loss leaves no room, or more than a million items would be needed.
    """
    model = item_model(p_d=p_d, noise_p_d=noise_p_d, loss=loss)
    between = _between(model.p_d, noise_p_d, loss)
    rule = advised_repeats(model.p_d, noise_p_d, loss, most=most_repeats)
    k = repeats if repeats is not None else rule
    room = margin - (abs(loss) if equivalence else loss)
    if room <= 0.0:
        raise ValueError(f"no number of items shows a loss of {loss} to be within a margin of {margin}")
    seed = int(rng.integers(2**63))

    def power_at(n: int, k: int) -> float:
        design = TaskDesign(
            name="", n=n, margin=margin, p_d=p_d, loss=loss, critical=True, noise_p_d=noise_p_d, repeats=k
        )
        drawn = draw_task(design, alpha=alpha, draws=_SEARCH_DRAWS, rng=np.random.default_rng(seed))
        passes = drawn.lower > -margin
        return float(np.mean(passes & (drawn.upper < margin) if equivalence else passes))

    def formula(k: int) -> int:
        beta = (1.0 - power) / 2.0 if equivalence and loss == 0.0 else 1.0 - power
        z = float(norm.ppf(1.0 - alpha) + norm.ppf(1.0 - beta))
        return max(1, ceil(z * z * (between + noise_p_d / k) / room**2))

    notes = []
    if k > 1:
        exact, reached = _fewest(lambda n: power_at(n, k), power, max(formula(k), _LEAST_ITEMS))
        if exact == _LEAST_ITEMS:
            notes.append(f"fewer than {_LEAST_ITEMS} items would speak of those items only")
            if repeats is None:  # the fewest repeats that such few items need
                k = next(fewer for fewer in range(2, k + 1) if power_at(exact, fewer) >= power)
                reached = power_at(exact, k)
    if k == 1:
        single = sample_size(margin, power, model.p_d, loss=loss, alpha=alpha, equivalence=equivalence)
        start, exact, reached = single.n, single.n_exact, single.power_exact
    else:
        start = formula(k)
    within_share = (noise_p_d / k) / (between + noise_p_d / k) if between + noise_p_d > 0.0 else 0.0
    if repeats is None and within_share >= WITHIN_SHARE_TARGET:
        notes.append(f"repeats still carry {within_share:.0%} of the variance")
    return RepeatsSize(
        margin=margin,
        power=power,
        p_d=model.p_d,
        noise_p_d=noise_p_d,
        loss=loss,
        alpha=alpha,
        equivalence=equivalence,
        between=between,
        within=noise_p_d / 2.0,
        repeats=k,
        within_share=within_share,
        n=start,
        n_exact=exact,
        power_exact=reached,
        note="; ".join(notes),
    )


def simulated_power(
    size: RepeatsSize, *, rng: np.random.Generator, draws: int = 200, items: int | None = None
) -> SimulatedPower:
    """Power at ``size.n_exact`` items by the analysis that a run gets, on simulated items.

    Each draw is a whole experiment, bootstrap included; its Monte-Carlo standard error comes along.
    """
    n = items if items is not None else size.n_exact
    model = item_model(p_d=size.p_d, noise_p_d=size.noise_p_d, loss=size.loss)
    passes = 0
    for _ in range(draws):
        base, cand = model.draw(n, size.repeats, rng)
        found = estimate_delta(base, cand, margin=size.margin, alpha=size.alpha, rng=rng)
        p = found.equivalence_p if size.equivalence else found.noninferiority_p
        passes += p <= size.alpha
    share = passes / draws
    smoothed = (passes + 1.0) / (draws + 2.0)  # at 0 or 1 the plain standard error would be 0
    return SimulatedPower(
        items=n,
        repeats=size.repeats,
        power=share,
        standard_error=sqrt(smoothed * (1.0 - smoothed) / draws),
        draws=draws,
    )


def _between(p_d: float, noise_p_d: float, loss: float) -> float:
    return max(p_d - noise_p_d - loss * loss, 0.0)


def _fewest(power_at: Callable[[int], float], wanted: float, start: int) -> tuple[int, float]:
    """Fewest items, at least 100, with the wanted power: a bracket from ``start``, then bisection to 0.5%."""
    low, high = _LEAST_ITEMS - 1, start
    while power_at(high) < wanted:
        low, high = high, ceil(high * 1.25)
        if high > _MAX_ITEMS:
            raise ValueError(
                f"more than {_MAX_ITEMS:,} items would be needed; widen the margin or add repeats"
            )
    while high - low > max(1, high // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if power_at(middle) >= wanted else (middle, high)
    return high, power_at(high)
