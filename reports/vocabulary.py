"""The closed word lists of a report; any other word in these places is refused."""

from collections.abc import Collection

__all__ = [
    "CONTROL_STRENGTHS",
    "EXIT_CODES",
    "FLIP_DIRECTIONS",
    "KINDS",
    "REPLY_PARTS",
    "STATES",
    "SUITE_VERDICTS",
    "TASK_VERDICTS",
    "require",
]

#: "incomplete": interrupted, can be resumed. "no verdict": ended, but nothing can be decided.
STATES = ("final", "incomplete", "no verdict")

#: "run": of a registered plan. "comparison": of results that were already there.
KINDS = ("run", "comparison")

#: "GATES PASSED" is what a comparison says at best: it is not eligible for sign-off.
EXIT_CODES = {"SIGNED OFF": 0, "GATES PASSED": 0, "DEGRADED": 1, "INCONCLUSIVE": 3, "INVALID": 4}
SUITE_VERDICTS = tuple(EXIT_CODES)

#: in the order of their precedence
TASK_VERDICTS = (
    "INVALID",
    "DEGRADED",
    "SUSPECT",
    "INCONCLUSIVE",
    "DETECTED-WITHIN-MARGIN",
    "EQUIVALENT",
    "NON-INFERIOR",
)

CONTROL_STRENGTHS = ("gross", "mild")
FLIP_DIRECTIONS = ("lost", "gained")
REPLY_PARTS = ("thinking", "answer", "tool calls")


def require(where: str, word: str | None, allowed: Collection[str]) -> None:
    """Raise ValueError unless ``word`` is one of ``allowed``."""
    if word not in allowed:
        raise ValueError(f"{where} is {word!r}; it must be one of {', '.join(map(repr, allowed))}")
