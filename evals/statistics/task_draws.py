"""Simulated outcomes of one planned task: what its analysis would say, over many imagined runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from equipoise.evals.statistics.item_model import ItemModel, item_model
from equipoise.evals.statistics.limits import unseen_share
from equipoise.evals.statistics.mcnemar import mcnemar_exact_p
from equipoise.evals.statistics.skew_limits import skew_corrected_limits
from equipoise.evals.statistics.tango import tango_delta_limits

__all__ = ["TaskDesign", "TaskDraws", "draw_task", "pooled_alarm_p"]

# As in the choice of the analysis: few items asked often are taken as fixed.
_FEW_ITEMS = 100
_REPEATS_FOR_FIXED_ITEMS = 4
_CELLS_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDesign:
    """What the plan assumes of one task.

    Attributes
    ----------
    n, repeats
        Items, and answers an item in each arm.
    p_d, loss
        Discordant share of single answers (for graded scores: their mean squared difference) and true loss
        of candidate against baseline.
    noise_p_d
        The same of the baseline asked twice: 0 for a server that answers alike every time. It is twice
        the variance of one answer within an item, which repeats shrink.
    alpha
        Nominal alpha of the task's own limits, where it is not the plan's (see `size_controlled_alpha`).
    """

    name: str
    n: int
    margin: float
    p_d: float
    loss: float
    critical: bool
    noise_p_d: float = 0.0
    repeats: int = 1
    alpha: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskDraws:
    """One task in many imagined runs; every array has shape [draws].

    ``lost`` and ``gained`` sum the negative and positive differences over items, ``square`` their squares;
    ``changed`` counts items whose difference is not 0.
    """

    delta: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    lost: NDArray[np.float64]
    gained: NDArray[np.float64]
    square: NDArray[np.float64]
    changed: NDArray[np.int64]
    single: bool  # one right-or-wrong answer an item

    @property
    def alarm_p(self) -> NDArray[np.float64]:
        """P-value of the task's two-sided alarm."""
        return pooled_alarm_p([self])


def draw_task(
    design: TaskDesign, *, alpha: float, draws: int, rng: np.random.Generator, limits: bool = True
) -> TaskDraws:
    """Imagine the task ``draws`` times.

    One answer an item: trinomial counts and Tango's limits, as in the analysis. Repeats: items of mixed
    difficulty (see `item_model`), their differences' exact law, and limits corrected for skewness, which
    agree with the bootstrap-t within about a point of power; under 100 items with 4 repeats or more the
    fixed-benchmark limits.

    Parameters
    ----------
    limits
        Compute ``lower`` and ``upper``; without, they are NaN and the draw is several times faster.

    Raises
    ------
    ValueError
        If no items can have the design's rates; the message names the task.
    """
    level = design.alpha if design.alpha is not None else alpha
    if design.repeats == 1:
        return _draw_single(design, level, draws, rng, limits)
    try:
        model = item_model(p_d=design.p_d, noise_p_d=design.noise_p_d, loss=design.loss)
    except ValueError as e:
        raise ValueError(f"task {design.name!r}: {e}") from e
    if design.n < _FEW_ITEMS and design.repeats >= _REPEATS_FOR_FIXED_ITEMS:
        return _draw_fixed(design, model, level, draws, rng)
    return _draw_repeated(design, model, level, draws, rng)


def pooled_alarm_p(tasks: Sequence[TaskDraws]) -> NDArray[np.float64]:
    """Two-sided p-value over the tasks' items together: exact McNemar, or sign flips by their normal limit.

    The sign-flip p-value is never below ``2^(1 - changed)``, the smallest that so many signs can give.
    """
    lost, gained = sum(t.lost for t in tasks), sum(t.gained for t in tasks)
    if all(t.single for t in tasks):
        return mcnemar_exact_p(lost, gained)
    square, changed = sum(t.square for t in tasks), sum(t.changed for t in tasks)
    z = np.abs(np.asarray(gained) - lost) / np.sqrt(np.maximum(square, 1e-300))
    return np.minimum(1.0, np.maximum(2.0 * norm.sf(z), 2.0 ** (1.0 - np.asarray(changed))))


