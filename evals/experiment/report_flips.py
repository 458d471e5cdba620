"""The answers that changed: what the report shows of the pairs that only one arm got right."""

import json
from collections.abc import Sequence

from equipoise.evals.experiment.questions import Question
from equipoise.evals.experiment.scored import ModelSamples
from equipoise.evals.plan import Plan
from equipoise.evals.types import ArmRole, Sample, Score, TaskItem
from equipoise.reports.model import Excerpt, Flip, Flips

__all__ = ["flips_of"]

SHOWN_PER_DIRECTION = 20  # of each task


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
            (one, one_score), (other, other_score) = ours[item.id], theirs[item.id]
            if one_score.value is None or other_score.value is None or one_score.value == other_score.value:
                continue
            direction = "lost" if one_score.value > other_score.value else "gained"
            counts[direction] += 1
            shown[direction] += 1
            if shown[direction] <= SHOWN_PER_DIRECTION:
                (lost if direction == "lost" else gained).append(
                    _flip(item, direction, (one, one_score), (other, other_score))
                )
    return Flips(lost=counts["lost"], gained=counts["gained"], shown=(*lost, *gained))


def _by_item(data: ModelSamples, arm: str, task: str) -> dict[str, tuple[Sample, Score]]:
    scores = {s.key: s.score for s in data.scored[arm, task]}
    return {s.key.item_id: (s, scores[s.key]) for s in data.samples[arm, task] if s.key in scores}


def _flip(
    item: TaskItem, direction: str, baseline: tuple[Sample, Score], candidate: tuple[Sample, Score]
) -> Flip:
    return Flip(
        task=item.task,
        item_id=item.id,
        direction=direction,
        prompt=Excerpt.of(_prompt(item)),
        target=Excerpt.of(item.target),
        baseline=_answer(*baseline),
        candidate=_answer(*candidate),
        baseline_finish=_finish(baseline[0]),
        candidate_finish=_finish(candidate[0]),
    )


def _prompt(item: TaskItem) -> str:
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
