"""Graders by the names that a user's task file gives."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from equipoise.tasks.graders.choice import grade_choice
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.math import grade_math
from equipoise.tasks.graders.number import grade_number

__all__ = ["GRADERS", "Grader"]

#: (answer, target) -> grade; bounded time. Raises ValueError for a target that it cannot grade by, whatever
#: the answer, and never for an answer.
Grader = Callable[[str, str], Grade]


def _exact(answer: str, target: str) -> Grade:
    found = answer.strip()
    return Grade(value=float(found == target.strip()), extracted=found)


def _contains(answer: str, target: str) -> Grade:
    found = target.strip().casefold() in answer.casefold()
    return Grade(value=float(found), extracted=answer.strip(), reason="" if found else "not in the answer")


def _choice(answer: str, target: str) -> Grade:
    return grade_choice(answer, target)


def _number(answer: str, target: str) -> Grade:
    return grade_number(answer, target)


GRADERS: Mapping[str, Grader] = MappingProxyType(
    {"exact": _exact, "contains": _contains, "choice": _choice, "number": _number, "math": grade_math}
)
