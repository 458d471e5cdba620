"""What a plan would notice: the smallest common loss that its alarms find, and that its sign-off refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import nan

import numpy as np

from equipoise.evals.statistics.detectable import CITATION
from equipoise.evals.statistics.plan_power import loss_alarms, simulate_runs
from equipoise.evals.statistics.task_draws import TaskDesign, draw_task

__all__ = ["PlanDetectable", "plan_detectable"]

_RESOLUTION = 2e-4
# Beyond, no items of mixed difficulty are left to lose (see `item_model`).
_LARGEST_LOSS = 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDetectable:
    """Smallest losses, the same in every task, that a run of the plan would not let pass in silence.

    Attributes
    ----------
    alarm
        Loss at which some loss alarm (a task's, Holm over tasks, or the pooled one) rejects with
        probability ``alarm_power``; NaN if no loss up to 0.45 does.
    refused
        Pairs of a probability and the loss at which sign-off fails so often; NaN likewise.
    """

    tasks: tuple[TaskDesign, ...]
    suite_margin: float
    alpha: float
    allow_detected: bool
    alarm_power: float
    alarm: float
    refused: tuple[tuple[float, float], ...]
    draws: int
    method: str = "bisection of the loss over simulated runs, the same random numbers at every loss"
    citation: str = CITATION


def plan_detectable(
    tasks: Sequence[TaskDesign],
    suite_margin: float,
    *,
    rng: np.random.Generator,
    alpha: float = 0.05,
    allow_detected: bool = False,
    alarm_power: float = 0.8,
    refusal: Sequence[float] = (0.8, 0.95),
    draws: int = 2_500,
) -> PlanDetectable:
    """Search the losses, to 0.0002, that the plan would find and refuse.

    Parameters
    ----------
    tasks
        The plan's accuracy tasks; their own assumed loss is ignored, their discordant share raised to the
        loss where it is smaller.
    rng
        Source of the seed that all simulations share.
    allow_detected
        Whether a detected loss within the margins is signed off.
    alarm_power, refusal
        Wanted probabilities.

    Notes
    -----
    A loss in one task alone is found later than the same loss in all: the pooled test then hardly helps.
    """
    if not tasks:
        raise ValueError("a plan needs at least one accuracy task")
    seed = int(rng.integers(2**63))

    def at(loss: float) -> list[TaskDesign]:
        return [replace(t, loss=loss, p_d=max(t.p_d, loss)) for t in tasks]

    def alarmed(loss: float) -> float:
        shared = np.random.default_rng(seed)
        drawn = [draw_task(t, alpha=alpha, draws=draws, rng=shared, limits=False) for t in at(loss)]
        by_task, pooled = loss_alarms(drawn, alpha)
        return float(np.mean(by_task.any(axis=1) | pooled))

    @cache
    def refused(loss: float) -> float:
        runs = simulate_runs(
            at(loss), suite_margin, rng=np.random.default_rng(seed), alpha=alpha, draws=draws
        )
        return 1.0 - float(np.mean(runs.joint if allow_detected else runs.undetected))

    return PlanDetectable(
        tasks=tuple(tasks),
        suite_margin=suite_margin,
        alpha=alpha,
        allow_detected=allow_detected,
        alarm_power=alarm_power,
        alarm=_smallest(alarmed, alarm_power, suite_margin),
        refused=tuple((wanted, _smallest(refused, wanted, suite_margin)) for wanted in refusal),
        draws=draws,
    )


def _smallest(probability: Callable[[float], float], wanted: float, start: float) -> float:
    """Smallest loss with the wanted probability, by doubling from ``start`` and then bisection."""
    low, high = 0.0, min(start, _LARGEST_LOSS)
    if probability(low) >= wanted:
        return 0.0
    while probability(high) < wanted:
        if high == _LARGEST_LOSS:
            return nan
        low, high = high, min(2.0 * high, _LARGEST_LOSS)
    while high - low > _RESOLUTION:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if probability(middle) >= wanted else (middle, high)
    return high
