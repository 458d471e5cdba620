"""Does the model call tools, and as their schemas say? After Moonshot's vendor verifier for Kimi K2.

Example row, a whole request as a client sent it::

    {"messages": [{"role": "user", "content": "I need a random number from 1 to 100."}], "tools": [{"type":
     "function", "function": {"name": "generate_random_number", "parameters": {"type": "object",
     "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}}}}}], "max_tokens": 4096}

`ToolTrigger` is 1 where the reply calls a tool: a rate, not an accuracy, for the data does not say where a
tool should be called. What counts is that the arms agree, item by item. `ToolSchema` is 1 unless a call is
not of a tool that was offered or its arguments are invalid: a reply that calls nothing has nothing invalid in
it.

Rows may carry a conversation with calls and their results; it is asked once, as recorded, for what a user
says next depends on the recorded replies. As the verifier does, ``_input`` messages are sent as system
messages and the ids of past calls get the prefix ``functions.`` that Kimi's template expects.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from equipoise.evals.types import (
    ChatOptions,
    Message,
    Output,
    Request,
    SamplingParams,
    TaskItem,
    ToolCall,
)
from equipoise.tasks.card import Advice, TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.json_schema import check_schema, violation
from equipoise.tasks.graders.json_text import parse_json
from equipoise.tasks.graders.tool_calls import told
from equipoise.tasks.graders.tool_text import AS_TEXT, calls_in_text
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.reference import reply
from equipoise.tasks.rows import Row, RowSource
from equipoise.tasks.tool_chat import ToolTask

__all__ = ["ToolSchema", "ToolTrigger"]

_CITATION = "K2 Vendor Verifier (github.com/MoonshotAI/K2-Vendor-Verifier), LLM Vendor Verifier"
_FILES = {"single": "tool-call-single-content-dataset.jsonl", "conversations": "samples.jsonl"}
_HALVES = ("first", "second")
_OLD_ID = re.compile(r"[A-Za-z0-9_-]{1,64}:\d{1,6}")
_KIMI = Advice(
    temperature=1.0,
    max_new_tokens=64_000,
    thinking="on",
    source="README of MoonshotAI/K2-Vendor-Verifier, for K2 Thinking (0.6 for K2-0905, which does not think)",
)


def _source(subset: str) -> RowSource:
    return RowSource(
        local=f"kimi_verifier/llm_vendor_verifier/{_FILES[subset]}",
        hub="",
        config="",
        split="",
        revision="",
        licence="MIT",
        citation=_CITATION,
        label=subset,
    )


@dataclass(frozen=True, kw_only=True)
class _VendorRequests(ToolTask):
    """``subset`` names the files asked: "single" requests, recorded "conversations".

    ``half`` asks only the "first" or "second" half of the rows, told apart by their tools: a plan with both
    tasks gives each a half of its own, or the same answers would count twice in the pooled mean.
    """

    subset: tuple[str, ...] = ("single",)
    half: str = "both"

    option_names: ClassVar[tuple[str, ...]] = ("subset", "half")
    version = "1"

    def __post_init__(self) -> None:
        if not set(self.subset) <= _FILES.keys() or len(set(self.subset)) != len(self.subset):
            raise ValueError(f"subset must be different ones of {', '.join(_FILES)}, not {self.subset}")
        if self.half not in ("both", *_HALVES):
            raise ValueError(f"half must be both, first or second, not {self.half!r}")

    def keep(self, row: Row) -> bool:
        """Only rows of the half that is asked."""
        if self.half == "both":
            return True
        return _HALVES[int(content_hash(json.dumps(row.get("tools"), sort_keys=True)), 16) % 2] == self.half

    @property
    def sources(self) -> tuple[RowSource, ...]:  # type: ignore[override]
        return tuple(_source(s) for s in self.subset)

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        messages = [_message(m) for m in row["messages"]]
        if messages[-1]["role"] == "assistant":
            raise ValueError("the last message is the assistant's: there is nothing to answer")
        tools = [_tool(t) for t in row["tools"]]
        if not tools:
            raise ValueError("no tools")
        users = [m["content"] for m in messages if m["role"] == "user"]
        return ChatQuestion(
            prompt=users[-1],
            target="",
            extra={"messages": messages, "tools": tools},
            strata={"turns": str(len(users)), "tools": str(len(tools))},
            cluster=f"{self.name}-{content_hash(json.dumps(tools, sort_keys=True))}",
        )

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """The conversation so far, with its tools; nothing after its reply."""
        if outputs:
            return None
        return Request(
            sampling=SamplingParams(max_new_tokens=self.max_new_tokens),
            messages=tuple(
                Message(**{**m, "tool_calls": tuple(ToolCall(**c) for c in m["tool_calls"])})
                for m in item.inputs["messages"]
            ),
            chat=ChatOptions(tools=tuple(item.inputs["tools"]), tool_choice="auto"),
        )


class ToolTrigger(_VendorRequests):
    """Does the reply call a tool?"""

    name = "tool_trigger"
    card: ClassVar[TaskCard] = TaskCard(
        title="Tool calls triggered (Kimi vendor verifier)",
        group="tools",
        protocol="chat",
        licence="MIT",
        citation=_CITATION,
        items=512,
        clusters="tools offered",
        advice={"kimi": _KIMI},
        note="The value is a rate, not an accuracy: nobody says where a tool should be called, and a "
        "higher rate is no better. Read the flips and the equivalence, not the sign. Needs a server with "
        "the model's tool parser. The verifier reports the F1 of triggering against Moonshot's own "
        "replies, of 4,000 requests.",
    )

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """Any call; what makes a reply score 1, not what is better."""
        return (
            reply(
                None, tool_calls=(ToolCall(name=item.inputs["tools"][0]["function"]["name"], arguments="{}"),)
            ),
        )

    def judge(self, item: TaskItem, calls: Sequence[ToolCall], text: str) -> Grade:
        if calls:
            return Grade(value=1.0, extracted=", ".join(c.name for c in calls[:20]))
        if calls_in_text(text, {}):
            return Grade(value=0.0, extracted=None, reason=AS_TEXT)
        return Grade(value=0.0, extracted="no call")


class ToolSchema(_VendorRequests):
    """Are all calls of the reply valid?"""

    name = "tool_schema"
    card: ClassVar[TaskCard] = TaskCard(
        title="Tool calls valid by their schema (Kimi vendor verifier)",
        group="tools",
        protocol="chat",
        licence="MIT",
        citation=_CITATION,
        items=511,
        clusters="tools offered",
        advice={"kimi": _KIMI},
        note="A reply that calls nothing scores 1, as it holds nothing invalid: read it with tool_trigger. "
        "The verifier counts replies with calls only, so its schema accuracy is of fewer. One of the 512 "
        "requests is left out, as its tool's definition is no JSON schema. Needs a server with the model's "
        "tool parser.",
    )

    def keep(self, row: Row) -> bool:
        """Only rows whose tools' arguments can be validated."""
        if not super().keep(row):
            return False
        try:
            for tool in row["tools"]:
                check_schema(tool["function"]["parameters"])
        except ValueError:
            return False
        except (KeyError, TypeError):
            return True  # malformed: said when it is parsed
        return True

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """Nothing called, nothing invalid."""
        return (reply("None of these helps."),)

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """A call of what was not offered."""
        return (reply(None, tool_calls=(ToolCall(name="no such tool", arguments="{}"),)),)

    def judge(self, item: TaskItem, calls: Sequence[ToolCall], text: str) -> Grade:
        if not calls:
            if calls_in_text(text, {}):
                return Grade(value=0.0, extracted=None, reason=AS_TEXT)
            return Grade(value=1.0, extracted="no call", reason="no call")
        faults = [fault for call in calls if (fault := _fault(call, item.inputs["tools"]))]
        return Grade(value=float(not faults), extracted=told(calls), reason="; ".join(faults[:3]))


