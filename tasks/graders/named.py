"""Graders by the names that a user's task file gives."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from equipoise.tasks.graders.grade import Grade

__all__ = ["GRADERS", "Grader"]

#: (answer, target) -> grade; never raises, takes bounded time.
Grader = Callable[[str, str], Grade]


def _exact(answer: str, target: str) -> Grade:
    found = answer.strip()
    return Grade(value=float(found == target.strip()), extracted=found)


def _contains(answer: str, target: str) -> Grade:
    found = target.strip().casefold() in answer.casefold()
    return Grade(value=float(found), extracted=answer.strip(), reason="" if found else "not in the answer")


GRADERS: Mapping[str, Grader] = MappingProxyType({"exact": _exact, "contains": _contains})
