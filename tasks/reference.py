"""What a right and a wrong answer to an item look like: how a grader is held against its own data."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from equipoise.evals.types import Output, TaskItem, ToolCall

__all__ = ["Counted", "Referenced", "reply"]


@runtime_checkable
class Referenced(Protocol):
    """A task that knows answers to its items; None where an item has no such answer."""

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """Replies, one a turn, that score 1."""

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """Replies that score less."""


@runtime_checkable
class Counted(Protocol):
    """A task whose items are finitely many."""

    def count(self) -> int:
        """How many items its data has."""


def reply(text: str | None, *, tool_calls: tuple[ToolCall, ...] | None = None) -> Output:
    """A whole reply with this text, as a server would send it."""
    return Output(
        text=text,
        finish_reason="tool_calls" if tool_calls else "stop",
        prompt_tokens=1,
        completion_tokens=1,
        latency_s=0.0,
        tool_calls=tool_calls,
    )
