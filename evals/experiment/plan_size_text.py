"""A sized plan, told to a person and as JSON values."""

from collections.abc import Sequence
from math import isnan
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from equipoise.evals.experiment.plan_check import detectable_in_words
from equipoise.evals.experiment.plan_size import PlanSize, TaskSize

__all__ = ["plan_size_dict", "print_plan_size"]


def print_plan_size(found: PlanSize, console: Console) -> None:
    """Print sizes, totals and what they come to together; fits 80 columns."""
    goal, rates = found.goal, found.rates
    what = "equivalence" if goal.equivalence else "non-inferiority"
    losses = sorted({t.assumed.loss for t in found.tasks})
    loss = f"{losses[0]:g}" if len(losses) == 1 else f"{losses[0]:g} to {losses[-1]:g}"
    console.print(
        f"for {what} with power {goal.power:g} in each task at a true loss of {loss}, one-sided alpha "
        f"{goal.alpha:.3g}",
        highlight=False,
    )
    if any(t.assumed.noise is not None for t in found.tasks):
        console.print(_noise_table(found))
    console.print(_size_table(found))
    for rows in _alike(found.tasks):
        if rows[0].single_items is not None:
            console.print(
                Text(
                    f"{rows[0].assumed.name}: with one answer an item {rows[0].single_items:,} items would do"
                )
            )
    for note in dict.fromkeys(t.size.note for t in found.tasks if t.size.note):
        console.print(Text(f"note: {note}"))
    runs = rates.arms * rates.models
    tokens = "" if found.tokens_per_arm is None else f" and {found.tokens_per_arm:,} tokens"
    console.print(f"an arm: {found.requests_per_arm:,} requests{tokens}", highlight=False)
    many = f"all {rates.arms} arms" + (f" of {rates.models} models" if rates.models > 1 else "")
    total = "" if found.tokens_per_arm is None else f" and {found.tokens_per_arm * runs:,} tokens"
    console.print(f"{many}: {found.requests_per_arm * runs:,} requests{total}", highlight=False)
    if found.seconds_per_arm is not None:
        rate = (
            f"{rates.tokens_per_s:,.4g} tokens/s"
            if rates.tokens_per_s is not None
            else f"{rates.requests_per_s:,.4g} requests/s"
        )
        console.print(
            f"server time at {rate}: {_hours(found.seconds_per_arm)} an arm, "
            f"{_hours(found.seconds_per_arm * runs)} for all of them one after another",
            highlight=False,
        )
    for why in found.undefined.values():
        console.print(Text(f"note: {why}"))
    critical = sum(t.assumed.critical for t in found.tasks)
    console.print(
        f"critical tasks together ({critical}): {found.independent:.3f} if independent; with the pooled mean "
        f"(margin {goal.suite_margin:g}, power {found.power.pooled_noninferior:.3f}): {found.joint:.3f}",
        highlight=False,
    )
    if critical > 1:
        console.print(
            f"for {goal.power:g} in all of them together, give each a power of {found.power_per_task:.4f}",
            highlight=False,
        )
    console.print(detectable_in_words(found.detectable), highlight=False)


def _noise_table(found: PlanSize) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for name in ("A/A of the run", "items", "differ", "within var.", "tokens"):
        table.add_column(name, justify="left" if name.startswith("A/A") else "right")
    for t in found.tasks:
        noise = t.assumed.noise
        if noise is not None:
            table.add_row(
                Text(f"{t.assumed.name} ({noise.model})"),
                f"{noise.items:,} of {noise.planned:,}",
                f"{noise.discordant_share:.4f}",
                f"{noise.components.within_baseline:.4f}",
                f"{noise.tokens_per_answer:,.0f}",
            )
    return table


