"""Values inside rows: a column by its name, a nested one by a dotted path."""

import json
from collections.abc import Mapping
from typing import Any

from equipoise.evals.errors import UsageError

__all__ = ["ABSENT", "as_text", "cluster_of", "find", "identifier", "token_count"]

MAX_TOKEN_DIGITS = 12


class _Absent:
    """The type of `ABSENT`: a column that a row does not have (other than null)."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


def find(row: Any, path: str) -> Any:
    """The value at ``path``; ABSENT if there is none.

    A key may itself contain dots (``Qwen2.5-7B.strict``): the longest key that fits is taken.
    """
    if not isinstance(row, Mapping):
        return ABSENT
    if path in row:
        return row[path]
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        head = ".".join(parts[:cut])
        if head in row:
            value = find(row[head], ".".join(parts[cut:]))
            if value is not ABSENT:
                return value
    return ABSENT


def identifier(value: Any, where: str, what: str) -> str:
    """An id as text.

    Raises
    ------
    UsageError
        It is missing, null, empty, or no number or text.
    """
    if value is ABSENT or value is None or value == "":
        raise UsageError(f"{where}: no {what}; every row needs one")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{where}: the {what} is {type(value).__name__}, not text or a number")
    return str(value)


def cluster_of(row: Any, column: str | None, where: str) -> str | None:
    """The row's cluster id; None if no column is given."""
    if column is None:
        return None
    return identifier(find(row, column), where, f"cluster id (column {column!r})")


def as_text(value: Any) -> str | None:
    """A value for an excerpt: text as it is, other values as JSON."""
    if value is None or value is ABSENT:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def token_count(value: Any) -> int | None:
    """A number of tokens, given as a number or as digits; None for anything else, or beyond all context."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_TOKEN_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 10**MAX_TOKEN_DIGITS else None
