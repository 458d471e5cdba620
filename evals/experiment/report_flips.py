"""The answers that changed: what the report shows of the pairs that only one arm got right."""

import json
from collections.abc import Sequence

from equipoise.evals.experiment.questions import Question
from equipoise.evals.experiment.scored import ModelSamples
from equipoise.evals.plan import Plan
from equipoise.evals.types import ArmRole, Sample, Score, TaskItem
from equipoise.reports.model import Excerpt, Flip, Flips

__all__ = ["flips_of", "prompt_text"]

SHOWN_PER_DIRECTION = 20  # of each task

_Answer = tuple[Sample, Score]


def flips_of(plan: Plan, questions: Sequence[Question], data: ModelSamples) -> Flips:
    """All flips counted, the first of each task and direction shown, lost ones first."""
    baseline, candidate = plan.arm(ArmRole.BASELINE), plan.arm(ArmRole.CANDIDATE)
    assert baseline is not None, "a plan has a baseline"
    assert candidate is not None, "a plan has a candidate"
    lost: list[Flip] = []
    gained: list[Flip] = []
    counts = {"lost": 0, "gained": 0}
    for question in questions:
        if question.task.kind != "accuracy":
            continue
        name = question.spec.name
        ours = _by_item(data, baseline.name, name)
        theirs = _by_item(data, candidate.name, name)
        shown = {"lost": 0, "gained": 0}
        for item in question.items:
            if item.id not in ours or item.id not in theirs:
                continue
            change = _mean(theirs[item.id]) - _mean(ours[item.id])
            if change == 0.0:
                continue
            direction = "lost" if change < 0.0 else "gained"
            counts[direction] += 1
            shown[direction] += 1
            if shown[direction] <= SHOWN_PER_DIRECTION:
                (lost if direction == "lost" else gained).append(
                    _flip(item, direction, ours[item.id], theirs[item.id])
                )
    return Flips(lost=counts["lost"], gained=counts["gained"], shown=(*lost, *gained))


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


def _flip(item: TaskItem, direction: str, baseline: list[_Answer], candidate: list[_Answer]) -> Flip:
    """Of repeated answers, the two that show the change best."""
    best, worst = (max, min) if direction == "lost" else (min, max)
    one = best(baseline, key=_value)
    other = worst(candidate, key=_value)
    return Flip(
        task=item.task,
        item_id=item.id,
        direction=direction,
        prompt=Excerpt.of(prompt_text(item)),
        target=Excerpt.of(item.target),
        baseline=_answer(*one),
        candidate=_answer(*other),
        baseline_finish=_finish(one[0]),
        candidate_finish=_finish(other[0]),
    )


def _value(answer: _Answer) -> float:
    return answer[1].value or 0.0


def prompt_text(item: TaskItem) -> str:
    """What an item asks, as text."""
    for key in ("question", "context", "prompt"):
        value = item.inputs.get(key)
        if isinstance(value, str):
            return value
    return json.dumps(dict(item.inputs), ensure_ascii=False)


def _answer(sample: Sample, score: Score) -> Excerpt | None:
    """What was read as the answer; the whole last reply where the grader extracted nothing."""
    if score.extracted is not None:
        return Excerpt.of(score.extracted)
    text = sample.outputs[-1].text if sample.outputs else None
    return None if text is None else Excerpt.of(text)


def _finish(sample: Sample) -> str:
    return sample.outputs[-1].finish_reason if sample.outputs else ""
