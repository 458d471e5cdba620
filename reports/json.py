"""The report as JSON, and back without loss. Numbers are written in full; nothing is rounded."""

import dataclasses
import json
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from equipoise.evals.errors import UsageError
from equipoise.reports.model import SCHEMA_VERSION, Report, Run
from equipoise.reports.node import Node

__all__ = ["UPGRADES", "load", "render"]

#: From an older schema version to the next one, as JSON objects; applied one after another.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def render(report: Report) -> str:
    """Strict, ASCII-only JSON (no NaN, no lone surrogates), indented, ending with a newline."""
    return json.dumps(_encode(report), indent=1, allow_nan=False) + "\n"


def load(text: str, source: str = "report.json") -> Report:
    """Read what `render` wrote, of this schema version or an older one.

    Raises
    ------
    UsageError
        Names ``source`` and the key that is wrong, missing, unknown or from a newer version.
    """
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not JSON ({error}); make it again with `equipoise report`") from error
    if not isinstance(data, dict) or not isinstance(data.get("schema_version"), int):
        raise UsageError(f"{source} is not an Equipoise report: it has no schema_version")
    version = data["schema_version"]
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{source} has report schema version {version}; this Equipoise reads up to {SCHEMA_VERSION}. "
            "Upgrade Equipoise, or make the report again from its run directory"
        )
    while version < SCHEMA_VERSION:
        if version not in UPGRADES:
            raise UsageError(
                f"{source} has report schema version {version}, which this Equipoise cannot upgrade; "
                "make the report again from its run directory"
            )
        data = UPGRADES[version](data)
        version += 1
    data["schema_version"] = SCHEMA_VERSION
    try:
        report = _decode(Report, data, "report")
    except (ValueError, TypeError) as error:
        raise UsageError(f"{source}: {error}; make the report again from its run directory") from error
    assert isinstance(report, Report)
    return report


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _encode(value: Any) -> Any:
    if isinstance(value, Node):
        names = [f.name for f in dataclasses.fields(value)]  # type: ignore[arg-type]
        if isinstance(value, Run) and not value.eligible_for_sign_off:
            names.remove("indistinguishable")  # a word that such a report never uses; it is always false
        return {name: _encode(getattr(value, name)) for name in names}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    return value


def _decode(hint: Any, value: Any, path: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        if value is None and type(None) in args:
            return None
        (hint,) = (arg for arg in args if arg is not type(None))
        origin, args = get_origin(hint), get_args(hint)
    if origin is tuple:
        _expect(isinstance(value, list), path, "a list", value)
        return tuple(_decode(args[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is Mapping:
        _expect(isinstance(value, dict), path, "an object", value)
        return {key: _decode(args[1], item, f"{path}[{key!r}]") for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Node):
        return _decode_node(hint, value, path)
    if hint is float:
        _expect(isinstance(value, int | float) and not isinstance(value, bool), path, "a number", value)
        return value  # a whole number stays one, so that a report read again renders to the same bytes
    _expect(
        type(value) is hint, path, {str: "a string", int: "an integer", bool: "true or false"}[hint], value
    )
    return value


def _decode_node(kind: type[Node], value: Any, path: str) -> Node:
    _expect(isinstance(value, dict), path, "an object", value)
    hints = get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]  # every Node is a dataclass
    for key in value:
        if key not in known:
            raise ValueError(f"{path} has the unknown key {key!r}")
    for name, f in known.items():
        optional = f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        if name not in value and not optional:
            raise ValueError(f"{path}.{name} is missing")
    return kind(**{key: _decode(hints[key], item, f"{path}.{key}") for key, item in value.items()})


def _expect(ok: bool, path: str, what: str, value: Any) -> None:
    if not ok:
        raise ValueError(f"{path} must be {what}, not {str(value)[:60]!r}")
