"""``equipoise plan check``: what a plan promises, before anything is asked."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from equipoise.evals.experiment.questions import questions_of
from equipoise.evals.plan import Plan
from equipoise.evals.statistics.plan_power import PlanPower, TaskDesign, plan_power
from equipoise.evals.statistics.size_control import worst_case_size

__all__ = ["PlanCheck", "check_plan", "predicted_power", "print_plan_check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCheck:
    """A plan's power per model and over all models, and the worst-case size of each task's test."""

    plan: Plan
    power: PlanPower
    joint_all_models: float
    worst_sizes: tuple[float, ...]
    requests: int  # items asked in all

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
            "tasks": [
                {
                    "task": t.name,
                    "critical": t.critical,
                    "items": t.n,
                    "margin": t.margin,
                    "p_d": t.p_d,
                    "power": power,
                    "worst_case_size": size,
                }
                for t, power, size in zip(
                    self.power.tasks, self.power.task_noninferior, self.worst_sizes, strict=True
                )
            ],
        }

    @property
    def _passes(self) -> float:
        return pass_probability(self.plan, self.power)


def pass_probability(plan: Plan, power: PlanPower) -> float:
    """Probability that one model is signed off: detected losses count only if the plan allows them."""
    return power.joint_noninferior if plan.decision.allow_detected else power.joint_without_detection


def predicted_power(plan: Plan, *, draws: int = 20_000) -> PlanPower:
    """The plan's power for one model at its assumed loss and discordance; seeded by the plan."""
    designs = [
        TaskDesign(
            name=t.name,
            n=t.items,
            margin=t.margin,
            p_d=max(t.p_d, plan.decision.assumed_loss),
            loss=plan.decision.assumed_loss,
            critical=t.critical,
        )
        for t in plan.tasks
        if t.margin is not None
    ]
    rng = np.random.default_rng(plan.seeds.bootstrap)
    d = plan.decision
    return plan_power(designs, d.suite_margin, rng=rng, alpha=d.effective_alpha, draws=draws)


def check_plan(plan: Plan) -> PlanCheck:
    """Resolve the plan's tasks and compute what it promises.

    Raises
    ------
    PlanError
        A task is unknown, empty, or cannot give that many items.
    """
    questions_of(plan)
    power = predicted_power(plan)
    sizes = {
        (t.n, t.margin): max(worst_case_size(t.n, t.margin, alpha=plan.decision.effective_alpha).sizes)
        for t in power.tasks
    }
    return PlanCheck(
        plan=plan,
        power=power,
        joint_all_models=pass_probability(plan, power) ** len(plan.models),
        worst_sizes=tuple(sizes[t.n, t.margin] for t in power.tasks),
        requests=len(plan.models) * len(plan.arms) * sum(t.items for t in plan.tasks),
    )


def print_plan_check(check: PlanCheck, console: Console) -> None:
    """Print a check for a person."""
    plan, d = check.plan, check.plan.decision
    console.print(f"plan {plan.name}  hash {plan.content_hash}", highlight=False, soft_wrap=True)
    models, arms = [m.name for m in plan.models], [f"{a.name} ({a.role})" for a in plan.arms]
    console.print(f"models {', '.join(models)}; arms {', '.join(arms)}", highlight=False)
    console.print(f"{check.requests:,} items to ask in all", highlight=False)
    if d.max_attempts > 1:
        console.print(
            f"alpha {d.alpha:g} is split over {d.max_attempts} attempts: every test runs at "
            f"{d.effective_alpha:.3g}",
            highlight=False,
        )
    table = Table(show_edge=False, pad_edge=False)
    for name in ("task", "items", "margin", "assumed p_d", "power", "worst-case size"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for t, power, size in zip(
        check.power.tasks, check.power.task_noninferior, check.worst_sizes, strict=True
    ):
        name = f"{t.name} (critical)" if t.critical else t.name
        table.add_row(name, f"{t.n:,}", f"{t.margin:.3f}", f"{t.p_d:.3f}", f"{power:.3f}", f"{size:.4f}")
    console.print(table)
    one = pass_probability(plan, check.power)
    console.print(
        f"at a true loss of {d.assumed_loss:.3f} in every task the pooled mean passes with probability "
        f"{check.power.pooled_noninferior:.3f} (suite margin {d.suite_margin:.3f}); one model is signed off "
        f"with {one:.3f}, all {len(plan.models)} with {check.joint_all_models:.3f} "
        f"(the plan asks for {d.min_joint_power:.2f})",
        highlight=False,
    )
    if not check.ok:
        console.print(
            "[red]under-powered[/]: raise items or margins, or lower min_joint_power", highlight=False
        )