def _size_table(found: PlanSize) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for name in ("task", "margin", "p_d", "A/A", "items", "power", "simulated"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for rows in _alike(found.tasks):
        t = rows[0]
        name = t.assumed.name if len(rows) == 1 else f"{len(rows)} alike"
        table.add_row(
            Text(f"{name} (critical)" if t.assumed.critical else name),
            f"{t.assumed.margin:.3f}",
            f"{t.size.p_d:.3f}",
            f"{t.assumed.noise_p_d:.3f}",
            f"{t.size.n_exact:,}" if t.size.repeats == 1 else f"{t.size.n_exact:,} x {t.size.repeats:,}",
            f"{t.size.power_exact:.3f}",
            _simulated(t),
        )
    return table


def _alike(tasks: Sequence[TaskSize]) -> list[list[TaskSize]]:
    """Tasks that were sized alike and that no run told apart, together."""
    groups: dict[object, list[TaskSize]] = {}
    for i, t in enumerate(tasks):
        groups.setdefault(i if t.assumed.noise is not None else t.size, []).append(t)
    return list(groups.values())


def _simulated(task: TaskSize) -> str:
    found = task.simulated
    return "-" if found is None else f"{found.power:.2f}±{found.standard_error:.2f}"


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def plan_size_dict(found: PlanSize) -> dict[str, Any]:
    """JSON values; nothing rounded."""
    runs = found.rates.arms * found.rates.models
    goal = found.goal
    return {
        "power": goal.power,
        "alpha": goal.alpha,
        "equivalence": goal.equivalence,
        "suite_margin": goal.suite_margin,
        "arms": found.rates.arms,
        "models": found.rates.models,
        "tasks": [_task_dict(t) for t in found.tasks],
        "requests_per_arm": found.requests_per_arm,
        "requests": found.requests_per_arm * runs,
        "tokens_per_arm": found.tokens_per_arm,
        "tokens": None if found.tokens_per_arm is None else found.tokens_per_arm * runs,
        "seconds_per_arm": found.seconds_per_arm,
        "seconds": None if found.seconds_per_arm is None else found.seconds_per_arm * runs,
        "requests_per_s": found.rates.requests_per_s,
        "tokens_per_s": found.rates.tokens_per_s,
        "joint_power": found.joint,
        "joint_power_without_detection": found.power.joint_without_detection,
        "critical_power_if_independent": found.independent,
        "power_per_task_for_joint": found.power_per_task,
        "pooled_power": found.power.pooled_noninferior,
        "noise_floor_power": found.power.noise_floor_passes,
        "smallest_loss_alarmed": {
            "power": found.detectable.alarm_power,
            "loss": None if isnan(found.detectable.alarm) else found.detectable.alarm,
        },
        "smallest_loss_refused": [
            {"probability": p, "loss": None if isnan(loss) else loss} for p, loss in found.detectable.refused
        ],
        "undefined": found.undefined,
    }


def _task_dict(task: TaskSize) -> dict[str, Any]:
    size, assumed, simulated = task.size, task.assumed, task.simulated
    noise = assumed.noise
    return {
        "task": assumed.name,
        "critical": assumed.critical,
        "margin": assumed.margin,
        "p_d": size.p_d,
        "noise_p_d": assumed.noise_p_d,
        "loss": assumed.loss,
        "items": size.n_exact,
        "repeats": size.repeats,
        "n": size.n,
        "n_exact": size.n_exact,
        "power_exact": size.power_exact,
        "power_simulated": simulated.power if simulated else None,
        "power_simulated_se": simulated.standard_error if simulated else None,
        "between_item_variance": size.between,
        "within_item_variance": size.within,
        "within_share": size.within_share,
        "items_with_one_answer": size.n_exact if size.repeats == 1 else task.single_items,
        "answers_per_arm": task.answers,
        "tokens_per_answer": assumed.tokens_per_answer,
        "note": size.note,
        "method": size.method,
        "from_run": None
        if noise is None
        else {
            "model": noise.model,
            "items": noise.items,
            "planned": noise.planned,
            "excluded": dict(noise.excluded),
            "repeats": noise.components.repeats_baseline,
            "discordant_share": noise.discordant_share,
            "within_item_variance": noise.components.within_baseline,
            "between_item_variance": noise.components.between,
            "requests_per_answer": noise.requests_per_answer,
        },
    }
