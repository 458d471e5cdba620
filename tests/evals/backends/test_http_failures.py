"""Every way an HTTP reply can fail becomes a RequestError that says whether to ask again."""

import asyncio
import datetime
import email.utils
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from run_doubles import GREEDY, FakeServer, Handler, always, chat_reply, generated, key

from equipoise.evals.backends import json_client
from equipoise.evals.backends.json_client import JsonClient, parse_retry_after
from equipoise.evals.backends.openai_http import OpenAIHttp
from equipoise.evals.backends.sglang_http import SglangHttp
from equipoise.evals.errors import RequestError, UsageError
from equipoise.evals.types import Backend, Message, Output, Request

ASK = Request(text="2+2=", sampling=GREEDY)
CHAT = Request(messages=(Message(role="user", content="hi"),), sampling=GREEDY)
SECRET = "sk-very-secret-123"


def sglang(url: str) -> Backend:
    return SglangHttp(url, timeout_s=5)


def openai(url: str) -> Backend:
    return OpenAIHttp(url, model="m", timeout_s=5)


BOTH = pytest.mark.parametrize("make", [sglang, openai])


async def ask(make: Callable[[str], Backend], handler: Handler, request: Request = ASK) -> Output:
    async with FakeServer(handler).running() as server:
        backend = make(server.url)
        try:
            return await backend.complete(key(), request)
        finally:
            await backend.close()


async def failure(make: Callable[[str], Backend], handler: Handler, request: Request = ASK) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await ask(make, handler, request)
    assert "http://127.0.0.1:" in str(caught.value)
    return caught.value


@BOTH
@pytest.mark.parametrize(
    ("status", "retryable"),
    [(s, False) for s in (302, 400, 401, 403, 404)] + [(s, True) for s in (408, 429, 500, 502, 503, 504)],
)
async def test_the_status_says_whether_to_retry(make: Any, status: int, retryable: bool) -> None:
    e = await failure(make, always({"error": {"message": "why not"}}, status=status))
    assert (e.retryable, e.refused, e.unreachable) == (retryable, False, False)
    assert f"HTTP {status}" in str(e)
    assert "why not" in str(e)


@BOTH
async def test_retry_after_is_read_in_seconds_and_as_a_date(make: Any) -> None:
    e = await failure(make, always({}, status=429, headers={"Retry-After": "7"}))
    assert e.retry_after_s == 7
    when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=90)
    date = email.utils.format_datetime(when, usegmt=True)
    e = await failure(make, always({}, status=503, headers={"Retry-After": date}))
    assert e.retry_after_s is not None
    assert 80 < e.retry_after_s <= 90


@pytest.mark.parametrize("value", ["soon", "", "-3", "1e999", "9" * 400, "inf", "nan"])
def test_an_unusable_retry_after_is_ignored(value: str) -> None:
    assert parse_retry_after(value) is None


def test_a_retry_after_in_the_past_means_now() -> None:
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT", now_unix_s=1445412480 - 30) == 30


@BOTH
@pytest.mark.parametrize(
    "message",
    [
        "The input (20000 tokens) is longer than the model's context length (4096 tokens).",
        "Requested token count exceeds the model's maximum context length of 4096 tokens.",
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
        "The response was filtered due to the prompt triggering the content management policy",
    ],
)
async def test_context_overflow_is_a_refusal_not_a_fault(make: Any, message: str) -> None:
    e = await failure(make, always({"error": {"message": message}}, status=400))
    assert (e.refused, e.retryable) == (True, False)


@BOTH
async def test_a_refused_connection_is_unreachable(make: Any) -> None:
    async with FakeServer(always({})).running() as server:
        url = server.url
    backend = make(url)
    with pytest.raises(RequestError, match="cannot connect") as caught:
        await backend.complete(key(), ASK)
    await backend.close()
    assert (caught.value.unreachable, caught.value.retryable) == (True, True)


