"""``equipoise plan size``: items, repeats, tokens and server time for a wanted power."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite, prod
from typing import TYPE_CHECKING

import numpy as np

from equipoise.evals.errors import UsageError
from equipoise.evals.statistics.plan_detectable import PlanDetectable, plan_detectable
from equipoise.evals.statistics.plan_power import PlanPower, TaskDesign, plan_power
from equipoise.evals.statistics.power import sample_size
from equipoise.evals.statistics.repeats_size import (
    RepeatsSize,
    SimulatedPower,
    repeats_size,
    simulated_power,
)

if TYPE_CHECKING:  # sizes from assumed rates alone need no run's machinery
    from equipoise.evals.experiment.run_noise import RunNoise, TaskNoise

__all__ = ["Assumption", "PlanSize", "Rates", "SizeGoal", "TaskSize", "assumptions_of", "size_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What is taken to be true of one task, and where from.

    ``tokens_per_answer`` counts prompt and completion; None where nobody said. ``noise`` holds what a run
    showed, if there was one.
    """

    name: str
    margin: float
    p_d: float
    noise_p_d: float
    loss: float
    critical: bool = True
    tokens_per_answer: float | None = None
    requests_per_answer: float = 1.0
    noise: "TaskNoise | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeGoal:
    """What the experiment is to show.

    ``repeats`` None leaves them to the rule; ``draws`` 0 simulates no analyses; ``allow_detected`` is the
    plan's own, for the losses that sign-off refuses.
    """

    power: float
    suite_margin: float
    alpha: float = 0.05
    equivalence: bool = False
    allow_detected: bool = True
    repeats: int | None = None
    draws: int = 200
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of one arm's server, at most one of them; and how many arms and models are asked."""

    requests_per_s: float | None = None
    tokens_per_s: float | None = None
    arms: int = 4
    models: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSize:
    """One task's size.

    ``simulated`` is the power of the analysis itself, for tasks with repeats; ``single_items`` the items
    that would do with one answer each: fewer answers in all, where there are so many items.
    """

    assumed: Assumption
    size: RepeatsSize
    simulated: SimulatedPower | None
    single_items: int | None

    @property
    def answers(self) -> int:
        """Answers an arm."""
        return self.size.n_exact * self.size.repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSize:
    """A sized plan of one model; totals are per arm and over all arms and models.

    Attributes
    ----------
    power
        All tasks at their sizes, jointly.
    independent
        Product of the critical tasks' powers.
    power_per_task
        Power that every critical task needs for the wanted power of all together, if independent.
    undefined
        Why a total is None, by its name.
    """

    goal: SizeGoal
    rates: Rates
    tasks: tuple[TaskSize, ...]
    power: PlanPower
    detectable: PlanDetectable
    requests_per_arm: int
    tokens_per_arm: int | None
    seconds_per_arm: float | None
    undefined: dict[str, str]

    @property
    def joint(self) -> float:
        """All critical tasks and the pooled mean."""
        return self.power.joint_equivalent if self.goal.equivalence else self.power.joint_noninferior

    @property
    def independent(self) -> float:
        return prod(t.size.power_exact for t in self.tasks if t.assumed.critical)

    @property
    def power_per_task(self) -> float:
        return float(self.goal.power ** (1.0 / max(1, sum(t.assumed.critical for t in self.tasks))))


def assumptions_of(
    run: "RunNoise", *, margin: float | None, p_d: float | None, loss: float | None
) -> list[Assumption]:
    """The tasks of a run with the noise that its baseline showed; ``None`` takes the plan's own value.

    The candidate's discordance is assumed, never looked up: the plan's, or the baseline's own noise where
    that is larger.
    """
    found = []
    for spec in run.plan.tasks:
        if spec.margin is None:
            continue
        noise = run.worst(spec.name)
        share = noise.discordant_share
        found.append(
            Assumption(
                name=spec.name,
                margin=margin if margin is not None else spec.margin,
                p_d=max(p_d if p_d is not None else spec.p_d, share),
                noise_p_d=share,
                loss=loss if loss is not None else run.plan.decision.assumed_loss,
                critical=spec.critical,
                tokens_per_answer=noise.tokens_per_answer,
                requests_per_answer=noise.requests_per_answer,
                noise=noise,
            )
        )
    return found


