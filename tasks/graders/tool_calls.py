"""Tool calls against possible answers, as the Berkeley Function-Calling Leaderboard checks them.

A possible answer is ``{function: {parameter: [allowed values]}}``, in which "" allows the parameter to be
left out. Strings are compared without case and spaces and without the marks ``,./-_*^``; an integer will do
for a float, not the other way round; allowed dicts list the allowed values of their own fields. Unlike the
reference, ``true`` is not 1 within lists, parallel calls are matched as a whole rather than one after the
other, and no allowed value at all (in two items, which nothing could answer) stands for an empty array.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.evals.types import ToolCall
from equipoise.tasks.graders.json_text import parse_json

__all__ = ["Call", "example_of", "mismatch", "read_calls", "told", "wire_names"]

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_NOT_COMPARED = re.compile(r"[ ,./\-_*^]")
_MAX_NAME = 64
_MAX_TOLD = 200
Expected = Mapping[str, Mapping[str, Sequence[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call with its arguments read."""

    name: str
    arguments: Mapping[str, Any]


def wire_names(names: Sequence[str]) -> dict[str, str]:
    """A name for each that the API allows: letters, digits, ``_`` and ``-``, at most 64, no two alike."""
    found: dict[str, str] = {}
    for name in names:
        wire = _NOT_IN_NAMES.sub("_", name)[:_MAX_NAME]
        number = 1
        while wire in found.values():
            number += 1
            wire = f"{wire[: _MAX_NAME - 4]}_{number}"
        found[name] = wire
    return found


def read_calls(calls: Sequence[ToolCall], names: Mapping[str, str]) -> tuple[Call, ...]:
    """The calls with their arguments read and their names as the data has them.

    Parameters
    ----------
    names : mapping
        Of the data's names to those on the wire, see `wire_names`.

    Raises
    ------
    ValueError
        Arguments that are no JSON object, or beyond `parse_json`'s bounds.
    """
    back = {wire: name for name, wire in names.items()}
    found = []
    for call in calls:
        try:
            arguments = parse_json(call.arguments)
        except ValueError as e:
            raise ValueError(f"the arguments of {call.name[:_MAX_NAME]!r} are malformed: {e}") from e
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments of {call.name[:_MAX_NAME]!r} are no JSON object")
        found.append(Call(name=back.get(call.name, call.name), arguments=arguments))
    return tuple(found)


def told(calls: Sequence[ToolCall]) -> str:
    """Calls in one line, as they were sent."""
    return "; ".join(f"{c.name}({c.arguments[:_MAX_TOLD]})"[:_MAX_TOLD] for c in calls[:10])


def example_of(allowed: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Arguments that are right: the first allowed value of each parameter that has one other than ""."""
    given: dict[str, Any] = {}
    for name, values in allowed.items():
        first = [v for v in values if v != ""] or ([] if values else [[]])
        if first:
            given[name] = example_of(first[0]) if isinstance(first[0], dict) else _listed(first[0])
    return given


def _listed(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [example_of(v) if isinstance(v, dict) else _listed(v) for v in value]


def mismatch(
    calls: Sequence[Call], expected: Sequence[Expected], functions: Sequence[Mapping[str, Any]]
) -> str:
    """Why the calls are not the expected ones, in any order; empty if they are.

    Parameters
    ----------
    functions : sequence
        The definitions that were offered: name, and parameters with their types, as the data has them.
    """
    if len(calls) != len(expected):
        return f"{len(calls)} calls, expected {len(expected)}"
    parameters = {f["name"]: f["parameters"] for f in functions}
    why = [[_why_not(call, wanted, parameters) for call in calls] for wanted in expected]
    taken: dict[int, int] = {}  # call -> expected
    for number in range(len(expected)):
        if not _assign(number, why, taken, set()):
            return next((reason for reason in why[number] if reason), "two calls for one expected call")
    return ""


def _assign(number: int, why: Sequence[Sequence[str]], taken: dict[int, int], tried: set[int]) -> bool:
    """Give an expected call one of ours, moving others where needed (a bipartite matching)."""
    for call, reason in enumerate(why[number]):
        if reason or call in tried:
            continue
        tried.add(call)
        if call not in taken or _assign(taken[call], why, taken, tried):
            taken[call] = number
            return True
    return False


def _why_not(call: Call, expected: Expected, parameters: Mapping[str, Mapping[str, Any]]) -> str:
    ((name, allowed),) = expected.items()
    if call.name != name:
        return f"calls {call.name[:_MAX_NAME]!r}, expected {name!r}"
    known = parameters[name].get("properties", {})
    for parameter in parameters[name].get("required", ()):
        if parameter not in call.arguments:
            return f"{name} without the required {parameter!r}"
    for parameter, value in call.arguments.items():
        if parameter not in known or parameter not in allowed:
            return f"{name} with an unexpected {parameter[:_MAX_NAME]!r}"
        if not _is_allowed(value, allowed[parameter] or [[]], str(known[parameter].get("type", "any"))):
            return f"{name} with {parameter!r} = {repr(value)[:_MAX_TOLD]}, which is not among the allowed"
    missing = [p for p, v in allowed.items() if p not in call.arguments and v and "" not in v]
    return f"{name} without {missing[0]!r}" if missing else ""


def _is_allowed(value: Any, allowed: Sequence[Any], declared: str) -> bool:
    if declared in ("array", "tuple"):
        allowed = [[] if a == "" else a for a in allowed]  # what may be left out may be empty
    elif declared not in ("string", "any"):
        allowed = [a for a in allowed if a != ""]
    if declared == "integer" and isinstance(value, float):
        allowed = [a for a in allowed if isinstance(a, float)]
    return any(_fits(value, a) for a in allowed)


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is an allowed one, whose dicts list what their fields may be."""
    if isinstance(wanted, dict):
        return isinstance(value, dict) and _has_fields(value, wanted)
    if isinstance(wanted, list):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(_fits(v, w) for v, w in zip(value, wanted, strict=True))
        )
    if isinstance(value, str) and isinstance(wanted, str):
        return _standard(value) == _standard(wanted)
    if isinstance(value, bool) or isinstance(wanted, bool) or value is None or wanted is None:
        return value is wanted
    return isinstance(value, int | float) and isinstance(wanted, int | float) and value == wanted


def _has_fields(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    if not value.keys() <= wanted.keys():
        return False
    for name, allowed in wanted.items():
        options = allowed if isinstance(allowed, list) else [allowed]
        if name not in value:
            if "" not in options:
                return False
        elif not any(_fits(value[name], option) for option in options):
            return False
    return True


def _standard(text: str) -> str:
    return _NOT_COMPARED.sub("", text).lower().replace("'", '"')
