"""Scores for exported samples: every sample graded by its task as the report's are, a few at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from equipoise.evals.answers import answer_facts
from equipoise.evals.experiment.questions import Question
from equipoise.evals.export import Grade, Graded
from equipoise.evals.types import Output, Sample, Score, TaskItem
from equipoise.tasks.code_task import CodeTask

__all__ = ["Answer", "answers_of", "grader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A sample with its item, its replies (thinking and answer apart) and its score."""

    item: TaskItem
    sample: Sample
    outputs: tuple[Output, ...]
    score: Score


def answers_of(
    question: Question, items: Mapping[str, TaskItem], samples: Sequence[Sample]
) -> list[Answer | None]:
    """Score samples of one task, in their order; None where ``items`` does not have a sample's."""
    found = [
        None
        if (item := items.get(s.key.item_id)) is None
        else (item, s, question.generation.settled(question.task, item, s.outputs))
        for s in samples
    ]
    if isinstance(question.task, CodeTask):  # all programs at once: scoring then finds the results
        question.task.prepare(
            [(item, replace(s, outputs=outputs)) for item, s, outputs in (f for f in found if f is not None)]
        )
    return [
        None
        if f is None
        else Answer(
            item=f[0],
            sample=f[1],
            outputs=f[2],
            score=question.generation.score(question.task, f[0], f[1]),
        )
        for f in found
    ]


def grader(questions: Sequence[Question]) -> Grade:
    """A function that grades samples of any of the tasks."""
    by_task = {q.spec.name: (q, {item.id: item for item in q.items}) for q in questions}

    def grade(samples: Sequence[Sample]) -> Sequence[Graded | None]:
        found: list[Graded | None] = [None] * len(samples)
        for task, (question, items) in by_task.items():
            at = [i for i, s in enumerate(samples) if s.key.task == task]
            for i, answer in zip(at, answers_of(question, items, [samples[i] for i in at]), strict=True):
                found[i] = None if answer is None else _graded(answer)
        return found

    return grade


def _graded(answer: Answer) -> Graded:
    score = answer.score
    return Graded(
        status=score.status.value,
        score=score.value,
        extracted=score.extracted,
        reason=score.reason,
        cluster_id=answer.item.cluster_id,
        degenerate=answer_facts(answer.item, answer.sample).degenerate,
        reasoning_chars=sum(len(o.reasoning or "") for o in answer.outputs),
    )
