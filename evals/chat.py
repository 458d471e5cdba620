"""Conversations as they go over the wire: messages, tool calls, and how a chat template is asked to render.

A leaf: nothing of ours is imported here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["ChatOptions", "Message", "ToolCall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a function. ``arguments`` is the JSON text as it was sent: it need not be valid."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. ``content`` is None only for an assistant that calls tools and says nothing.

    ``reasoning`` goes back to the server as ``reasoning_content``: some models expect their own thinking of
    earlier turns. A message of role "tool" answers the call ``tool_call_id``.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What a conversation's request says beside its messages and sampling.

    ``tools`` are function definitions in OpenAI's form (JSON values). ``template_kwargs`` are handed to the
    chat template, ``reasoning_effort`` is the protocol's own field.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: Literal["auto", "none", "required"] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None
