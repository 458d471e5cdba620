"""JSON that a model wrote, with bounds on what it can cost to read."""

import json
import math
from typing import Any, NoReturn

__all__ = ["MAX_CHARS", "MAX_DEPTH", "parse_json"]

MAX_CHARS = 1 << 18
MAX_DEPTH = 64
MAX_DIGITS = 100  # of an integer; converting long ones takes quadratic time


def parse_json(text: str) -> Any:
    """The value of a JSON text in which no key is given twice.

    Raises
    ------
    ValueError
        Not JSON; longer, deeper or with larger numbers than anything meant seriously.
    """
    if len(text) > MAX_CHARS:
        raise ValueError(f"JSON of {len(text)} characters, at most {MAX_CHARS} are read")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_once,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except RecursionError:
        raise ValueError(f"JSON nested deeper than {MAX_DEPTH} levels") from None
    layer, depth = [value], 0
    while layer := [child for node in layer for child in _children(node)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"JSON nested deeper than {MAX_DEPTH} levels")
    return value


def _children(node: Any) -> Any:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:40]!r} is given twice")
        found[key] = value
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:40]} is not finite")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
