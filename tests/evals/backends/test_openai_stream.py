"""Streamed chat completions: the same output as in one piece, and nothing of a stream that is not whole."""

import asyncio
import itertools
import json
import random
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from run_doubles import GREEDY, FakeServer, Handler, always, key

from equipoise.evals.backends import json_client
from equipoise.evals.backends.event_lines import EventLines
from equipoise.evals.backends.openai_http import OpenAIHttp
from equipoise.evals.errors import RequestError
from equipoise.evals.experiment.serving import backend_of
from equipoise.evals.plan_specs import ArmSpec, RunnerSpec
from equipoise.evals.types import ArmRole, Message, Output, Request, ToolCall

CHAT = Request(messages=(Message(role="user", content="hi"),), sampling=GREEDY)
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}


def chunk(delta: Any = None, *, finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish_reason, **more}
    return {"id": "x", "choices": [choice], "usage": None}


LAST = chunk(finish_reason="stop")
TOTAL = {"id": "x", "choices": [], "usage": USAGE}


def events(chunks: Iterable[Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(c, ensure_ascii=False).encode() + b"\n\n" for c in chunks)


def streaming(body: bytes, *, pieces: Iterable[int] = (), content_type: str = "text/event-stream") -> Handler:
    """Sends a body in pieces that end at the given places."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(request)
        bounds = [0, *sorted(pieces), len(body)]
        for start, end in itertools.pairwise(bounds):
            await response.write(body[start:end])
            await asyncio.sleep(0)
        return response

    return handler


async def complete(handler: Handler, *, stream: bool = True, request: Request = CHAT) -> tuple[Output, Any]:
    async with FakeServer(handler).running() as server:
        backend = OpenAIHttp(server.url, model="m", timeout_s=5, stream=stream)
        try:
            return await backend.complete(key(), request), server.bodies[0]
        finally:
            await backend.close()


async def failure(handler: Handler) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await complete(handler)
    return caught.value


DONE = b"data: [DONE]\n\n"


async def test_a_stream_is_asked_for_with_its_usage_and_put_together() -> None:
    chunks = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        LAST,
    ]
    out, body = await complete(streaming(events([*chunks, TOTAL]) + DONE))
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert (out.text, out.finish_reason, out.prompt_tokens, out.completion_tokens, out.cached_tokens) == (
        "Hello",
        "stop",
        7,
        2,
        3,
    )


async def test_without_stream_the_body_says_nothing_of_it() -> None:
    reply = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}], "usage": USAGE}
    _, body = await complete(always(reply), stream=False)
    assert not {"stream", "stream_options"} & body.keys()


def _call(i: int) -> dict[str, Any]:
    return {
        "id": f"c{i}",
        "type": "function",
        "function": {"name": f"f{i}", "arguments": f'{{"x": {i}, "y": "é"}}'},
    }


MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"content": "Grüße, 世界 \U0001f600"}, "stop"),
    ({"content": ""}, "stop"),
    ({"content": None, "tool_calls": [_call(0)]}, "tool_calls"),
    ({"content": "Let me see.", "tool_calls": [_call(0), _call(1), _call(2)]}, "tool_calls"),
    ({"content": "42", "reasoning_content": "6 times 7"}, "stop"),
    ({"content": None, "reasoning_content": "hmm"}, "length"),
    ({"content": "x", "reasoning": "under its other name"}, "stop"),
    ({"content": "ab"}, "length"),
]


def _chunks(message: dict[str, Any], finish_reason: str, rng: random.Random) -> Iterable[Any]:
    """A message in random fragments, as servers send them: thinking, text, then the calls mixed."""

    def parts(text: str) -> list[str]:
        cuts = sorted(rng.choices(range(len(text) + 1), k=3))
        return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    yield chunk({"role": "assistant", "content": None})
    for name in ("reasoning_content", "reasoning", "content"):
        for part in parts(message.get(name) or "") if message.get(name) is not None else ():
            yield chunk({name: part}) if part or name == "content" else chunk({})
    fragments = []
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        head = {"index": index, "id": call["id"], "type": "function", "function": {"name": function["name"]}}
        yield chunk({"tool_calls": [head]})
        fragments.append(
            [{"index": index, "function": {"arguments": p}} for p in parts(function["arguments"])]
        )
    while any(fragments):
        queue = rng.choice([f for f in fragments if f])
        yield chunk({"tool_calls": [queue.pop(0)]})
    yield chunk(finish_reason=finish_reason)
    yield TOTAL


@pytest.mark.parametrize(("message", "finish_reason"), MESSAGES)
async def test_a_stream_gives_the_same_output_as_one_piece_wherever_it_is_cut(
    message: dict[str, Any], finish_reason: str
) -> None:
    reply = {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}], "usage": USAGE}
    whole, _ = await complete(always(reply), stream=False)
    for seed in range(6):
        rng = random.Random(seed)
        body = events(_chunks(message, finish_reason, rng)) + DONE
        if seed % 2:
            body = b": ping\r\n\r\n" + body.replace(b"\n", b"\r\n")
        streamed, _ = await complete(streaming(body, pieces=rng.choices(range(len(body)), k=20)))
        assert replace(streamed, latency_s=0.0) == replace(whole, latency_s=0.0)


async def test_a_request_for_logprobs_is_not_streamed() -> None:
    logprobs = {"content": [{"token": "ok", "logprob": -0.5}]}
    choice = {"message": {"content": "ok"}, "finish_reason": "stop", "logprobs": logprobs}
    out, body = await complete(
        always({"choices": [choice], "usage": USAGE}), request=replace(CHAT, output_logprobs=True)
    )
    assert (out.output_logprobs, out.output_tokens) == ((-0.5,), ("ok",))
    assert "stream" not in body


@pytest.mark.parametrize(
    "deltas",
    [
        [
            {"id": "c", "function": {"name": "f", "arguments": ""}},
            {"function": {"arguments": '{"a":'}},
            {"function": {"arguments": "1}"}},
        ],
        [
            {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a":'}},
            {"index": 0, "id": "c", "function": {"name": "f", "arguments": "1}"}},
        ],
        [
            {"index": 0, "id": "c", "function": {"name": "f"}},
            {"index": 0, "function": {"name": None, "arguments": '{"a":1}'}},
        ],
        [{"index": 7, "id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}],
    ],
    ids=["no index", "name again", "null name", "index from 7"],
)
async def test_ways_in_which_gateways_send_calls(deltas: list[Any]) -> None:
    body = (
        events([*(chunk({"tool_calls": [d]}) for d in deltas), chunk(finish_reason="tool_calls"), TOTAL])
        + DONE
    )
    out, _ = await complete(streaming(body))
    assert out.tool_calls == (ToolCall(name="f", arguments='{"a":1}', id="c"),)
    assert out.text is None


TEXT = chunk({"content": "half an ans"})


@pytest.mark.parametrize(
    ("body", "said", "retryable"),
    [
        (events([TEXT, LAST, TOTAL]), "broke off", True),
        (events([TEXT]) + b'data: {"choi', "broke off", True),
        (b"", "broke off", True),
        (b"data: [DONE]", "broke off", True),  # not even its line is whole
        (DONE, "without a finish_reason", True),
        (events([TEXT, TOTAL]) + DONE, "without a finish_reason", True),
        (events([TEXT, LAST]) + DONE, "no usage", False),
        (events([TEXT]) + b"data: {oops}\n\n" + DONE, "not JSON", True),
        (events([TEXT, {"error": {"message": "out of memory", "code": 500}}]) + DONE, "out of memory", True),
        (
            events([{"error": {"message": "the maximum context length is 4096"}}]) + DONE,
            "context length",
            False,
        ),
        (events([TEXT, {"object": "error", "message": "boom"}]) + DONE, "one choice or none", True),
        (events([TEXT, chunk(finish_reason="abort"), TOTAL]) + DONE, "aborted", True),
        (events([{"choices": [LAST["choices"][0]] * 2}]) + DONE, "one choice or none", True),
        (events([{"choices": [{"index": 1, "delta": {}}]}]) + DONE, "another choice", True),
        (events([[]]) + DONE, "one choice or none", True),
        (events([chunk([])]) + DONE, "delta is no object", True),
        (events([chunk({"content": 3})]) + DONE, "content is a int", True),
        (events([chunk({"tool_calls": {"a": 1}})]) + DONE, "tool_calls is no list", True),
        (events([chunk({"tool_calls": ["x"]})]) + DONE, "tool call is no object", True),
        (
            events([chunk({"tool_calls": [{"index": 10**9, "function": {"name": "f"}}]})]) + DONE,
            "index",
            True,
        ),
        (events([chunk({"tool_calls": [{"index": -1}]})]) + DONE, "index", True),
        (events([chunk({"tool_calls": [{"index": True}]})]) + DONE, "index", True),
        (
            events([chunk({"tool_calls": [{"function": {"arguments": "1"}}]})]) + DONE,
            "index",
            True,
        ),  # of which call?
        (
            events([chunk({"tool_calls": [{"index": 0, "function": {"arguments": {"a": 1}}}]})]) + DONE,
            "arguments",
            True,
        ),
        (
            events([chunk({"tool_calls": [{"index": 0, "id": "c"}]}), LAST, TOTAL]) + DONE,
            "no function with a name",
            False,
        ),
    ],
)
async def test_a_stream_that_is_not_whole_is_no_answer(body: bytes, said: str, retryable: bool) -> None:
    e = await failure(streaming(body))
    assert said in str(e)
    assert e.retryable == retryable


async def test_a_connection_that_breaks_within_the_stream_is_no_answer() -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(events([TEXT, LAST, TOTAL]))
        assert request.transport is not None
        request.transport.abort()
        return response

    assert (await failure(half)).retryable


async def test_what_follows_the_end_is_not_waited_for() -> None:
    async def open_ended(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(events([TEXT, LAST, TOTAL]) + DONE)
        await asyncio.sleep(30)
        return response

    assert (await complete(open_ended))[0].text == "half an ans"


async def test_an_endless_stream_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_client, "MAX_REPLY_BYTES", 1 << 20)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(1 << 14):
            await response.write(b"x" * 65536)
        return response

    assert "larger than 1 MiB" in str(await failure(endless))


async def test_an_endpoint_that_does_not_stream_is_told_so_and_errors_are_read_as_ever() -> None:
    reply = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}], "usage": USAGE}
    e = await failure(always(reply))
    assert "asked for a stream, got application/json" in str(e)
    assert not e.retryable
    refused = await failure(always({"error": {"message": "maximum context length"}}, status=400))
    assert refused.refused
    assert (await failure(always({}, status=503))).retryable


@pytest.mark.parametrize("stream", [False, True])
def test_an_arm_says_whether_its_endpoint_streams(stream: bool) -> None:
    arm = ArmSpec(
        name="B", role=ArmRole.CANDIDATE, url="http://h:1", api="openai", served_model="m", stream=stream
    )
    plan: Any = SimpleNamespace(runner=RunnerSpec())
    backend = backend_of(plan, arm, url=None, run_id="r")
    assert isinstance(backend, OpenAIHttp)
    assert backend.stream == stream


def test_only_an_openai_endpoint_streams() -> None:
    with pytest.raises(ValueError, match=r'stream goes with api = "openai"'):
        ArmSpec(name="B", role=ArmRole.CANDIDATE, url="http://h:1", stream=True)


def test_events_are_read_by_the_line() -> None:
    lines = EventLines()
    stream = [
        b": comment",
        b"event: message",
        b"data: a",
        b"data:b",
        b"id: 3",
        b"",
        b"",
        b"data",
        b"",
        b"data:  c\r",
        b"\r",
    ]
    assert [found for line in stream if (found := lines.take(line)) is not None] == [b"a\nb", b"", b" c"]
