"""Power of a whole plan: its critical tasks and pooled mean together, by simulating its tasks.

The joint probability has no closed form (the pooled mean shares its data with the tasks), so outcomes are
drawn; the power of a task with one answer an item is exact beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from equipoise.evals.statistics.holm import holm_adjusted
from equipoise.evals.statistics.mover import mover_limits
from equipoise.evals.statistics.power import rejection_probability
from equipoise.evals.statistics.tango import CITATION
from equipoise.evals.statistics.task_draws import TaskDesign, TaskDraws, draw_task, pooled_alarm_p

__all__ = ["PlanPower", "SimulatedRuns", "TaskDesign", "loss_alarms", "plan_power", "simulate_runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPower:
    """Probabilities that one model passes the plan, if the assumed losses are true.

    Attributes
    ----------
    task_noninferior
        Per task: probability of being found non-inferior; exact with one answer an item.
    pooled_noninferior
        Probability that the pooled mean is found non-inferior at ``suite_margin``.
    joint_noninferior
        All critical tasks and the pooled mean: sign-off where the plan allows detected losses.
    joint_without_detection
        As before, and no loss alarm of a critical task (Holm over tasks) or of the pooled sign test:
        sign-off where the plan does not allow detected losses.
    joint_equivalent
        All critical tasks and the pooled mean are equivalent: "indistinguishable".
    noise_floor_passes
        The baseline against itself is non-inferior on all critical tasks and pooled.
    monte_carlo_se
        Largest standard error that the simulated probabilities can have.
    """

    tasks: tuple[TaskDesign, ...]
    suite_margin: float
    alpha: float
    draws: int
    task_noninferior: tuple[float, ...]
    pooled_noninferior: float
    joint_noninferior: float
    joint_without_detection: float
    joint_equivalent: float
    noise_floor_passes: float
    monte_carlo_se: float
    method: str = "exact per task of single answers; simulated jointly (MOVER, alarms with Holm)"
    citation: str = CITATION


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedRuns:
    """Imagined runs, decided; every array has shape [draws]. See `PlanPower` for what each means."""

    tasks: tuple[TaskDraws, ...]
    pooled_noninferior: NDArray[np.bool_]
    joint: NDArray[np.bool_]
    undetected: NDArray[np.bool_]
    equivalent: NDArray[np.bool_]


def plan_power(
    tasks: Sequence[TaskDesign],
    suite_margin: float,
    *,
    rng: np.random.Generator,
    alpha: float = 0.05,
    draws: int = 20_000,
) -> PlanPower:
    """Predict how often a plan passes under its assumed losses, tasks being independent.

    Parameters
    ----------
    tasks
        The plan's accuracy tasks, supporting ones included: they enter the pooled mean.
    suite_margin
        Margin of the pooled mean (fraction).
    rng
        Source of the simulated tables.
    draws
        Simulated runs.

    Notes
    -----
    For a plan over several models raise the result to their number, or multiply the models' own.
    """
    if not tasks:
        raise ValueError("a plan needs at least one accuracy task")
    runs = simulate_runs(tasks, suite_margin, rng=rng, alpha=alpha, draws=draws)
    noise = simulate_runs(
        [replace(t, p_d=t.noise_p_d, loss=0.0) for t in tasks],
        suite_margin,
        rng=rng,
        alpha=alpha,
        draws=draws,
    )
    return PlanPower(
        tasks=tuple(tasks),
        suite_margin=suite_margin,
        alpha=alpha,
        draws=draws,
        task_noninferior=tuple(
            rejection_probability(
                t.n, t.margin, t.p_d, t.loss, alpha=t.alpha if t.alpha is not None else alpha
            )
            if t.repeats == 1
            else float(np.mean(d.lower > -t.margin))
            for t, d in zip(tasks, runs.tasks, strict=True)
        ),
        pooled_noninferior=float(runs.pooled_noninferior.mean()),
        joint_noninferior=float(runs.joint.mean()),
        joint_without_detection=float(runs.undetected.mean()),
        joint_equivalent=float(runs.equivalent.mean()),
        noise_floor_passes=float(noise.joint.mean()),
        monte_carlo_se=0.5 / sqrt(draws),
    )


def simulate_runs(
    tasks: Sequence[TaskDesign],
    suite_margin: float,
    *,
    rng: np.random.Generator,
    alpha: float = 0.05,
    draws: int = 20_000,
) -> SimulatedRuns:
    """Imagine the plan's run ``draws`` times and decide each; see `plan_power`."""
    drawn = tuple(draw_task(t, alpha=alpha, draws=draws, rng=rng) for t in tasks)
    margins = np.array([t.margin for t in tasks])
    critical = np.array([t.critical for t in tasks], dtype=np.bool_)
    delta, lower, upper = (
        np.stack(column, axis=1)
        for column in ([d.delta for d in drawn], [d.lower for d in drawn], [d.upper for d in drawn])
    )
    _, pooled_lower, pooled_upper = mover_limits(delta, lower, upper)
    pooled_noninferior = pooled_lower > -suite_margin
    joint = pooled_noninferior & _all_critical(lower > -margins, critical)
    task_alarms, pooled_alarm = loss_alarms(drawn, alpha)
    return SimulatedRuns(
        tasks=drawn,
        pooled_noninferior=pooled_noninferior,
        joint=joint,
        undetected=joint & ~pooled_alarm & _all_critical(~task_alarms, critical),
        equivalent=joint & (pooled_upper < suite_margin) & _all_critical(upper < margins, critical),
    )


def loss_alarms(drawn: Sequence[TaskDraws], alpha: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each task's alarm (Holm over tasks) and the pooled one tell of a loss.

    Returns
    -------
    by_task, pooled
        Shapes [draws, tasks] and [draws].
    """
    p = np.stack([d.alarm_p for d in drawn], axis=1)
    losing = np.stack([d.lost > d.gained for d in drawn], axis=1)
    lost, gained = sum(d.lost for d in drawn), sum(d.gained for d in drawn)
    pooled = (pooled_alarm_p(drawn) <= alpha) & (np.asarray(lost) > gained)
    return (holm_adjusted(p) <= alpha) & losing, pooled


def _all_critical(passes: NDArray[np.bool_], critical: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(np.all(passes | ~critical, axis=1))
