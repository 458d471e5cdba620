"""A plan's tasks and the items they ask, resolved from their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from equipoise.evals.errors import PlanError
from equipoise.evals.experiment.task_source import task_of
from equipoise.evals.generation import Generation
from equipoise.evals.plan import Plan, TaskSpec
from equipoise.evals.run_types import WorkItem
from equipoise.evals.types import Task, TaskItem
from equipoise.tasks.registry import TASKS

__all__ = ["Question", "questions_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One task of a plan with its items, in plan order."""

    spec: TaskSpec
    task: Task
    items: Sequence[TaskItem]
    generation: Generation = field(default_factory=Generation)

    @property
    def work(self) -> list[WorkItem]:
        """Everything that each arm is asked of this task."""
        return [
            WorkItem(
                task=self.task,
                item=item,
                repeat=k,
                generation=self.generation,
            )
            for item in self.items
            for k in range(self.spec.repeats)
        ]


def questions_of(plan: Plan, registry: Mapping[str, Task] = TASKS) -> tuple[Question, ...]:
    """Every task of the plan with its items.

    Raises
    ------
    PlanError
        An unknown task (with the nearest name), a margin of the wrong kind, too few or no items.
    """
    return tuple(_question(plan, spec, registry) for spec in plan.tasks)


def _question(plan: Plan, spec: TaskSpec, registry: Mapping[str, Task]) -> Question:
    try:
        task = task_of(spec, registry)
    except PlanError as e:
        raise PlanError(f"plan {plan.name!r}: {e}") from e
    wanted = "margin_nats" if task.kind == "logprob" else "margin"
    if getattr(spec, wanted) is None:
        raise PlanError(f"plan {plan.name!r}: task {spec.name!r} is of kind {task.kind}; give it {wanted}")
    try:
        items = task.items(spec.items, plan.seeds.items)
    except ValueError as e:
        raise PlanError(f"plan {plan.name!r}: {e}; lower items of task {spec.name!r}") from e
    if not items:
        raise PlanError(f"plan {plan.name!r}: task {spec.name!r} has no items; check its data or its count")
    ids = {item.id for item in items}
    if len(ids) != len(items):
        raise PlanError(
            f"plan {plan.name!r}: task {spec.name!r} gives {len(items) - len(ids)} item ids twice"
        )
    generation = Generation(
        **plan.generation_of(spec).model_dump(), output_logprobs=plan.runner.output_logprobs
    )
    return Question(spec=spec, task=task, items=items, generation=generation)
