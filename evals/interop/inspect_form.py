"""One answer in the form of a sample of an inspect log; `inspect_export` writes them.

Text is data and stays as it is, but lone surrogates are escaped: no reader could decode them.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from equipoise.evals.interop.own_rows import EXTRAS
from equipoise.evals.types import ScoreStatus

__all__ = ["InspectSample", "Usage", "digest", "plain", "sample_form", "sample_id", "summary_form", "utc"]

MAX_SUMMARY_CHARS = 1_024  # of a text in the summaries, which viewers list before they open a sample
MAX_ID_CHARS = 120
_SAFE_ID = re.compile(r"[\w.,:;+=@#!()\[\] -]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens over all requests of a sample; ``cached`` is None where the server does not tell."""

    prompt: int
    completion: int
    cached: int | None = None

    def form(self) -> dict[str, int]:
        """As inspect writes it: cached tokens are not among the input tokens."""
        found = {"input_tokens": self.prompt - (self.cached or 0), "output_tokens": self.completion}
        found["total_tokens"] = self.prompt + self.completion
        return found if self.cached is None else found | {"input_tokens_cache_read": self.cached}


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectSample:
    """One answer. Messages are JSON objects in inspect's form; the last one is the reply.

    ``extras`` are the facts that `with_extras` reads back. ``refusal`` is what a server said that would not
    answer; an answer has a ``score``, an ``error``, a ``refusal``, or was truncated.
    """

    item_id: str
    repeat: int
    input: str | Sequence[Mapping[str, Any]]
    choices: Sequence[str]
    target: str
    messages: Sequence[Mapping[str, Any]]
    completion: str
    finish_reason: str
    status: ScoreStatus
    score: float | None
    extracted: str | None
    error: str | None
    refusal: str | None
    usage: Usage | None
    started_unix_s: float
    latency_s: float
    extras: Mapping[str, Any] = field(default_factory=dict)


def sample_form(sample: InspectSample, *, model: str, scorer: str, log_id: str) -> dict[str, Any]:
    """As inspect writes it, in JSON values that every reader takes."""
    stop = {"length": "max_tokens", "abort": "unknown"}.get(sample.finish_reason, sample.finish_reason)
    if sample.status is ScoreStatus.TRUNCATED:
        stop = "max_tokens"
    elif sample.status is ScoreStatus.REFUSED:
        stop = "content_filter"
    elif stop not in ("stop", "max_tokens", "tool_calls", "content_filter"):
        stop = "unknown"
    usage = {} if sample.usage is None else {"usage": sample.usage.form()}
    reply = sample.messages[-1] if sample.messages else {"role": "assistant", "content": ""}
    refused = {} if sample.refusal is None else {"error": sample.refusal}
    found: dict[str, Any] = {
        "id": sample_id(sample.item_id),
        "epoch": sample.repeat + 1,
        "input": sample.input,
        "target": sample.target,
        "messages": list(sample.messages),
        "output": {
            "model": model,
            "choices": [{"message": reply, "stop_reason": stop}],
            "completion": sample.completion,
            **usage,
            "time": sample.latency_s,
            **refused,
        },
        "scores": {scorer: {"value": sample.score, "answer": sample.extracted}}
        if sample.score is not None
        else None,
        "metadata": {EXTRAS: {"status": sample.status.value, "repeat": sample.repeat, **sample.extras}},
        "store": {},
        "events": [],
        "model_usage": {model: usage["usage"]} if usage else {},
        "attachments": {},
        "started_at": utc(sample.started_unix_s),
        "completed_at": utc(sample.started_unix_s + sample.latency_s),
        "total_time": sample.latency_s,
        "uuid": digest(log_id, sample.item_id, str(sample.repeat)),
        "error": None
        if sample.error is None
        else {"message": sample.error, "traceback": sample.error, "traceback_ansi": sample.error},
    }
    if sample.choices:
        found["choices"] = list(sample.choices)
    form: dict[str, Any] = plain(found)
    return form


def sample_id(item_id: str) -> str:
    """An id that can name a member of a zip file; others keep their letters and get a digest."""
    if len(item_id) <= MAX_ID_CHARS and _SAFE_ID.fullmatch(item_id) and not item_id.startswith("."):
        return item_id
    letters = re.sub(r"[^\w.-]+", "_", item_id[: MAX_ID_CHARS - 20], flags=re.ASCII).lstrip(".")
    return f"{letters}~{digest(item_id)[:16]}"


def summary_form(form: Mapping[str, Any]) -> dict[str, Any]:
    """What inspect's list of samples shows."""
    asked = form["input"] if isinstance(form["input"], str) else form["input"][-1].get("content")
    scores = {
        name: {"value": score["value"], "answer": _short(score["answer"])}
        for name, score in (form["scores"] or {}).items()
    }
    kept = ("id", "epoch", "model_usage", "started_at", "completed_at", "total_time", "uuid")
    return {
        **{name: form[name] for name in kept},
        "input": _short(asked if isinstance(asked, str) else json.dumps(asked)),
        "target": _short(form["target"]),
        "scores": scores or None,
        "error": _short(form["error"]["message"]) if form["error"] else None,
        "metadata": {"status": form["metadata"][EXTRAS]["status"]},
        "completed": True,
        "message_count": len(form["messages"]),
    }


def _short(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_SUMMARY_CHARS:
        return text
    return f"{text[: MAX_SUMMARY_CHARS - 3]}..."


def plain(value: Any) -> Any:
    """JSON values that every reader takes: no lone surrogates, no numbers that are not finite."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {plain(str(k)): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def utc(unix_s: float) -> str:
    """ISO 8601, to the millisecond."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


def digest(*parts: str) -> str:
    """22 letters and digits, as long as inspect's ids."""
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:22]
