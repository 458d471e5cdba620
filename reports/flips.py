"""The answers that changed: excerpts of both replies, and where they first differ. See model.py."""

from dataclasses import dataclass

from equipoise.reports.node import Node
from equipoise.reports.vocabulary import FLIP_DIRECTIONS, REPLY_PARTS, require

__all__ = ["Excerpt", "FirstDifference", "Flip", "Flips", "LogprobTrace", "Reply"]

MAX_EXCERPT_CHARS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt(Node):
    """A part of a text: it begins at ``start`` of ``chars`` (Unicode code points)."""

    text: str
    chars: int
    start: int = 0

    @classmethod
    def of(cls, text: str, max_chars: int = MAX_EXCERPT_CHARS, *, around: int = 0) -> "Excerpt":
        """``max_chars`` of ``text``: its start, or the part around a place that the start does not reach.

        The full length is kept, so that the cut shows.
        """
        start = around - max_chars // 4 if around > max_chars * 3 // 4 else 0
        start = max(min(start, len(text) - max_chars), 0)
        return cls(text=text[start : start + max_chars], chars=len(text), start=start)

    def check(self) -> None:
        if self.start < 0 or self.chars < self.start + len(self.text):
            raise ValueError(
                f"Excerpt.chars is {self.chars}, less than the {self.start} characters before it and the "
                f"{len(self.text)} given"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Node):
    """The last reply of one arm to an item, as it came; what was read from it as the answer stands beside.

    ``text`` is None where the server sent no content.
    """

    text: Excerpt | None
    thinking: Excerpt | None = None
    tool_calls: Excerpt | None = None  # one a line: name(arguments)
    score: float | None = None
    truncated: bool = False
    tokens: int | None = None  # completion tokens
    turns: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTrace(Node):
    """Logprobs (nats) of each arm's own tokens around the first that differs, from position ``start`` on.

    A list ends where its reply does.
    """

    start: int
    baseline: tuple[float, ...] = ()
    candidate: tuple[float, ...] = ()
    baseline_tokens: tuple[str, ...] = ()  # as text, or "id 42"
    candidate_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference(Node):
    """Where the replies first differ: in which turn (from 1), at which character and token (from 0)."""

    part: str  # thinking | answer | tool calls
    char: int
    token: int | None = None  # of the whole reply; None where a server did not tell its tokens
    turn: int = 1
    trace: LogprobTrace | None = None

    def check(self) -> None:
        require("FirstDifference.part", self.part, REPLY_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip(Node):
    """One item that one arm answered right and the other wrong; an answer is None if there was none.

    ``baseline`` and ``candidate`` are what was read as the answer, the replies what it was read from.
    """

    task: str
    item_id: str
    direction: str  # lost | gained
    prompt: Excerpt
    target: Excerpt
    baseline: Excerpt | None
    candidate: Excerpt | None
    baseline_finish: str = ""
    candidate_finish: str = ""
    baseline_reply: Reply | None = None
    candidate_reply: Reply | None = None
    difference: FirstDifference | None = None

    def check(self) -> None:
        require("Flip.direction", self.direction, FLIP_DIRECTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips(Node):
    """Counts of all flips, and the ones shown: lost first, then gained."""

    lost: int
    gained: int
    shown: tuple[Flip, ...] = ()
