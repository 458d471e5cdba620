"""The flips as the page's script reads them: strings already made safe to show, cut, numbers in words."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.reports.escape import clean
from equipoise.reports.flips import Excerpt, FirstDifference, Flip, Reply
from equipoise.reports.format import count, nats, plain_score

__all__ = ["Split", "record", "split"]

MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Records as JSON text: those for the page, those for a file beside it; ``left_out`` fit neither."""

    page: tuple[str, ...]
    beside: tuple[str, ...]
    left_out: int


def split(flips: Mapping[str, Iterable[Flip]], *, page_bytes: int, beside_bytes: int) -> Split:
    """Fill the page, then the file beside it; each task and direction gets its turn, so that none is missing.

    Parameters
    ----------
    flips
        By model. Read once.
    page_bytes, beside_bytes
        Most bytes of JSON in each.
    """
    inside: list[str] = []
    beside: list[str] = []
    left_out = 0
    rooms = [page_bytes, beside_bytes]
    for model, flip in _in_turn(flips):
        text = _json(record(model, flip))
        size = len(text.encode()) + 2  # a comma and a line's end
        if size <= rooms[0] and not beside:
            rooms[0] -= size
            inside.append(text)
        elif size <= rooms[1]:
            rooms[1] -= size
            beside.append(text)
        else:
            left_out += 1
    return Split(page=tuple(inside), beside=tuple(beside), left_out=left_out)


def _in_turn(flips: Mapping[str, Iterable[Flip]]) -> Iterator[tuple[str, Flip]]:
    """The first flip of every model, task and direction, then the second of each, and so on."""
    groups: dict[tuple[str, str, str], list[Flip]] = {}
    for model, found in flips.items():
        for flip in found:
            groups.setdefault((model, flip.task, flip.direction), []).append(flip)
    for i in range(max(map(len, groups.values()), default=0)):
        yield from ((model, group[i]) for (model, _, _), group in groups.items() if i < len(group))


def _json(value: object) -> str:
    """On one line, and with nothing in it that could end a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def record(model: str, flip: Flip) -> dict[str, Any]:
    """One flip as plain JSON values."""
    return {
        "model": _name(model),
        "task": _name(flip.task),
        "id": _name(flip.item_id),
        "lost": flip.direction == "lost",
        "prompt": _text(flip.prompt),
        "target": _text(flip.target),
        "baseline": _side(flip.baseline, flip.baseline_finish, flip.baseline_reply, flip.difference),
        "candidate": _side(flip.candidate, flip.candidate_finish, flip.candidate_reply, flip.difference),
        "differs": None if flip.difference is None else _difference(flip.difference),
    }


def _name(text: str) -> str:
    return clean(text[:MAX_NAME_CHARS], keep="")


def _side(
    read: Excerpt | None, finish: str, reply: Reply | None, difference: FirstDifference | None
) -> dict[str, Any]:
    side: dict[str, Any] = {"read": _text(read), "finish": _name(finish)}
    if reply is None:
        return side
    here = difference if difference is not None and difference.turn == reply.turns else None

    def part(name: str, excerpt: Excerpt | None) -> list[Any] | None:
        return _text(excerpt, here.char if here is not None and here.part == name else None)

    return side | {
        "text": part("answer", reply.text),
        "thinking": part("thinking", reply.thinking),
        "calls": part("tool calls", reply.tool_calls),
        "score": plain_score(reply.score),
        "truncated": reply.truncated,
        "tokens": count(reply.tokens),
        "turns": reply.turns,
    }


def _text(excerpt: Excerpt | None, at: int | None = None) -> list[Any] | None:
    """[characters before, text up to the first difference, the rest, characters after]."""
    if excerpt is None:
        return None
    cut = len(excerpt.text) if at is None else min(max(at - excerpt.start, 0), len(excerpt.text))
    after = excerpt.chars - excerpt.start - len(excerpt.text)
    parts = [clean(part, keep="\n\t") for part in (excerpt.text[:cut], excerpt.text[cut:])]
    return [excerpt.start, *parts, after]


def _difference(difference: FirstDifference) -> dict[str, Any]:
    trace = difference.trace
    said: dict[str, Any] = {
        "part": difference.part,
        "char": count(difference.char),
        "token": None if difference.token is None else count(difference.token),
        "turn": difference.turn,
    }
    if trace is not None and difference.token is not None:
        said["trace"] = {
            "start": trace.start,
            "at": difference.token - trace.start,
            "baseline": _numbers(trace.baseline, trace.baseline_tokens),
            "candidate": _numbers(trace.candidate, trace.candidate_tokens),
        }
    return said


def _numbers(logprobs: Sequence[float], tokens: Sequence[str]) -> list[list[str]]:
    """[logprob in words, the token] of each token."""
    known = [*tokens, *[""] * (len(logprobs) - len(tokens))]
    return [[nats(logprob), _name(token)] for logprob, token in zip(logprobs, known, strict=False)]
