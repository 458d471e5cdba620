"""What a run's baseline arms say about noise, tokens and speed: all that sizing may look at.

Only the baseline and the baseline asked again are read. The candidate's answers stay unseen, so that a plan
sized from a run is still a plan made before the data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.evals.errors import UsageError
from equipoise.evals.experiment.questions import Question, questions_of
from equipoise.evals.experiment.results import JOURNAL_NAME, plan_of
from equipoise.evals.experiment.scored import ModelSamples, read_model
from equipoise.evals.journal import Journal
from equipoise.evals.pairing import pair
from equipoise.evals.plan import Plan
from equipoise.evals.statistics.variance_components import VarianceComponents, noise_components
from equipoise.evals.types import ArmRole, Sample

__all__ = ["RunNoise", "TaskNoise", "noise_of_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNoise:
    """One task of one model, asked twice of the same server.

    Attributes
    ----------
    items, planned
        Items answered in both arms, and items of the plan.
    excluded
        Items left out, by reason.
    components
        Variance components of the A/A difference; ``within_baseline`` is the variance of one answer.
    discordant_share
        Twice that: of right-or-wrong answers the probability that two answers to an item differ.
    tokens_per_answer, requests_per_answer
        Means over both arms' answers: prompt and completion tokens; requests (turns).
    """

    model: str
    task: str
    items: int
    planned: int
    excluded: Mapping[str, int]
    components: VarianceComponents
    tokens_per_answer: float
    requests_per_answer: float

    @property
    def discordant_share(self) -> float:
        return 2.0 * self.components.within_baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNoise:
    """All accuracy tasks of a run; ``requests_per_s`` is the slowest model's, of one arm while asked."""

    plan: Plan
    tasks: tuple[TaskNoise, ...]
    requests_per_s: float

    def worst(self, task: str) -> TaskNoise:
        """The task on the model whose answers vary most: what the size must suffice for."""
        return max((t for t in self.tasks if t.task == task), key=lambda t: t.discordant_share)


def noise_of_run(directory: Path) -> RunNoise:
    """Read the baseline's two arms of a run, finished or not.

    Raises
    ------
    UsageError
        The plan did not ask its baseline twice, or a task has no two items answered in both arms.
    JournalError
        There is no journal, or it is damaged.
    ParityError
        The two arms did not answer the same items.
    """
    with Journal.read(directory / JOURNAL_NAME) as journal:
        plan = plan_of(journal)
        first, second = plan.arm(ArmRole.BASELINE), plan.arm(ArmRole.BASELINE_REPEAT)
        if first is None or second is None:
            raise UsageError(
                f"--from {directory}: the run asked its baseline only once, so it shows no noise; "
                "run with an arm of role baseline_repeat, or give --margin, --p-d and --noise-p-d"
            )
        questions = [q for q in questions_of(plan) if q.task.kind == "accuracy"]
        only = plan.model_copy(update={"arms": (first, second)})
        data = [read_model(journal, only, questions, m.name) for m in plan.models]
    arms = first.name, second.name
    rates = [
        _requests_per_s([s for (arm, _), found in d.samples.items() if arm == arms[0] for s in found])
        for d in data
    ]
    return RunNoise(
        plan=plan,
        tasks=tuple(_task_noise(directory, q, d, arms) for d in data for q in questions),
        requests_per_s=min(rates),
    )


def _task_noise(directory: Path, question: Question, data: ModelSamples, arms: tuple[str, str]) -> TaskNoise:
    name = question.spec.name
    table = pair(
        question.items,
        data.scored[arms[0], name],
        data.scored[arms[1], name],
        baseline_arm=arms[0],
        candidate_arm=arms[1],
        repeats=question.spec.repeats,
    )
    if table.n < 2:
        raise UsageError(
            f"--from {directory}: task {name!r} of model {data.model!r} has {table.n} items answered in both "
            f"{arms[0]} and {arms[1]}, and needs 2 or more; let the run go on (--resume) and try again"
        )
    answers = [s for arm in arms for s in data.samples[arm, name] if s.outputs]
    tokens = [sum(o.prompt_tokens + o.completion_tokens for o in s.outputs) for s in answers]
    return TaskNoise(
        model=data.model,
        task=name,
        items=table.n,
        planned=table.n_planned,
        excluded=dict(table.excluded),
        components=noise_components(table.baseline, table.candidate),
        tokens_per_answer=float(np.mean(tokens)),
        requests_per_answer=float(np.mean([len(s.outputs) for s in answers])),
    )


def _requests_per_s(samples: Sequence[Sample]) -> float:
    """Requests over the time in which at least one was in flight: pauses of a resumed run do not count."""
    start = np.array([s.started_unix_s for s in samples])
    end = start + np.array([s.latency_s for s in samples])
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(start[1:] - end[:-1], 0.0).sum()
    busy = float(end[-1] - start[0] - gaps)
    return sum(len(s.outputs) for s in samples) / busy if busy > 0.0 else float("nan")
