"""What an answer shows beside its score: its length, whether it got stuck, whether it could be graded."""

from collections.abc import Sequence

import numpy as np

from equipoise.evals.repetition import find_repetition
from equipoise.evals.types import (
    AnswerFacts,
    ArmAnswers,
    FloatArray,
    Sample,
    Score,
    ScoreStatus,
    TaskItem,
)

__all__ = ["answer_facts", "arm_answers", "prompt_tokens", "strata_of"]

_Rows = Sequence[Sequence[tuple[Score, AnswerFacts]]]  # [n, repeats]


def answer_facts(item: TaskItem, sample: Sample) -> AnswerFacts:
    """Facts of one sample over all its turns, thinking included; nothing is known of one without a reply.

    Where the requests scored a given text, nothing of what came back is an answer of the model's own.
    """
    if sample.error is not None or not sample.outputs:
        return AnswerFacts()
    outputs = sample.outputs
    prompt_tokens = max(o.prompt_tokens for o in outputs)
    if any(o.prompt_logprobs is not None for o in outputs):
        return AnswerFacts(prompt_tokens=prompt_tokens)
    loops = (
        find_repetition(
            part,
            token_ids=o.token_ids,
            truncated=o.finish_reason == "length",
            expected=item.target,
        )
        for o in outputs
        for part in ((o.text or "",) if o.reasoning is None else (o.reasoning, o.text or ""))
    )
    return AnswerFacts(
        prompt_tokens=prompt_tokens,
        completion_tokens=sum(o.completion_tokens for o in outputs),
        degenerate=any(loop is not None for loop in loops),
    )


def arm_answers(rows: _Rows, shape: tuple[int, int], *, extracts: bool) -> ArmAnswers:
    """One arm's facts as arrays of ``shape``; a task that extracts nothing anywhere cannot fail to."""
    flat = [answer for row in rows for answer in row]
    tokens = [facts.completion_tokens for _, facts in flat]
    degenerate = [facts.degenerate for _, facts in flat]
    unextracted = [score.status is ScoreStatus.SCORED and score.extracted is None for score, _ in flat]
    return ArmAnswers(
        completion_tokens=None
        if all(t is None for t in tokens)
        else np.array(tokens, dtype=np.float64).reshape(shape),
        unextracted=np.array(unextracted, dtype=np.bool_).reshape(shape) if extracts else None,
        degenerate=None
        if any(d is None for d in degenerate)
        else np.array(degenerate, dtype=np.bool_).reshape(shape),
    )


def prompt_tokens(rows: _Rows) -> FloatArray | None:
    """Prompt tokens of each item's first answer, [n]; NaN where not known, None if nowhere."""
    tokens = [row[0][1].prompt_tokens for row in rows]
    return None if all(t is None for t in tokens) else np.array(tokens, dtype=np.float64)


def strata_of(items: Sequence[TaskItem]) -> dict[str, tuple[str, ...]]:
    """Name of each stratification -> the items' labels; "" where an item has none."""
    names = sorted({name for item in items for name in item.strata})
    return {name: tuple(item.strata.get(name, "") for item in items) for name in names}
