"""Replies handed to lm-eval's own filters and ``process_results``.

What lm-eval does not look at is settled before: a reply cut off at the budget, null content, a continuation
without logprobs. Greedy is what the server's first choices say, token by token.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from equipoise.evals.types import Output, Sample, Score, ScoreStatus
from equipoise.tasks.chat import settled_score
from equipoise.tasks.lm_eval.asking import Ask, Step
from equipoise.tasks.lm_eval.loading import Leaf, is_score
from equipoise.tasks.loglikelihood import Continuation, continuation_logprob

__all__ = ["judge"]

MAX_REPLY_CHARS = 1 << 20
NOTHING_FOUND = "[invalid]"  # lm-eval's regex filters, where nothing matches
_Reply = str | tuple[float, bool]


def judge(
    leaf: Leaf,
    index: int,
    asks: Sequence[Ask],
    steps: Sequence[Step],
    sample: Sample,
    *,
    score_truncated: bool = False,
) -> Score:
    """The score of one sample of document ``index``; never raises.

    Parameters
    ----------
    score_truncated : bool
        Judge a reply that was cut off as it stands (as lm-eval does) instead of calling it wrong.
    """
    if sample.error is not None:
        return _errored(sample.error)
    if len(sample.outputs) != len(steps):
        return _errored(f"{len(sample.outputs)} of {len(steps)} replies")
    replies: list[list[_Reply]] = [[] for _ in asks]
    cached: list[int | None] = []
    for step, output in zip(steps, sample.outputs, strict=True):
        if step.warms:
            continue
        reply: _Reply | Score
        if step.warm is not None:
            scored = continuation_logprob(sample.outputs[step.warm], output)
            if not isinstance(scored, Continuation):
                return _errored(scored)
            reply = (scored.logprob, scored.is_greedy)
            cached.append(scored.cached_tokens)
        else:
            reply = _text(sample, output, score_truncated)
            if isinstance(reply, Score):
                return reply
        replies[step.ask].append(reply)
    known = [c for c in cached if c is not None]
    return replace(
        _judged(leaf, index, asks, replies),
        cached_tokens=min(known) if known and len(known) == len(cached) else None,
    )


def _text(sample: Sample, output: Output, score_truncated: bool) -> str | Score:
    if score_truncated and output.finish_reason == "length" and output.text is not None:
        return output.text[:MAX_REPLY_CHARS]
    settled = settled_score(replace(sample, outputs=(output,)))
    if isinstance(settled, Score):
        return settled
    assert settled.text is not None, "settled_score lets no null content through"
    return settled.text[:MAX_REPLY_CHARS]


def _judged(leaf: Leaf, index: int, asks: Sequence[Ask], replies: Sequence[list[_Reply]]) -> Score:
    from lm_eval.api.instance import Instance

    doc = leaf.docs[index]
    instances = [
        Instance(
            request_type=ask.kind,
            doc=doc,
            arguments=(ask.prompt, ask.second),
            idx=i,
            metadata=(leaf.name, index, len(replies[i])),
            resps=list(replies[i]),
        )
        for i, ask in enumerate(asks)
    ]
    try:
        leaf.task._instances = instances
        leaf.task.apply_filters()
        filtered = [instance.filtered_resps[leaf.filter] for instance in instances]
        results: dict[str, Any] = leaf.task.process_results(doc, filtered)
    except Exception as e:  # noqa: BLE001  lm-eval's code on a model's text: an error, not an answer
        return _errored(f"lm-eval's scoring failed: {type(e).__name__}: {str(e)[:200]}")
    value = results.get(leaf.metric)
    if not is_score(value):
        return _errored(f"lm-eval's metric {leaf.metric} is {str(value)[:40]!r}, no number in [0, 1]")
    assert value is not None, "is_score"
    return Score(value=float(value), status=ScoreStatus.SCORED, extracted=_extracted(asks, replies, filtered))


def _extracted(asks: Sequence[Ask], replies: Sequence[list[_Reply]], filtered: Sequence[Any]) -> str | None:
    if asks[0].kind == "generate_until":
        found = filtered[0][0] if isinstance(filtered[0], list) and filtered[0] else filtered[0]
        return None if found is None or found == NOTHING_FOUND else str(found)[:2000]
    scored = [(r[0], i) for i, group in enumerate(replies) for r in group if not isinstance(r, str)]
    if len(scored) == 1:
        return "as predicted" if replies[0][0][1] else "another text"
    best = max(scored)[1] if scored else 0
    same = len({str(ask.second) for ask in asks}) == 1  # the choices are in the prompts
    return (asks[best].prompt if same else str(asks[best].second)).strip()[-200:]


def _errored(reason: str) -> Score:
    return Score(value=None, status=ScoreStatus.ERRORED, reason=reason)
