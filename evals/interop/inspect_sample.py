"""One sample of an inspect log as an answer.

A sample (one item, one epoch)::

    {"id": "q0", "epoch": 1, "input": "What is 0+1?", "target": "1", "messages": [...],
     "output": {"choices": [{"message": {...}, "stop_reason": "stop"}], "completion": "1", "usage": {...}},
     "scores": {"match": {"value": "C", "answer": "1"}}, "error": null, "limit": null, ...}

A sample with an error, a time limit or an operator's limit is errored; one that met its token, context,
message, turn or cost limit, or ended with ``max_tokens``, is truncated; ``content_filter`` is refused; an
empty answer that scored 0 is errored. Samples that our own export wrote say all that themselves, under
``equipoise`` of their metadata.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.columns import as_text, cluster_of, identifier, token_count
from equipoise.evals.interop.own_rows import EXTRAS, with_extras
from equipoise.evals.interop.result_set import ItemResult, excerpt, short_id
from equipoise.evals.interop.scores import INSPECT_WORDS, ScoreError, to_score
from equipoise.evals.types import ScoreStatus

__all__ = ["mapping", "read_sample"]

_TRUNCATING_LIMITS = frozenset({"token", "context", "message", "turn", "cost"})
_TRUNCATED_STOPS = frozenset({"max_tokens", "model_length"})


def read_sample(
    sample: Mapping[str, Any], scorer: str | None, where: str, cluster_column: str | None
) -> ItemResult:
    """A sample of a log as an answer; ``where`` is for messages.

    Raises
    ------
    UsageError
        It has no id, an impossible epoch, no such scorer, or a value that is no score in [0, 1].
    """
    item_id = short_id(identifier(sample.get("id"), where, "sample id"))
    epoch = sample.get("epoch", 1)
    if not isinstance(epoch, int) or epoch < 1:
        raise UsageError(f"{where}: epoch {epoch!r} is not a number from 1")
    output = mapping(sample.get("output"))
    stop, answer, called_tool = _reply(output)
    extras = mapping(sample.get("metadata")).get(EXTRAS)
    status, reason = _ending(sample, stop)
    score: float | None = None
    logged: Any = None
    if status in (ScoreStatus.SCORED, ScoreStatus.TRUNCATED):
        logged, score, why = _score(sample, scorer, item_id, where)
        empty = not answer.strip() and not called_tool
        if status is ScoreStatus.SCORED and score is None:
            status, reason = ScoreStatus.ERRORED, why
        elif status is ScoreStatus.SCORED and score == 0.0 and empty:
            score, status, reason = None, ScoreStatus.ERRORED, "empty answer"
    extracted = mapping(logged).get("answer")
    tokens = mapping(output.get("usage")).get("output_tokens")
    found = ItemResult(
        item_id=item_id,
        repeat=epoch - 1,
        score=score,
        status=status,
        reason=reason,
        content_hash=_hash(sample),
        cluster_id=cluster_of(sample, cluster_column, where),
        prompt=excerpt(_input_text(sample.get("input"))),
        target=excerpt(as_text(sample.get("target"))),
        answer=excerpt(extracted if isinstance(extracted, str) and extracted else answer),
        finish_reason=stop[:40],
        completion_tokens=token_count(tokens),
    )
    if not isinstance(extras, Mapping) or sample.get("invalidation"):
        return found
    return with_extras(found, {**extras, "repeat": epoch - 1}, mapping(logged).get("value"), where)


def _reply(output: Mapping[str, Any]) -> tuple[str, str, bool]:
    """Stop reason, text, and whether the reply calls a tool."""
    choices = output.get("choices")
    first = mapping(choices[0]) if isinstance(choices, list) and choices else {}
    called = bool(mapping(first.get("message")).get("tool_calls"))
    completion = output.get("completion")
    return str(first.get("stop_reason") or ""), completion if isinstance(completion, str) else "", called


def _ending(sample: Mapping[str, Any], stop: str) -> tuple[ScoreStatus, str]:
    """How the sample ended, before its score is looked at."""
    error = sample.get("error")
    if error:
        return ScoreStatus.ERRORED, "sample error"
    if sample.get("invalidation"):
        return ScoreStatus.ERRORED, "sample was invalidated"
    limit = mapping(sample.get("limit"))
    kind = str(limit.get("type")) if limit else ""
    if kind in _TRUNCATING_LIMITS or stop in _TRUNCATED_STOPS:
        return ScoreStatus.TRUNCATED, f"{kind} limit" if kind else stop
    if kind:
        return ScoreStatus.ERRORED, f"{kind} limit"
    if stop == "content_filter":
        return ScoreStatus.REFUSED, "content filter"
    return ScoreStatus.SCORED, ""


def _score(
    sample: Mapping[str, Any], scorer: str | None, item_id: str, where: str
) -> tuple[Any, float | None, str]:
    """The logged score object, its value as a number, and why there is none."""
    scores = sample.get("scores")
    if not isinstance(scores, Mapping) or not scores or scorer is None:
        return None, None, "no score"
    name, key = scorer, None
    if scorer not in scores and "." in scorer:
        name, _, key = scorer.rpartition(".")
    if name not in scores:
        raise UsageError(f"{where}: no scorer {name!r}; there are {', '.join(scores)} (--metric)")
    logged = scores[name]
    value = mapping(logged).get("value")
    if key is not None:
        if not isinstance(value, Mapping) or key not in value:
            raise UsageError(f"{where}: the value of scorer {name!r} has no key {key!r} (--metric)")
        value = value[key]
    elif isinstance(value, Mapping):
        raise UsageError(
            f"{where}: scorer {name!r} gives several values; choose one, e.g. "
            f"--metric {name}.{next(iter(value), 'KEY')}"
        )
    try:
        score, why = to_score(value, INSPECT_WORDS)
    except ScoreError as e:
        raise UsageError(
            f"{where}: item {item_id!r}, scorer {name!r}: {e}; choose another with --metric"
        ) from e
    return logged, score, why


def mapping(value: Any) -> Mapping[str, Any]:
    """``value`` if it is an object; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _hash(sample: Mapping[str, Any]) -> str:
    """Of the input and the choices, and of the target. Message ids are new in every run: left out."""
    asked = json.dumps([_plain(sample.get("input")), sample.get("choices")], sort_keys=True)
    target = json.dumps(sample.get("target"), sort_keys=True)
    digests = (sha256(text.encode()).hexdigest()[:16] for text in (asked, target))
    return "input {} target {}".format(*digests)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [
            {k: v for k, v in m.items() if k not in ("id", "source", "model")}
            if isinstance(m, Mapping)
            else m
            for m in value
        ]
    return value


def _input_text(value: Any) -> str | None:
    if isinstance(value, list):
        texts = [as_text(m.get("content")) or "" for m in value if isinstance(m, Mapping)]
        return "\n".join(texts)
    return as_text(value)