@BOTH
async def test_a_reset_connection_may_be_retried(make: Any) -> None:
    async def reset(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    e = await failure(make, reset)
    assert (e.retryable, e.unreachable) == (True, False)


@BOTH
async def test_a_connection_that_breaks_within_the_body_is_no_answer(make: Any) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"text": "ha')
        assert request.transport is not None
        request.transport.close()
        return response

    assert (await failure(make, half)).retryable


async def test_a_slow_reply_times_out_and_may_be_retried() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    e = await failure(lambda url: SglangHttp(url, timeout_s=0.2), slow)
    assert e.retryable
    assert "no reply within 0.2 s" in str(e)


@BOTH
@pytest.mark.parametrize("body", [b"", b"<html>", b'{"text": ', b"\xff\xfe", b'{"x": NaN}', b"[" * 100_000])
async def test_a_body_that_is_not_json_is_no_answer(make: Any, body: bytes) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    assert "not JSON" in str(await failure(make, handler))


@BOTH
@pytest.mark.parametrize("body", [[], "text", None, 3, {}, {"choices": []}, {"meta_info": {}}])
async def test_json_of_another_shape_is_no_answer(make: Any, body: Any) -> None:
    await failure(make, always(body))


@BOTH
@pytest.mark.parametrize("known_length", [True, False])
async def test_a_huge_body_is_not_read_to_its_end(
    make: Any, known_length: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_client, "MAX_REPLY_BYTES", 1 << 20)
    sent = 0

    async def huge(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        headers = {"Content-Length": str(1 << 30)} if known_length else {}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        while sent < 1 << 30:
            await response.write(b"x" * 65536)
            sent += 65536
        return response

    e = await failure(make, huge)
    assert "larger than 1 MiB" in str(e)
    assert sent < 64 << 20


@BOTH
async def test_a_compressed_reply_is_refused_before_it_can_grow(make: Any) -> None:
    e = await failure(make, always({}, headers={"Content-Encoding": "gzip"}))
    assert "compressed" in str(e)


@BOTH
async def test_a_redirect_is_not_followed(make: Any) -> None:
    async def elsewhere(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("http://127.0.0.1:1/steal")

    assert "HTTP 302" in str(await failure(make, elsewhere))


async def test_an_error_inside_a_200_is_no_answer() -> None:
    assert "error inside" in str(await failure(openai, always({"error": {"message": "overloaded"}})))


async def test_server_messages_are_bounded_and_printable() -> None:
    e = await failure(sglang, always({"error": {"message": "\x1b[2J\n" + "y" * 100_000}}, status=500))
    assert len(str(e)) < 1000
    assert str(e).isprintable()


@pytest.mark.parametrize("path", ["error", "ok"])
async def test_the_api_key_is_sent_but_never_told(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    reply = always({"error": f"bad key {SECRET}"}, status=401) if path == "error" else always(chat_reply())
    async with FakeServer(reply).running() as server:
        backend = OpenAIHttp(server.url, model="m", api_key_env="MY_KEY")
        told = repr(backend) + backend.label + repr(backend._client)
        try:
            told += repr(await backend.complete(key(), CHAT))
        except RequestError as e:
            told += str(e)
        await backend.close()
        assert server.headers[0]["Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in told
    assert ("***" in told) == (path == "error")


def test_a_missing_key_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(UsageError, match="MY_KEY is not set"):
        OpenAIHttp("http://h:1", model="m", api_key_env="MY_KEY")


@pytest.mark.parametrize("url", ["localhost:30000", "ftp://h", "http://", "http://h:1?x=1", ""])
def test_what_is_not_a_base_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        JsonClient(url)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        JsonClient("http://me:hunter2@host:1")
    assert "hunter2" not in str(caught.value)


@BOTH
async def test_an_aborted_generation_is_no_answer_and_may_be_retried(make: Any) -> None:
    abort = {"type": "abort", "message": "out of memory"}
    native = generated("partial", finish_reason=abort)
    reply = {**native, **{"choices": [{"text": "partial", "finish_reason": "abort"}]}}
    reply["usage"] = {"prompt_tokens": 1, "completion_tokens": 1}
    e = await failure(make, always(reply))
    assert e.retryable
    assert "aborted" in str(e)


@BOTH
async def test_failures_leave_the_client_usable(make: Any) -> None:
    calls = 0

    async def second_works(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        if calls == 1:
            assert request.transport is not None
            request.transport.abort()
        reply = {**generated(), "choices": [{"text": "ok", "finish_reason": "stop"}]}
        reply["usage"] = {"prompt_tokens": 3, "completion_tokens": 2}
        return web.json_response(reply)

    async with FakeServer(second_works).running() as server:
        backend = make(server.url)
        with pytest.raises(RequestError):
            await backend.complete(key(), ASK)
        assert (await backend.complete(key(), ASK)).text == "ok"
        await backend.close()
