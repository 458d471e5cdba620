"""What counts as a score: a number in [0, 1], a truth value, or one of a few words."""

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["INSPECT_WORDS", "TABLE_WORDS", "ScoreError", "is_value", "to_score"]

TABLE_WORDS: Mapping[str, float] = MappingProxyType(
    {
        "true": 1.0,
        "yes": 1.0,
        "correct": 1.0,
        "pass": 1.0,
        "passed": 1.0,
        "c": 1.0,
        "false": 0.0,
        "no": 0.0,
        "incorrect": 0.0,
        "fail": 0.0,
        "failed": 0.0,
        "i": 0.0,
    }
)

#: inspect's CORRECT, INCORRECT, PARTIAL and NOANSWER, and the words its own conversion knows
INSPECT_WORDS: Mapping[str, float] = MappingProxyType(
    {"c": 1.0, "i": 0.0, "p": 0.5, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
)

_NOTHING = frozenset({"", "none", "null", "nan", "na", "n/a"})


class ScoreError(ValueError):
    """A value that is no score, or one outside [0, 1]; the message says which."""


def to_score(value: Any, words: Mapping[str, float] = TABLE_WORDS) -> tuple[float | None, str]:
    """A logged value as a score, or None with the reason.

    Raises
    ------
    ScoreError
        The value is something else than a number in [0, 1], a truth value or one of ``words``.
    """
    if isinstance(value, str):
        text = value.strip().lower()
        if text in words:
            return words[text], ""
        if text in _NOTHING:
            return None, "no score"
        try:
            value = float(text)
        except ValueError:
            raise ScoreError(f"{value.strip()[:40]!r} is not a score") from None
    if value is None:
        return None, "no score"
    if not isinstance(value, bool | int | float):
        raise ScoreError(f"a {type(value).__name__} is not a score")
    if isinstance(value, float) and math.isnan(value):
        return None, "score is NaN"
    if not 0 <= value <= 1:
        raise ScoreError(f"{value!r} is not in [0, 1]")
    return float(value), ""


def is_value(value: Any, wanted: str) -> tuple[float | None, str]:
    """1 where ``value`` is ``wanted`` (as text, or as JSON), else 0; null is no score."""
    if value is None:
        return None, "no score"
    text = value if isinstance(value, str) else json.dumps(value)
    return float(text == wanted), ""
