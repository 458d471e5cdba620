"""What a report shows of the two replies behind a flip: excerpts, and where they first differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from equipoise.evals.types import Output, Sample, Score, ScoreStatus, ToolCall
from equipoise.reports.model import Excerpt, FirstDifference, LogprobTrace, Reply

__all__ = ["Answer", "first_difference", "reply"]

TRACE_BEFORE, TRACE_AFTER = 12, 20  # tokens around the first that differs


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One scored sample; ``outputs`` are its replies with thinking and answer apart."""

    sample: Sample
    score: Score
    outputs: Sequence[Output]


def reply(answer: Answer, difference: FirstDifference | None, max_chars: int) -> Reply | None:
    """The last reply in excerpts of ``max_chars``, around the first difference if it is in that reply."""
    if not answer.outputs:
        return None
    last = answer.outputs[-1]
    here = difference if difference is not None and difference.turn == len(answer.outputs) else None

    def excerpt(part: str, text: str | None, chars: int) -> Excerpt | None:
        around = here.char if here is not None and here.part == part else 0
        return None if text is None else Excerpt.of(text, chars, around=around)

    return Reply(
        text=excerpt("answer", last.text, max_chars),
        thinking=excerpt("thinking", last.reasoning or None, max_chars // 2),
        tool_calls=excerpt("tool calls", _calls_text(last.tool_calls), max_chars // 2),
        score=answer.score.value,
        truncated=answer.score.status is ScoreStatus.TRUNCATED or last.finish_reason == "length",
        tokens=last.completion_tokens,
        turns=len(answer.outputs),
    )


def first_difference(baseline: Sequence[Output], candidate: Sequence[Output]) -> FirstDifference | None:
    """Where the replies of the two arms first differ; None if nothing that they say does."""
    for turn, (ours, theirs) in enumerate(zip(baseline, candidate, strict=False), start=1):
        for (part, one), (_, other) in zip(_parts(ours), _parts(theirs), strict=True):
            if one != other:
                token = _first(ours.token_ids, theirs.token_ids)
                if token is None:
                    token = _first(ours.output_tokens, theirs.output_tokens)
                return FirstDifference(
                    part=part,
                    char=_first(one or "", other or "") or 0,
                    token=token,
                    turn=turn,
                    trace=None if token is None else _trace(ours, theirs, token),
                )
    if len(baseline) != len(candidate) and baseline and candidate:
        return FirstDifference(part="answer", char=0, turn=min(len(baseline), len(candidate)) + 1)
    return None


def _parts(output: Output) -> tuple[tuple[str, str | None], ...]:
    """In the order in which a model writes them."""
    return (
        ("thinking", output.reasoning),
        ("answer", output.text),
        ("tool calls", _calls_text(output.tool_calls)),
    )


def _calls_text(calls: Sequence[ToolCall] | None) -> str | None:
    return None if calls is None else "\n".join(f"{call.name}({call.arguments})" for call in calls)


def _first(one: Sequence[object] | None, other: Sequence[object] | None) -> int | None:
    """The first index at which two sequences differ; where one is a start of the other, its length."""
    if one is None or other is None:
        return None
    missing = object()
    pairs = enumerate(zip_longest(one, other, fillvalue=missing))
    return next((i for i, (a, b) in pairs if a != b), None)


def _trace(ours: Output, theirs: Output, token: int) -> LogprobTrace | None:
    """The logprobs around a token, where the run recorded them."""
    if ours.output_logprobs is None or theirs.output_logprobs is None:
        return None
    start = max(token - TRACE_BEFORE, 0)
    window = slice(start, token + TRACE_AFTER)
    return LogprobTrace(
        start=start,
        baseline=ours.output_logprobs[window],
        candidate=theirs.output_logprobs[window],
        baseline_tokens=_names(ours)[window],
        candidate_tokens=_names(theirs)[window],
    )


def _names(output: Output) -> tuple[str, ...]:
    """The tokens as text, else their ids."""
    return output.output_tokens or tuple(f"id {token}" for token in output.token_ids or ())
