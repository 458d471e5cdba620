"""The JSON report's schema (2020-12), made from the dataclasses that the report is made of.

It describes what this version writes: every field is there, no other is, and the closed words are listed.
Reading is wider than that: `json.load` takes older files too.
"""

import dataclasses
import json
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from equipoise.reports.model import SCHEMA_VERSION, Report
from equipoise.reports.node import Node
from equipoise.reports.vocabulary import (
    CONTROL_STRENGTHS,
    EXIT_CODES,
    FLIP_DIRECTIONS,
    KINDS,
    REPLY_PARTS,
    STATES,
    SUITE_VERDICTS,
    TASK_VERDICTS,
)

__all__ = ["WORDS", "render", "schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: Fields that hold a word of a closed list; of a mapping, its values do.
WORDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("Run", "state"): STATES,
    ("Run", "kind"): KINDS,
    ("Run", "verdict"): SUITE_VERDICTS,
    ("ModelReport", "verdict"): SUITE_VERDICTS,
    ("ModelReport", "worst_case_verdict"): TASK_VERDICTS,
    ("TaskRow", "verdict"): TASK_VERDICTS,
    ("TaskRow", "worst_case_verdict"): TASK_VERDICTS,
    ("PooledRow", "verdict"): TASK_VERDICTS,
    ("Control", "strength"): CONTROL_STRENGTHS,
    ("Control", "task_verdicts"): TASK_VERDICTS,
    ("Flip", "direction"): FLIP_DIRECTIONS,
    ("FirstDifference", "part"): REPLY_PARTS,
}
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
_WHY = "null: undefined or not measured; `undefined` of this object says why where there is a reason"


def render() -> str:
    """The schema as it is published: ASCII, indented, ending with a newline."""
    return json.dumps(schema(), indent=1) + "\n"


def schema() -> dict[str, Any]:
    """The schema of a report as JSON values."""
    parts: dict[str, Any] = {}
    _add(Report, parts)
    parts["Run"]["oneOf"] = _decisions()
    # The encoder leaves the word out of a report that may never use it.
    parts["Run"]["required"].remove("indistinguishable")
    parts["Run"]["if"] = {"properties": {"eligible_for_sign_off": {"const": True}}}
    parts["Run"]["then"] = {"required": ["indistinguishable"]}
    parts["Report"]["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {
        "$schema": DIALECT,
        "$id": f"urn:equipoise:report:{SCHEMA_VERSION}",
        "title": f"Equipoise report, schema version {SCHEMA_VERSION}",
        "description": "Fractions are fractions (0.05, never 5); delta = candidate - baseline, higher is "
        "better; negative log-likelihoods are in nats a token, lower is better; times are UTC, ISO 8601.",
        "$ref": "#/$defs/Report",
        "$defs": dict(sorted(parts.items())),
    }


def _decisions() -> list[dict[str, Any]]:
    """State, verdict and exit code go together."""
    final = [
        {
            "properties": {
                "state": {"const": "final"},
                "verdict": {"const": word},
                "exit_code": {"const": code},
            }
        }
        for word, code in EXIT_CODES.items()
    ]
    rest = {
        "state": {"enum": [s for s in STATES if s != "final"]},
        "verdict": {"type": "null"},
        "exit_code": {"not": {"const": 0}},
    }
    return [*final, {"properties": rest}]


def _add(kind: type[Node], parts: dict[str, Any]) -> None:
    """Describe a part and all that it is made of, once."""
    if kind.__name__ in parts:
        return
    parts[kind.__name__] = {}  # taken, so that a part may hold parts of its own kind
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]  # every Node is a dataclass
    properties = {name: _of(hints[name], WORDS.get((kind.__name__, name)), parts) for name in names}
    if "undefined" in names:
        for name, described in properties.items():
            if _is_nullable(hints[name]):
                described["description"] = _WHY
        properties["undefined"]["description"] = "by field, why it is null"
        properties["undefined"]["propertyNames"] = {"enum": names}
    parts[kind.__name__] = {
        "description": " ".join((kind.__doc__ or "").split()),
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


def _is_nullable(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _of(hint: Any, words: tuple[str, ...] | None, parts: dict[str, Any]) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        (inner,) = (arg for arg in args if arg is not type(None))
        return _or_null(_of(inner, words, parts))
    if origin is tuple:
        return {"type": "array", "items": _of(args[0], words, parts)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _of(args[1], words, parts)}
    if words is not None:
        return {"enum": list(words)}
    if issubclass(hint, Node):
        _add(hint, parts)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": _PLAIN[hint]}


def _or_null(described: dict[str, Any]) -> dict[str, Any]:
    if "enum" in described:
        return {"enum": [*described["enum"], None]}
    if isinstance(described.get("type"), str):
        return described | {"type": [described["type"], "null"]}
    return {"anyOf": [described, {"type": "null"}]}
