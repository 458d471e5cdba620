"""``equipoise plan check``: what a plan promises, before anything is asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, prod, sqrt
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from equipoise.evals.errors import PlanError
from equipoise.evals.experiment.questions import questions_of
from equipoise.evals.experiment.staging import looks_in_words
from equipoise.evals.plan import Plan
from equipoise.evals.statistics.detectable import detectable_at_standard_error, smallest_detectable_loss
from equipoise.evals.statistics.plan_detectable import PlanDetectable, plan_detectable
from equipoise.evals.statistics.plan_power import PlanPower, TaskDesign, plan_power
from equipoise.evals.statistics.size_control import size_controlled_alpha, worst_case_size

__all__ = [
    "PlanCheck",
    "TaskCheck",
    "check_plan",
    "detectable_in_words",
    "pass_probability",
    "predicted_power",
    "print_plan_check",
    "task_designs",
    "task_detectable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCheck:
    """What the plan promises of one accuracy task.

    Attributes
    ----------
    clusters
        Groups of items that share a document or a conversation; as many as items if none do. The power
        takes items as independent.
    worst_size, controlled_size
        Largest exact size of the task's test at its margin, at the plan's alpha and at the one lowered by
        ``control_size``; None with repeats, where no exact size is known.
    controlled_alpha
        That lowered alpha.
    detectable
        Smallest loss, in this task alone, that its own alarm finds with 80% (at Holm's first step); NaN if
        none.
    """

    design: TaskDesign
    power: float
    clusters: int
    worst_size: float | None
    controlled_size: float | None
    controlled_alpha: float | None
    detectable: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCheck:
    """A plan's power per model and over all models, each task's part, and what the plan would notice."""

    plan: Plan
    power: PlanPower
    tasks: tuple[TaskCheck, ...]
    detectable: PlanDetectable
    joint_all_models: float
    requests: int  # answers asked for in all

    @property
    def ok(self) -> bool:
        """Whether the predicted joint power reaches the plan's own minimum."""
        return self.joint_all_models >= self.plan.decision.min_joint_power

    def as_dict(self) -> dict[str, Any]:
        """JSON values; fractions, nothing rounded."""
        d = self.plan.decision
        return {
            "plan": self.plan.name,
            "plan_hash": self.plan.content_hash,
            "ok": self.ok,
            "assumed_loss": d.assumed_loss,
            "alpha": d.alpha,
            "max_attempts": d.max_attempts,
            "effective_alpha": d.effective_alpha,
            "suite_margin": d.suite_margin,
            "joint_power_per_model": self._passes,
            "joint_power_all_models": self.joint_all_models,
            "min_joint_power": d.min_joint_power,
            "pooled_power": self.power.pooled_noninferior,
            "items_asked": self.requests,
            "critical_power_if_independent": self.independent,
            "noise_floor_power": self.power.noise_floor_passes,
            "control_size": d.control_size,
            "smallest_loss_alarmed": {
                "power": self.detectable.alarm_power,
                "loss": _number(self.detectable.alarm),
            },
            "smallest_loss_refused": [
                {"probability": p, "loss": _number(loss)} for p, loss in self.detectable.refused
            ],
            "tasks": [
                {
                    "task": t.design.name,
                    "critical": t.design.critical,
                    "items": t.design.n,
                    "repeats": t.design.repeats,
                    "clusters": t.clusters,
                    "margin": t.design.margin,
                    "p_d": t.design.p_d,
                    "noise_p_d": t.design.noise_p_d,
                    "power": t.power,
                    "worst_case_size": t.worst_size,
                    "controlled_alpha": t.controlled_alpha,
                    "controlled_size": t.controlled_size,
                    "smallest_detectable_loss": _number(t.detectable),
                }
                for t in self.tasks
            ],
        }

    @property
    def independent(self) -> float:
        """Product of the critical tasks' powers, the pooled mean left out."""
        return prod(t.power for t in self.tasks if t.design.critical)

    @property
    def _passes(self) -> float:
        return pass_probability(self.plan, self.power)


def pass_probability(plan: Plan, power: PlanPower) -> float:
    """Probability that one model is signed off: detected losses count only if the plan allows them."""
    return power.joint_noninferior if plan.decision.allow_detected else power.joint_without_detection


def predicted_power(plan: Plan, *, draws: int = 20_000) -> PlanPower:
    """The plan's power for one model at its assumed loss and discordance; seeded by the plan."""
    d = plan.decision
    rng = np.random.default_rng(plan.seeds.bootstrap)
    return plan_power(task_designs(plan), d.suite_margin, rng=rng, alpha=d.effective_alpha, draws=draws)


def task_designs(plan: Plan) -> list[TaskDesign]:
    """What the plan assumes of each of its accuracy tasks."""
    d = plan.decision
    return [
        TaskDesign(
            name=t.name,
            n=t.items,
            margin=t.margin,
            p_d=max(t.p_d, t.noise_p_d, d.assumed_loss),
            loss=d.assumed_loss,
            critical=t.critical,
            noise_p_d=t.noise_p_d,
            repeats=t.repeats,
            alpha=size_controlled_alpha(t.items, t.margin, d.effective_alpha)
            if d.control_size and t.repeats == 1
            else None,
        )
        for t in plan.tasks
        if t.margin is not None
    ]


def check_plan(plan: Plan) -> PlanCheck:
    """Resolve the plan's tasks and compute what it promises.

    Raises
    ------
    PlanError
        A task is unknown, empty, or cannot give that many items; or no items can have its assumed rates.
    """
    clusters = {q.spec.name: len({i.cluster_id for i in q.items}) for q in questions_of(plan)}
    d = plan.decision
    try:
        power = predicted_power(plan)
        detectable = plan_detectable(
            power.tasks,
            d.suite_margin,
            rng=np.random.default_rng(plan.seeds.bootstrap),
            alpha=d.effective_alpha,
            allow_detected=d.allow_detected,
        )
    except ValueError as e:
        raise PlanError(f"plan {plan.name!r}: {e}; change p_d, noise_p_d or assumed_loss") from e
    sizes: dict[tuple[int, float], tuple[float, float | None]] = {}
    for t in power.tasks:
        if t.repeats == 1 and (t.n, t.margin) not in sizes:
            nominal = worst_case_size(t.n, t.margin, alpha=d.effective_alpha).worst_size
            lowered = (
                worst_case_size(t.n, t.margin, alpha=t.alpha).worst_size if t.alpha is not None else None
            )
            sizes[t.n, t.margin] = nominal, lowered
    return PlanCheck(
        plan=plan,
        power=power,
        tasks=tuple(
            TaskCheck(
                design=t,
                power=p,
                clusters=clusters[t.name],
                worst_size=sizes[t.n, t.margin][0] if t.repeats == 1 else None,
                controlled_size=sizes[t.n, t.margin][1] if t.repeats == 1 else None,
                controlled_alpha=t.alpha,
                detectable=task_detectable(t, alpha=d.effective_alpha / len(power.tasks)),
            )
            for t, p in zip(power.tasks, power.task_noninferior, strict=True)
        ),
        detectable=detectable,
        joint_all_models=pass_probability(plan, power) ** len(plan.models),
        requests=len(plan.models) * len(plan.arms) * sum(t.items * t.repeats for t in plan.tasks),
    )


def task_detectable(design: TaskDesign, *, alpha: float) -> float:
    """Smallest loss that the task's own two-sided alarm finds with 80%; NaN if none."""
    if design.repeats == 1:
        return smallest_detectable_loss(design.n, design.p_d, alpha=alpha).loss
    variance = max(design.p_d - design.noise_p_d, 0.0) + design.noise_p_d / design.repeats
    error = sqrt(variance / design.n)
    return detectable_at_standard_error(design.n, design.p_d, error, alpha=alpha).loss


def detectable_in_words(found: PlanDetectable) -> str:
    """Sentences for a person."""
    alarm = (
        f"no loss is sure to ring a loss alarm with {found.alarm_power:.0%}"
        if isnan(found.alarm)
        else f"a loss of {found.alarm:.4f} in every task rings a loss alarm with {found.alarm_power:.0%}"
    )
    refused = [
        f"{probability:.0%} at {'no loss that was tried' if isnan(loss) else f'{loss:.4f}'}"
        for probability, loss in found.refused
    ]
    return f"smallest losses noticed: {alarm}; sign-off fails with {' and '.join(refused)}"


def print_plan_check(check: PlanCheck, console: Console) -> None:
    """Print a check for a person."""
    plan, d = check.plan, check.plan.decision
    console.print(f"plan {plan.name}  hash {plan.content_hash}", highlight=False, soft_wrap=True)
    models, arms = [m.name for m in plan.models], [f"{a.name} ({a.role})" for a in plan.arms]
    console.print(f"models {', '.join(models)}; arms {', '.join(arms)}", highlight=False)
    repeated = any(t.repeats > 1 for t in plan.tasks)
    console.print(f"{check.requests:,} {'answers' if repeated else 'items'} to ask in all", highlight=False)
    if d.max_attempts > 1:
        console.print(
            f"alpha {d.alpha:g} is split over {d.max_attempts} attempts: every test runs at "
            f"{d.effective_alpha:.3g}",
            highlight=False,
        )
    console.print(_task_table(check.tasks))
    uncontrolled = [t.worst_size for t in check.tasks if t.controlled_size is not None and t.worst_size]
    if uncontrolled:
        least = min(t.controlled_alpha for t in check.tasks if t.controlled_alpha is not None)
        console.print(
            f"control_size: every nominal alpha is {least:.4f} or more, so that the exact size "
            f"is at most {d.effective_alpha:.3g}; without it the worst is {max(uncontrolled):.4f}",
            highlight=False,
        )
    clustered = [f"{t.design.name} ({t.clusters:,})" for t in check.tasks if t.clusters < t.design.n]
    if clustered:
        console.print(
            f"items share clusters in {', '.join(clustered)}: the power above takes them as independent and "
            "promises too much there",
            highlight=False,
        )
    one = pass_probability(plan, check.power)
    console.print(
        f"at a true loss of {d.assumed_loss:.3f} in every task the pooled mean passes with probability "
        f"{check.power.pooled_noninferior:.3f} (suite margin {d.suite_margin:.3f}), the critical tasks "
        f"together with {check.independent:.3f}; one model is signed off with {one:.3f}, all "
        f"{len(plan.models)} with {check.joint_all_models:.3f} (the plan asks for {d.min_joint_power:.2f})",
        highlight=False,
    )
    console.print(detectable_in_words(check.detectable), highlight=False)
    if plan.looks is not None:
        console.print(looks_in_words(plan), highlight=False)
    if not check.ok:
        console.print(
            "[red]under-powered[/]: raise items or margins, or lower min_joint_power", highlight=False
        )


def _task_table(tasks: Sequence[TaskCheck]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for name in ("task", "items", "margin", "p_d", "power", "worst size", "detectable"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for t in tasks:
        design = t.design
        size = t.worst_size if t.controlled_size is None else t.controlled_size
        table.add_row(
            f"{design.name} (critical)" if design.critical else design.name,
            f"{design.n:,}" if design.repeats == 1 else f"{design.n:,} x {design.repeats:,}",
            f"{design.margin:.3f}",
            f"{design.p_d:.3f}",
            f"{t.power:.3f}",
            "-" if size is None else f"{size:.4f}",
            "-" if isnan(t.detectable) else f"{t.detectable:.4f}",
        )
    return table


def _number(x: float) -> float | None:
    return None if isnan(x) else x
