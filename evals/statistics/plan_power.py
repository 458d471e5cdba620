"""Power of a whole plan: its critical tasks and pooled mean together, by simulating paired tables.

The joint probability has no closed form (the pooled mean shares its data with the tasks), so tables are
drawn; each task's own power beside it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from equipoise.evals.statistics.holm import holm_adjusted
from equipoise.evals.statistics.mcnemar import mcnemar_exact_p
from equipoise.evals.statistics.mover import mover_limits
from equipoise.evals.statistics.power import rejection_probability
from equipoise.evals.statistics.tango import CITATION, tango_delta_limits

__all__ = ["PlanPower", "TaskDesign", "plan_power"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDesign:
    """What the plan assumes of one task.

    ``p_d`` and ``loss`` are of candidate against baseline; ``noise_p_d`` is the discordant share of the
    baseline asked twice (0 for a server that answers alike every time).
    """

    name: str
    n: int
    margin: float
    p_d: float
    loss: float
    critical: bool
    noise_p_d: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPower:
    """Probabilities that one model passes the plan, if the assumed losses are true.

    Attributes
    ----------
    task_noninferior
        Per task: exact probability of being found non-inferior.
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
    method: str = "exact per task; simulated jointly (Tango, MOVER, exact McNemar with Holm)"
    citation: str = CITATION


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
    candidate = _draw(tasks, [(t.p_d, t.loss) for t in tasks], draws, rng)
    noise = _draw(tasks, [(t.noise_p_d, 0.0) for t in tasks], draws, rng)
    margins = np.array([t.margin for t in tasks])
    critical = np.array([t.critical for t in tasks], dtype=np.bool_)

    delta, lower, upper = _limits(tasks, candidate, alpha)
    _, pooled_lower, pooled_upper = mover_limits(delta, lower, upper)
    pooled_noninferior = pooled_lower > -suite_margin
    joint = pooled_noninferior & _all_critical(lower > -margins, critical)

    b, c = candidate
    task_alarm = (holm_adjusted(mcnemar_exact_p(b, c)) <= alpha) & (delta < 0)
    b_sum, c_sum = b.sum(axis=1), c.sum(axis=1)
    pooled_alarm = (mcnemar_exact_p(b_sum, c_sum) <= alpha) & (b_sum > c_sum)
    undetected = joint & ~pooled_alarm & _all_critical(~task_alarm, critical)
    equivalent = joint & (pooled_upper < suite_margin) & _all_critical(upper < margins, critical)

    noise_delta, noise_lower, noise_upper = _limits(tasks, noise, alpha)
    _, noise_pooled_lower, _ = mover_limits(noise_delta, noise_lower, noise_upper)
    noise_passes = (noise_pooled_lower > -suite_margin) & _all_critical(noise_lower > -margins, critical)
    return PlanPower(
        tasks=tuple(tasks),
        suite_margin=suite_margin,
        alpha=alpha,
        draws=draws,
        task_noninferior=tuple(
            rejection_probability(t.n, t.margin, t.p_d, t.loss, alpha=alpha) for t in tasks
        ),
        pooled_noninferior=float(pooled_noninferior.mean()),
        joint_noninferior=float(joint.mean()),
        joint_without_detection=float(undetected.mean()),
        joint_equivalent=float(equivalent.mean()),
        noise_floor_passes=float(noise_passes.mean()),
        monte_carlo_se=0.5 / sqrt(draws),
    )


def _draw(
    tasks: Sequence[TaskDesign],
    rates: Sequence[tuple[float, float]],
    draws: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Discordant counts b, c of shape [draws, tasks]."""
    b = np.empty((draws, len(tasks)), dtype=np.int64)
    c = np.empty_like(b)
    for t, (task, (p_d, loss)) in enumerate(zip(tasks, rates, strict=True)):
        if abs(loss) > p_d:
            raise ValueError(
                f"task {task.name!r}: a loss of {loss} needs a discordant share of at least that"
            )
        counts = rng.multinomial(task.n, [(p_d + loss) / 2, (p_d - loss) / 2, 1 - p_d], size=draws)
        b[:, t], c[:, t] = counts[:, 0], counts[:, 1]
    return b, c


def _limits(
    tasks: Sequence[TaskDesign], counts: tuple[NDArray[np.int64], NDArray[np.int64]], alpha: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Delta and its one-sided limits, [draws, tasks]; each distinct table is inverted once."""
    b, c = counts
    delta, lower, upper = (np.empty(b.shape) for _ in range(3))
    for t, task in enumerate(tasks):
        tables, index = np.unique(np.stack([b[:, t], c[:, t]], axis=1), axis=0, return_inverse=True)
        index = index.reshape(-1)
        low, high = tango_delta_limits(tables[:, 0], tables[:, 1], task.n, 1.0 - alpha)
        delta[:, t], lower[:, t], upper[:, t] = (c[:, t] - b[:, t]) / task.n, low[index], high[index]
    return delta, lower, upper


def _all_critical(passes: NDArray[np.bool_], critical: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(np.all(passes | ~critical, axis=1))