def _fault(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> str:
    """What is invalid in a call; empty if nothing is. Of several tools with its name, one must accept it."""
    schemas = [t["function"]["parameters"] for t in tools if t["function"]["name"] == call.name]
    if not schemas:
        return f"{call.name[:64]!r} is not offered"
    try:
        arguments = parse_json(call.arguments)
    except ValueError as e:
        return f"the arguments of {call.name} are malformed: {e}"
    found = [violation(schema, arguments) for schema in schemas]
    return "" if "" in found else f"{call.name}: {found[0]}"


def _message(row: Mapping[str, Any]) -> dict[str, Any]:
    """A message's fields, as JSON values."""
    role = "system" if row["role"] == "_input" else row["role"]
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"unknown role {role!r}")
    calls = [
        {"id": _id(c["id"]), "name": c["function"]["name"], "arguments": c["function"]["arguments"]}
        for c in row.get("tool_calls") or ()
    ]
    content = row.get("content")
    if not isinstance(content, str) and not (content is None and calls):
        raise ValueError(f"the content of a {role} message is {type(content).__name__}, not text")
    if not all(isinstance(v, str) for c in calls for v in c.values()):
        raise ValueError("a tool call whose id, name and arguments are not text")
    answers = row.get("tool_call_id")
    return {
        "role": role,
        "content": content,
        "tool_calls": calls,
        "tool_call_id": None if answers is None else _id(answers),
    }


def _id(text: str) -> str:
    return f"functions.{text}" if _OLD_ID.fullmatch(text) else text


def _tool(row: Mapping[str, Any]) -> dict[str, Any]:
    function = row["function"]
    if not isinstance(function["name"], str) or not isinstance(function["parameters"], dict):
        raise ValueError("a tool needs a name and an object of parameters")
    return {"type": "function", "function": dict(function)}