def _draw_single(
    design: TaskDesign, alpha: float, draws: int, rng: np.random.Generator, limits: bool
) -> TaskDraws:
    n, p_d, loss = design.n, design.p_d, design.loss
    if abs(loss) > p_d:
        raise ValueError(f"task {design.name!r}: a loss of {loss} needs a discordant share of at least that")
    counts = rng.multinomial(n, [(p_d + loss) / 2, (p_d - loss) / 2, 1 - p_d], size=draws)
    b, c = counts[:, 0], counts[:, 1]
    lower = upper = np.full(draws, np.nan)
    if limits:  # each distinct table is inverted once
        tables, index = np.unique(counts[:, :2], axis=0, return_inverse=True)
        low, high = tango_delta_limits(tables[:, 0], tables[:, 1], n, 1.0 - alpha)
        lower, upper = low[index.reshape(-1)], high[index.reshape(-1)]
    return TaskDraws(
        delta=(c - b) / n,
        lower=lower,
        upper=upper,
        lost=b.astype(np.float64),
        gained=c.astype(np.float64),
        square=(b + c).astype(np.float64),
        changed=b + c,
        single=True,
    )


def _draw_repeated(
    design: TaskDesign, model: ItemModel, alpha: float, draws: int, rng: np.random.Generator
) -> TaskDraws:
    n = design.n
    values, probabilities = model.difference_law(design.repeats)
    columns = np.stack(
        [values, values**2, values**3, np.maximum(-values, 0), np.maximum(values, 0), values != 0.0], axis=1
    )
    block = max(1, _CELLS_AT_ONCE // values.size)
    totals = np.concatenate(
        [
            rng.multinomial(n, probabilities, size=min(block, draws - i)) @ columns
            for i in range(0, draws, block)
        ]
    )
    mean, second, third = totals[:, 0] / n, totals[:, 1] / n, totals[:, 2] / n
    spread = np.maximum(second - mean**2, 0.0)
    spread[spread < 1e-14] = 0.0
    lower, upper = skew_corrected_limits(
        mean, spread * n / max(n - 1, 1), third - 3 * mean * second + 2 * mean**3, n, alpha
    )
    lost, gained = totals[:, 3], totals[:, 4]
    flat = np.isnan(lower)  # the analysis falls back to Tango on fractional counts
    if flat.any():
        lower[flat], upper[flat] = tango_delta_limits(lost[flat], gained[flat], n, 1.0 - alpha)
    unseen = unseen_share(n, alpha)
    lower = np.minimum(lower, mean - unseen * (1.0 + mean))
    upper = np.maximum(upper, mean + unseen * (1.0 - mean))
    return TaskDraws(
        delta=mean,
        lower=np.maximum(lower, -1.0),
        upper=np.minimum(upper, 1.0),
        lost=lost,
        gained=gained,
        square=totals[:, 1],
        changed=np.round(totals[:, 5]).astype(np.int64),
        single=False,
    )


def _draw_fixed(
    design: TaskDesign, model: ItemModel, alpha: float, draws: int, rng: np.random.Generator
) -> TaskDraws:
    n, k = design.n, design.repeats
    law = model.joint_pmf(k).ravel()
    cells = rng.choice(law.size, p=law / law.sum(), size=(draws, n))
    base, cand = np.divmod(cells, k + 1)
    shrunken = (np.arange(k + 1) + 0.5) / (k + 1.0)
    variance = shrunken * (1.0 - shrunken) / (k - 1.0)
    difference = (cand - base) / k
    delta = difference.mean(axis=1)
    reach = float(norm.isf(alpha)) * np.sqrt((variance[base] + variance[cand]).sum(axis=1)) / n
    return TaskDraws(
        delta=delta,
        lower=np.maximum(delta - reach, -1.0),
        upper=np.minimum(delta + reach, 1.0),
        lost=np.maximum(-difference, 0.0).sum(axis=1),
        gained=np.maximum(difference, 0.0).sum(axis=1),
        square=np.square(difference).sum(axis=1),
        changed=np.count_nonzero(difference, axis=1),
        single=False,
    )
