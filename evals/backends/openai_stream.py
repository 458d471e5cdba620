"""A streamed chat completion, put together to what the endpoint would have sent in one piece.

Text and arguments come in fragments, tool calls by their index, the usage at the end (``include_usage``).
What is put together is read by `output_from_chat` like any other reply: both are held to the same rules.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

from equipoise.evals.backends.json_client import JsonClient
from equipoise.evals.backends.openai_reply import MAX_TOOL_CALLS

__all__ = ["STREAMED", "ChatStream"]

#: What a chat body says beside, to be answered by a stream.
STREAMED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_TEXTS = ("content", "reasoning_content", "reasoning")


class ChatStream:
    """Takes the chunks of one reply; ``client`` and ``path`` name the endpoint in errors."""

    def __init__(self, client: JsonClient, path: str) -> None:
        self._client, self._path = client, path
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, list[str]]] = {}
        self._finish_reason: Any = None
        self._usage: Any = None

    def take(self, chunk: Any) -> None:
        """Add a chunk.

        Raises
        ------
        RequestError
            It is no chunk of a chat completion with one choice.
        """
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        if not isinstance(choices, list) or len(choices) > 1:
            self._fail("a chunk does not hold one choice or none")
        self._usage = chunk.get("usage") or self._usage
        for choice in choices:
            if not isinstance(choice, dict) or choice.get("index", 0) != 0:
                self._fail("a chunk holds another choice than the only one")
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            delta = choice.get("delta")
            if isinstance(delta, dict):
                self._add(delta)
            elif delta is not None:
                self._fail("a chunk's delta is no object")

    def reply(self) -> dict[str, Any]:
        """The whole reply, in the form of one that was not streamed.

        Raises
        ------
        RequestError
            The stream ended before the answer did.
        """
        if self._finish_reason is None:
            self._fail("the stream ended without a finish_reason")
        message: dict[str, Any] = {name: "".join(parts) for name, parts in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [_call(self._calls[index]) for index in sorted(self._calls)]
        choice = {"message": message, "finish_reason": self._finish_reason}
        return {"choices": [choice], "usage": self._usage}

    def _add(self, delta: Mapping[str, Any]) -> None:
        for name in _TEXTS:
            if (text := self._text(delta, name)) is not None:
                self._texts.setdefault(name, []).append(text)
        calls = delta.get("tool_calls") or ()
        if not isinstance(calls, list | tuple):
            self._fail("a chunk's tool_calls is no list")
        for row in calls:
            if not isinstance(row, dict):
                self._fail("a chunk's tool call is no object")
            self._add_call(row)

    def _add_call(self, row: Mapping[str, Any]) -> None:
        function = row.get("function")
        if not isinstance(function, dict):
            function = {}
        index = row.get("index")
        if index is None:  # some gateways leave it out: a name begins the next call
            index = len(self._calls) - (0 if function.get("name") else 1)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < MAX_TOOL_CALLS:
            self._fail(f"a tool call's index is {str(index)[:20]}, not a number below {MAX_TOOL_CALLS}")
        call = self._calls.setdefault(index, {"id": [], "name": [], "arguments": []})
        for name, text in (
            ("id", self._text(row, "id")),
            ("name", self._text(function, "name")),
            ("arguments", self._text(function, "arguments")),
        ):
            # Names and ids that are sent again with every fragment are still one.
            if text and (name == "arguments" or text not in call[name]):
                call[name].append(text)

    def _text(self, row: Mapping[str, Any], name: str) -> str | None:
        value = row.get(name)
        if value is not None and not isinstance(value, str):
            self._fail(f"a chunk's {name} is a {type(value).__name__}, not text")
        return value

    def _fail(self, what: str) -> NoReturn:
        self._client.fail(self._path, what, retryable=True)


def _call(parts: Mapping[str, list[str]]) -> dict[str, Any]:
    whole = {name: "".join(pieces) for name, pieces in parts.items()}
    function = {"name": whole["name"] or None, "arguments": whole["arguments"]}
    return {"id": whole["id"], "type": "function", "function": function}