def size_plan(tasks: Sequence[Assumption], goal: SizeGoal, rates: Rates) -> PlanSize:
    """Size every task for the wanted power, then say what they come to together.

    Raises
    ------
    UsageError
        A task cannot be sized; the message names it and what to change.
    """
    rng = np.random.default_rng(goal.seed)
    sized: dict[tuple[float, ...], tuple[RepeatsSize, SimulatedPower | None, int | None]] = {}
    found = []
    for t in tasks:
        key = (t.margin, t.p_d, t.noise_p_d, t.loss)  # like tasks are sized once
        if key not in sized:
            sized[key] = _size_task(t, goal, rng)
        size, simulated, single = sized[key]
        found.append(TaskSize(assumed=t, size=size, simulated=simulated, single_items=single))
    designs = [
        TaskDesign(
            name=t.assumed.name,
            n=t.size.n_exact,
            margin=t.assumed.margin,
            p_d=t.size.p_d,
            loss=t.assumed.loss,
            critical=t.assumed.critical,
            noise_p_d=t.assumed.noise_p_d,
            repeats=t.size.repeats,
        )
        for t in found
    ]
    requests = ceil(sum(t.answers * t.assumed.requests_per_answer for t in found))
    tokens, seconds, undefined = _totals(found, requests, rates)
    return PlanSize(
        goal=goal,
        rates=rates,
        tasks=tuple(found),
        power=plan_power(designs, goal.suite_margin, rng=rng, alpha=goal.alpha),
        detectable=plan_detectable(
            designs, goal.suite_margin, rng=rng, alpha=goal.alpha, allow_detected=goal.allow_detected
        ),
        requests_per_arm=requests,
        tokens_per_arm=tokens,
        seconds_per_arm=seconds,
        undefined=undefined,
    )


def _size_task(
    task: Assumption, goal: SizeGoal, rng: np.random.Generator
) -> tuple[RepeatsSize, SimulatedPower | None, int | None]:
    try:
        size = repeats_size(
            task.margin,
            goal.power,
            task.p_d,
            noise_p_d=task.noise_p_d,
            loss=task.loss,
            alpha=goal.alpha,
            equivalence=goal.equivalence,
            repeats=goal.repeats,
            rng=rng,
        )
    except ValueError as e:
        raise UsageError(f"task {task.name!r}: {e}; change --margin, --loss, --p-d or --noise-p-d") from e
    if size.repeats == 1:  # the power of single answers is exact
        return size, None, None
    try:
        single = sample_size(
            task.margin, goal.power, size.p_d, loss=task.loss, alpha=goal.alpha, equivalence=goal.equivalence
        ).n_exact
    except ValueError:
        single = None  # more than ten million
    return size, simulated_power(size, rng=rng, draws=goal.draws) if goal.draws else None, single


def _totals(
    tasks: Sequence[TaskSize], requests: int, rates: Rates
) -> tuple[int | None, float | None, dict[str, str]]:
    undefined = {}
    tokens: int | None = None
    each = [t.assumed.tokens_per_answer for t in tasks]
    if all(x is not None for x in each):
        tokens = ceil(sum(t.answers * (x or 0.0) for t, x in zip(tasks, each, strict=True)))
    else:
        undefined["tokens"] = "no --tokens-per-item was given"
    seconds: float | None = None
    if rates.tokens_per_s is not None and tokens is not None:
        seconds = tokens / rates.tokens_per_s
    elif rates.requests_per_s is not None and isfinite(rates.requests_per_s):
        seconds = requests / rates.requests_per_s
    else:
        undefined["seconds"] = "no rate was given or seen: add --requests-per-s, or --tokens-per-s"
    return tokens, seconds, undefined
