"""Conversations with tools and thinking: what is sent, and what comes back in every form that servers use."""

from dataclasses import fields
from typing import Any

import pytest
from run_doubles import GREEDY, FakeServer, Handler, always, key, sample

from equipoise.evals.backends.openai_http import OpenAIHttp
from equipoise.evals.backends.openai_reply import MAX_TOOL_CALLS
from equipoise.evals.backends.sglang_http import SglangHttp
from equipoise.evals.errors import RequestError
from equipoise.evals.sample_json import sample_from_json, sample_to_json
from equipoise.evals.types import Backend, ChatOptions, Message, Output, Request, ToolCall

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TALK = Request(
    messages=(
        Message(role="system", content="Be brief."),
        Message(role="user", content="hi"),
        Message(
            role="assistant",
            content=None,
            reasoning="I look.",
            tool_calls=(ToolCall(name="f", arguments='{"a": 1', id="functions.f:0"),),
        ),
        Message(role="tool", content="4", tool_call_id="functions.f:0"),
    ),
    sampling=GREEDY,
    chat=ChatOptions(
        tools=(TOOL,), tool_choice="auto", template_kwargs={"thinking": True}, reasoning_effort="high"
    ),
)


def openai(url: str) -> Backend:
    return OpenAIHttp(url, model="m", timeout_s=5)


def sglang(url: str) -> Backend:
    return SglangHttp(url, timeout_s=5)


BOTH = pytest.mark.parametrize("make", [openai, sglang])


def replying(message: Any, finish_reason: str = "tool_calls") -> Handler:
    return always(
        {
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 2},
        }
    )


async def ask(make: Any, handler: Handler) -> tuple[Output, Any]:
    async with FakeServer(handler).running() as server:
        backend = make(server.url)
        try:
            return await backend.complete(key(), TALK), server.bodies[0]
        finally:
            await backend.close()


@BOTH
async def test_tools_and_past_calls_are_sent_as_the_protocol_has_them(make: Any) -> None:
    _, body = await ask(make, replying({"content": "ok"}, "stop"))
    assert body["tools"] == [TOOL]
    assert (body["tool_choice"], body["reasoning_effort"]) == ("auto", "high")
    assert body["chat_template_kwargs"] == {"thinking": True}
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I look.",
            "tool_calls": [
                {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1'}}
            ],
        },
        {"role": "tool", "content": "4", "tool_call_id": "functions.f:0"},
    ]


def _call(**function: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", **function}}


@BOTH
@pytest.mark.parametrize(
    ("message", "text", "reasoning", "calls"),
    [
        ({"content": None, "tool_calls": [_call()]}, None, None, ["{}"]),
        ({"content": "", "tool_calls": [_call(arguments='{"a": 1')]}, "", None, ['{"a": 1']),
        ({"tool_calls": [_call(arguments={"a": [1, "é"]})]}, None, None, ['{"a": [1, "\\u00e9"]}']),
        ({"content": "x", "tool_calls": [_call(arguments=None)]}, "x", None, [""]),
        ({"content": "x", "tool_calls": [_call(arguments=[1])]}, "x", None, ["[1]"]),
        ({"content": "x", "tool_calls": [{"function": {"name": "f"}}]}, "x", None, [""]),
        ({"content": "x", "tool_calls": [_call(), _call()]}, "x", None, ["{}", "{}"]),
        ({"content": "x", "tool_calls": []}, "x", None, None),
        ({"content": "x", "tool_calls": None}, "x", None, None),
        ({"content": "x", "reasoning_content": "r"}, "x", "r", None),
        ({"content": "x", "reasoning": "r"}, "x", "r", None),
        ({"content": "x", "reasoning_content": None, "reasoning": "r"}, "x", "r", None),
        ({"content": "x", "reasoning_content": "r", "reasoning": "r"}, "x", "r", None),
        ({"content": "x", "reasoning_content": ""}, "x", None, None),
        ({"content": None, "reasoning_content": "r", "tool_calls": [_call()]}, None, "r", ["{}"]),
    ],
)
async def test_forms_of_a_reply(
    make: Any, message: dict[str, Any], text: str | None, reasoning: str | None, calls: list[str] | None
) -> None:
    out, _ = await ask(make, replying(message))
    assert (out.text, out.reasoning) == (text, reasoning)
    assert (None if out.tool_calls is None else [c.arguments for c in out.tool_calls]) == calls


@BOTH
@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "x", "tool_calls": [_call()] * 2000}, f"at most {MAX_TOOL_CALLS} calls"),
        ({"content": "x", "tool_calls": {"0": _call()}}, "not a list"),
        ({"content": "x", "tool_calls": "f()"}, "not a list"),
        (
            {"content": "x", "tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]},
            "no function with a name",
        ),
        ({"content": "x", "tool_calls": [_call(name=None)]}, "no function with a name"),
        ({"content": "x", "tool_calls": [_call(name=5)]}, "no function with a name"),
        ({"content": "x", "tool_calls": [{"id": "c", "function": None}]}, "no function with a name"),
        ({"content": "x", "tool_calls": [None]}, "no function with a name"),
        ({"content": "x", "reasoning_content": ["r"]}, "reasoning_content is a list"),
        ({"content": ["x"], "tool_calls": [_call()]}, "not text"),
        (None, "no message"),
    ],
)
async def test_malformed_replies_are_no_answers(make: Any, message: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        await ask(make, replying(message))


async def test_calls_and_thinking_survive_the_journal() -> None:
    call = ToolCall(name="f", arguments='{"a": "\\u0000\ud800"}', id="c")
    out = Output(
        text=None,
        finish_reason="tool_calls",
        prompt_tokens=1,
        completion_tokens=1,
        latency_s=0.5,
        reasoning="r\x00",
        tool_calls=(call, ToolCall(name="g", arguments="")),
    )
    kept = sample_from_json(sample_to_json(sample(outputs=(out,))))
    assert kept.outputs == (out,)
    assert {f.name for f in fields(ToolCall)} == {"name", "arguments", "id"}
