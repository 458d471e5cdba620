"""Grading by a user's own pattern, in bounded time."""

import regex

from equipoise.tasks.graders.grade import Grade

__all__ = ["PatternGrader"]

MAX_SECONDS = 2.0
MAX_CHARS = 1_000_000


class PatternGrader:
    """The last match of ``pattern`` in the answer (its first group, if it has one) must be the target.

    Raises
    ------
    ValueError
        The pattern is no regular expression.
    """

    def __init__(self, pattern: str) -> None:
        try:
            self._pattern = regex.compile(pattern)
        except regex.error as e:
            raise ValueError(f"{pattern!r} is not a regular expression: {e}") from e

    def __call__(self, answer: str, target: str) -> Grade:
        last = None
        try:
            for match in self._pattern.finditer(answer[-MAX_CHARS:], timeout=MAX_SECONDS):
                last = match
        except TimeoutError:
            return Grade(value=0.0, extracted=None, reason=f"the pattern took more than {MAX_SECONDS:g} s")
        if last is None:
            return Grade(value=0.0, extracted=None, reason="the pattern matches nothing")
        found = (last[1] if self._pattern.groups else last[0]) or ""
        return Grade(value=float(found.strip() == target.strip()), extracted=found.strip())
