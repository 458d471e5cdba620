"""How many of the things asked for are in an answer, and nothing else."""

import re
from collections.abc import Collection, Sequence

from equipoise.tasks.graders.grade import Grade

__all__ = ["answers_in", "recall"]

MAX_CHARS = 20_000  # the end of an answer, where it is given
_GIVEN = re.compile(r"\banswers?\b[*_ ]{0,4}:", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def answers_in(answer: str, pattern: re.Pattern[str]) -> list[str]:
    """What matches ``pattern`` (linear, on lower case) behind the last ``Answer:``, else anywhere; each once.

    Only the last 20,000 characters are read.
    """
    text = _THOUSANDS.sub("", answer[-MAX_CHARS:].lower())
    given = list(_GIVEN.finditer(text))
    behind = pattern.findall(text[given[-1].end() :]) if given else []
    return list(dict.fromkeys(behind or pattern.findall(text)))


def recall(found: Sequence[str], wanted: Collection[str]) -> Grade:
    """The share of ``wanted`` that was found; to name more than asked for divides by their number.

    2 of 4 right is 0.5; 4 right among 8 named is 0.5; so to list everything gains nothing.
    """
    if not found:
        return Grade(value=0.0, extracted=None, reason="nothing of the form asked for is in the answer")
    right = len(set(found) & set(wanted))
    number = max(len(wanted), len(set(found)))
    return Grade(
        value=right / number,
        extracted=", ".join(found),
        reason="" if right == number else f"{right} of {len(wanted)} right, {len(set(found))} named",
    )
