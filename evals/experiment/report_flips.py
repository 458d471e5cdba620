"""The answers that changed: what the report shows of the pairs that only one arm got right."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from equipoise.evals.experiment.flip_replies import Answer, first_difference, reply
from equipoise.evals.experiment.questions import Question
from equipoise.evals.experiment.scored import ModelSamples
from equipoise.evals.plan import Plan
from equipoise.evals.types import ArmRole, Sample, Score, TaskItem
from equipoise.reports.model import Excerpt, Flip, Flips

__all__ = ["all_flips", "flips_of", "prompt_text"]

SHOWN_PER_DIRECTION = 20  # of each task
SHOWN_REPLY_CHARS = 1_500
REPLY_CHARS = 6_000  # where every flip is told
PROMPT_CHARS = 4_000

_Answer = tuple[Sample, Score]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """An item that only one arm got right, with that arm's and the other's answers in order of repeat."""

    question: Question
    item: TaskItem
    direction: str
    baseline: list[_Answer]
    candidate: list[_Answer]


def flips_of(plan: Plan, questions: Sequence[Question], data: ModelSamples) -> Flips:
    """All flips counted, the first of each task and direction shown, lost ones first."""
    shown: dict[str, list[Flip]] = {"lost": [], "gained": []}
    counts = {"lost": 0, "gained": 0}
    of_task: dict[tuple[str, str], int] = {}
    for change in _changes(plan, questions, data):
        counts[change.direction] += 1
        key = (change.item.task, change.direction)
        of_task[key] = of_task.get(key, 0) + 1
        if of_task[key] <= SHOWN_PER_DIRECTION:
            prompt = Excerpt.of(prompt_text(change.item), PROMPT_CHARS)
            shown[change.direction].append(_flip(change, prompt, SHOWN_REPLY_CHARS))
    return Flips(lost=counts["lost"], gained=counts["gained"], shown=(*shown["lost"], *shown["gained"]))


def all_flips(plan: Plan, questions: Sequence[Question], data: ModelSamples) -> Iterator[Flip]:
    """Every flip in plan order, with longer excerpts; of a prompt that is cut, its end: what is asked."""
    for change in _changes(plan, questions, data):
        text = prompt_text(change.item)
        yield _flip(change, Excerpt.of(text, PROMPT_CHARS, around=len(text)), REPLY_CHARS)


def _changes(plan: Plan, questions: Sequence[Question], data: ModelSamples) -> Iterator[_Change]:
    baseline, candidate = plan.arm(ArmRole.BASELINE), plan.arm(ArmRole.CANDIDATE)
    assert baseline is not None, "a plan has a baseline"
    assert candidate is not None, "a plan has a candidate"
    for question in questions:
        if question.task.kind != "accuracy":
            continue
        ours = _by_item(data, baseline.name, question.spec.name)
        theirs = _by_item(data, candidate.name, question.spec.name)
        for item in question.items:
            if item.id not in ours or item.id not in theirs:
                continue
            change = _mean(theirs[item.id]) - _mean(ours[item.id])
            if change != 0.0:
                yield _Change(
                    question=question,
                    item=item,
                    direction="lost" if change < 0.0 else "gained",
                    baseline=ours[item.id],
                    candidate=theirs[item.id],
                )


def _by_item(data: ModelSamples, arm: str, task: str) -> dict[str, list[_Answer]]:
    """Every item's scored answers, in order of repeat; items without any are left out."""
    scores = {s.key: s.score for s in data.scored[arm, task]}
    found: dict[str, list[_Answer]] = {}
    for sample in data.samples[arm, task]:
        score = scores.get(sample.key)
        if score is not None and score.value is not None:
            found.setdefault(sample.key.item_id, []).append((sample, score))
    return found


def _mean(answers: Sequence[_Answer]) -> float:
    return sum(score.value or 0.0 for _, score in answers) / len(answers)


def _flip(change: _Change, prompt: Excerpt, reply_chars: int) -> Flip:
    """Of repeated answers, the two that show the change best."""
    best, worst = (max, min) if change.direction == "lost" else (min, max)
    one = _settled(change, best(change.baseline, key=_value))
    other = _settled(change, worst(change.candidate, key=_value))
    difference = first_difference(one.outputs, other.outputs)
    return Flip(
        task=change.item.task,
        item_id=change.item.id,
        direction=change.direction,
        prompt=prompt,
        target=Excerpt.of(change.item.target),
        baseline=_read(one),
        candidate=_read(other),
        baseline_finish=_finish(one),
        candidate_finish=_finish(other),
        baseline_reply=reply(one, difference, reply_chars),
        candidate_reply=reply(other, difference, reply_chars),
        difference=difference,
    )


def _value(answer: _Answer) -> float:
    return answer[1].value or 0.0


def _settled(change: _Change, answer: _Answer) -> Answer:
    sample, score = answer
    outputs = change.question.generation.settled(change.question.task, change.item, sample.outputs)
    return Answer(sample=sample, score=score, outputs=outputs)


def prompt_text(item: TaskItem) -> str:
    """What an item asks, as text."""
    for key in ("question", "context", "prompt"):
        value = item.inputs.get(key)
        if isinstance(value, str):
            return value
    return json.dumps(dict(item.inputs), ensure_ascii=False)


def _read(answer: Answer) -> Excerpt | None:
    """What was read as the answer; the whole last reply where the grader extracted nothing."""
    if answer.score.extracted is not None:
        return Excerpt.of(answer.score.extracted)
    text = answer.sample.outputs[-1].text if answer.sample.outputs else None
    return None if text is None else Excerpt.of(text)


def _finish(answer: Answer) -> str:
    return answer.outputs[-1].finish_reason if answer.outputs else ""
