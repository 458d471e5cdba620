"""Tool calls that came as text, because the server has no parser for the model's own form.

Known forms: Kimi's ``<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{}<|tool_call_end|>``,
GLM's ``<tool_call>NAME <arg_key>..</arg_key><arg_value>..</arg_value></tool_call>``, the same tag around
JSON, and plain JSON ``{"name": ..., "arguments": {...}}`` (or a list of those), perhaps in a code fence.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from equipoise.evals.types import ToolCall
from equipoise.tasks.graders.json_text import parse_json

__all__ = ["AS_TEXT", "calls_in_text"]

AS_TEXT = "as text: the server has no tool parser"
MAX_CALLS = 1024
_MAX_CHARS = 1 << 20
_KIMI = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
_KIMI_NAME = re.compile(r"(?:functions\.)?([^\s:]{1,200})(?::\d{1,9})?\s*")
_TAG = ("<tool_call>", "</tool_call>")
_KEY, _VALUE = ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>")
_FENCE = re.compile(r"```(?:json)?\s*\n?(.*?)```", re.DOTALL | re.IGNORECASE)


def calls_in_text(text: str, types: Mapping[str, Mapping[str, str]]) -> tuple[ToolCall, ...]:
    """The calls that a text holds, empty if it holds none.

    Parameters
    ----------
    types : mapping
        Of a tool's name (on the wire) to its parameters' JSON types: in GLM's form a string stands unquoted.
    """
    text = text[:_MAX_CHARS]
    for read in (_kimi, lambda t: _tagged(t, types), _plain):
        found = tuple(call for call, _ in zip(read(text), range(MAX_CALLS), strict=False))
        if found:
            return found
    return ()


def _between(text: str, opening: str, closing: str) -> Iterator[str]:
    """What stands between two marks; what is never closed reaches to the end."""
    at = text.find(opening)
    while at >= 0:
        begin = at + len(opening)
        end = text.find(closing, begin)
        yield text[begin : end if end >= 0 else len(text)]
        at = text.find(opening, end) if end >= 0 else -1


def _kimi(text: str) -> Iterator[ToolCall]:
    for body in _between(text, _KIMI[0], _KIMI[2]):
        head, _, arguments = body.partition(_KIMI[1])
        name = _KIMI_NAME.fullmatch(head.strip())
        yield ToolCall(
            name=name[1] if name else head.strip()[:200], arguments=arguments.strip(), id=head.strip()
        )


def _tagged(text: str, types: Mapping[str, Mapping[str, str]]) -> Iterator[ToolCall]:
    for body in _between(text, *_TAG):
        if body.lstrip().startswith("{"):
            yield from _plain(body)
            continue
        head, key, rest = body.partition(_KEY[0])
        name = head.strip()[:200]
        keys = [k.strip() for k in _between(key + rest, *_KEY)]
        values = list(_between(key + rest, *_VALUE))
        arguments = {k: _value(v, types.get(name, {}).get(k)) for k, v in zip(keys, values, strict=False)}
        whole = len(keys) == len(values) == len(arguments)
        yield ToolCall(name=name, arguments=json.dumps(arguments) if whole else rest)


def _value(text: str, declared: str | None) -> Any:
    if declared == "string":
        return text
    try:
        return parse_json(text)
    except ValueError:
        return text


def _plain(text: str) -> Iterator[ToolCall]:
    stripped = text.strip()
    fenced = _FENCE.fullmatch(stripped) if stripped.startswith("```") else None
    try:
        value = parse_json(fenced[1] if fenced else stripped)
    except ValueError:
        return
    calls = [_call(row) for row in (value if isinstance(value, list) else [value])]
    if all(calls):
        yield from (call for call in calls if call)


def _call(row: Any) -> ToolCall | None:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return None
    given = [row[k] for k in ("arguments", "parameters") if k in row]
    if len(given) != 1 or not isinstance(given[0], dict | str):
        return None
    return ToolCall(
        name=row["name"], arguments=given[0] if isinstance(given[0], str) else json.dumps(given[0])
    )
