"""Native SGLang requests carry what was asked, and replies are read without guessing."""

from typing import Any

import pytest
from aiohttp import web
from run_doubles import GREEDY, FakeServer, always, chat_reply, generated, key

from equipoise.evals.backends.sglang_http import SglangHttp
from equipoise.evals.errors import RequestError
from equipoise.evals.thinking import settle
from equipoise.evals.types import Message, Output, PromptLogprobs, Request, SamplingParams

ROWS = [[None, 10, None], [-0.5, 11, None], [-1.25, 12, None]]
TOPS = [None, [[-0.1, 99, None], [-0.5, 11, None]], [[-1.25, 12, None], [-3.0, 4, None]]]


async def complete(reply: Any, request: Request, *, repeat: int = 0, **kw: Any) -> tuple[Output, Any]:
    async with FakeServer(always(reply)).running() as server:
        backend = SglangHttp(server.url, **kw)
        try:
            out = await backend.complete(key(repeat=repeat), request)
        finally:
            await backend.close()
        return out, server.bodies[0]


async def test_a_text_request_and_its_reply() -> None:
    sampling = SamplingParams(
        max_new_tokens=9, temperature=0.7, top_p=0.9, stop=("\n",), seed=5, ignore_eos=True
    )
    out, body = await complete(
        generated("four", cached_tokens=1), Request(text="2+2=", sampling=sampling), cache_salt="run1-A1"
    )
    assert body == {
        "text": "2+2=",
        "sampling_params": {
            "max_new_tokens": 9,
            "temperature": 0.7,
            "top_p": 0.9,
            "stop": ["\n"],
            "sampling_seed": 5,
            "ignore_eos": True,
        },
        "cache_salt": "run1-A1",
    }
    assert (out.text, out.finish_reason, out.prompt_tokens, out.completion_tokens) == ("four", "stop", 3, 2)
    assert (out.cached_tokens, out.token_ids) == (1, (5, 6))
    assert out.latency_s > 0


async def test_prompt_logprobs_start_where_asked_and_name_the_first_choice() -> None:
    reply = generated(prompt_tokens=5, input_token_logprobs=ROWS, input_top_logprobs=TOPS)
    request = Request(
        input_ids=(1, 2, 10, 11, 12), sampling=GREEDY, prompt_logprobs=PromptLogprobs(start=2, top_n=2)
    )
    out, body = await complete(reply, request)
    assert (body["return_logprob"], body["logprob_start_len"], body["top_logprobs_num"]) == (True, 2, 2)
    assert body["input_ids"] == [1, 2, 10, 11, 12]
    assert out.prompt_logprobs_start == 2
    assert out.prompt_logprobs == (None, -0.5, -1.25)
    assert out.prompt_token_ids == (10, 11, 12)
    assert out.prompt_top1_ids == (None, 99, 12)
    top = out.prompt_top_logprobs
    assert top is not None
    assert (top.positions, top.k) == ((3, 4), 2)  # nothing precedes the first position asked for
    assert top.id_rows.tolist() == [[99, 11], [12, 4]]
    assert top.logprob_rows.tolist() == [[pytest.approx(-0.1), -0.5], [-1.25, -3.0]]


@pytest.mark.parametrize(
    ("tops", "positions"),
    [
        (TOPS, (4,)),
        ([None, TOPS[1], [[-1.25, 12, None], [None, 4, None]]], None),  # NaN or minus infinity: not a list
        ([None, TOPS[1], []], None),
    ],
)
async def test_lists_are_kept_where_asked_and_whole(tops: list[Any], positions: tuple[int, ...]) -> None:
    reply = generated(prompt_tokens=5, input_token_logprobs=ROWS, input_top_logprobs=tops)
    asked = PromptLogprobs(start=2, top_n=2, top_positions=(4,))
    out, _ = await complete(
        reply, Request(input_ids=(1, 2, 10, 11, 12), sampling=GREEDY, prompt_logprobs=asked)
    )
    found = out.prompt_top_logprobs
    assert (None if found is None else found.positions) == positions


@pytest.mark.parametrize(
    "row",
    [
        [[-0.1, 1, None]] * 3,  # more than were asked for
        [[-0.1, -1, None]],
        [[-0.1, 2**31, None]],
        [[-1e40, 1, None]],
        [["x", 1, None]],
        [[-(10**400), 1, None]],
        [7],
    ],
)
async def test_lists_that_cannot_be_are_an_error_of_the_reply(row: list[Any]) -> None:
    reply = generated(prompt_tokens=5, input_token_logprobs=ROWS, input_top_logprobs=[None, *TOPS[1:2], row])
    request = Request(text="x", sampling=GREEDY, prompt_logprobs=PromptLogprobs(start=2, top_n=2))
    with pytest.raises(RequestError, match="malformed logprobs"):
        await complete(reply, request)


async def test_too_few_prompt_logprobs_are_an_error_not_a_shift() -> None:
    reply = generated(prompt_tokens=9, input_token_logprobs=ROWS, input_top_logprobs=TOPS)
    request = Request(text="x", sampling=GREEDY, prompt_logprobs=PromptLogprobs(start=2))
    with pytest.raises(RequestError, match="malformed logprobs"):
        await complete(reply, request)


async def test_output_logprobs_are_only_asked_for_outputs() -> None:
    reply = generated(output_token_logprobs=[[-0.25, 5, None], [-0.5, 6, None]])
    out, body = await complete(reply, Request(text="x", sampling=GREEDY, output_logprobs=True))
    assert body["return_logprob"] is True
    assert "logprob_start_len" not in body
    assert out.output_logprobs == (-0.25, -0.5)
    del reply["output_ids"]
    out, _ = await complete(reply, Request(text="x", sampling=GREEDY, output_logprobs=True))
    assert out.token_ids == (5, 6)
    reply = generated(output_token_logprobs=[[None, 5, None]])
    with pytest.raises(RequestError, match="malformed logprobs"):
        await complete(reply, Request(text="x", sampling=GREEDY, output_logprobs=True))


@pytest.mark.parametrize("missing", ["prompt_tokens", "completion_tokens", "cached_tokens", "finish_reason"])
async def test_a_reply_without_its_counts_is_no_answer(missing: str) -> None:
    reply = generated()
    del reply["meta_info"][missing]
    with pytest.raises(RequestError, match=missing):
        await complete(reply, Request(text="x", sampling=GREEDY))


async def test_null_text_stays_null() -> None:
    assert (await complete(generated(None), Request(text="x", sampling=GREEDY)))[0].text is None


async def test_a_lone_surrogate_in_a_reply_survives() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        body = b'{"text": "a\\ud800\\u0000", "meta_info": {"finish_reason": {"type": "length"},'
        body += b'"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}}'
        return web.Response(body=body, content_type="application/json")

    async with FakeServer(handler).running() as server:
        backend = SglangHttp(server.url)
        out = await backend.complete(key(), Request(text="x", sampling=GREEDY))
        await backend.close()
    assert (out.text, out.finish_reason) == ("a\ud800\0", "length")


async def test_conversations_go_through_the_servers_own_chat_template() -> None:
    request = Request(messages=(Message(role="user", content="hi"),), sampling=GREEDY)
    out, body = await complete(chat_reply("hello"), request, cache_salt="s")
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert body["max_tokens"] == GREEDY.max_new_tokens
    assert body["cache_salt"] == "s"
    assert (out.text, out.prompt_tokens) == ("hello", 7)


@pytest.mark.parametrize(
    ("parser", "text", "finish"),
    [("glm45", "42", "stop"), (None, None, "length")],
    ids=["a parser took empty thinking away", "nobody knows where thinking ends"],
)
async def test_an_answer_without_thinking_is_whole_where_the_server_parses_it(
    parser: str | None, text: str | None, finish: str
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        facts = {"reasoning_parser": parser}
        return web.json_response(chat_reply("42") if request.method == "POST" else facts)

    async with FakeServer(answer).running() as server:
        backend = SglangHttp(server.url)
        await backend.describe()
        request = Request(messages=(Message(role="user", content="6*7?"),), sampling=GREEDY)
        settled = settle(await backend.complete(key(), request), thinking="on")
        await backend.close()
    assert (settled.text, settled.finish_reason) == (text, finish)


async def test_prompt_logprobs_of_a_conversation_are_refused_before_anything_is_sent() -> None:
    request = Request(
        messages=(Message(role="user", content="hi"),),
        sampling=GREEDY,
        prompt_logprobs=PromptLogprobs(start=0),
    )
    async with FakeServer(always(chat_reply())).running() as server:
        with pytest.raises(RequestError, match="no prompt logprobs for conversations"):
            await SglangHttp(server.url).complete(key(), request)
        assert server.bodies == []


async def test_arms_and_repeats_have_cache_namespaces_of_their_own_and_turns_share_one() -> None:
    request = Request(text="x", sampling=GREEDY)
    salts = {
        (salt, repeat): (await complete(generated(), request, cache_salt=salt, repeat=repeat))[1][
            "cache_salt"
        ]
        for salt in ("A1", "A2")
        for repeat in (0, 1)
    }
    assert len(set(salts.values())) == 4
    again = (await complete(generated(), request, cache_salt="A1"))[1]["cache_salt"]
    assert again == salts["A1", 0]
    assert "cache_salt" not in (await complete(generated(), request))[1]


async def test_what_the_server_says_about_itself() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        replies = {
            "/server_info": {"kv_cache_dtype": "auto", "version": "0.5.23"},
            "/model_info": {"model_path": "m"},
            "/v1/tokenize": {"tokens": [1, 2], "count": 2},
        }
        if request.path == "/flush_cache":
            return web.Response(text="Cache flushed.\n")
        return web.json_response(replies[request.path])

    async with FakeServer(handler).running() as server:
        backend = SglangHttp(server.url + "/v1/")
        assert await backend.describe() == {"kv_cache_dtype": "auto", "version": "0.5.23", "model_path": "m"}
        assert await backend.tokenize("a b") == (1, 2)
        assert await backend.tokenize_chat((Message(role="user", content="q"),)) == (1, 2)
        await backend.flush_cache()
        await backend.close()
        assert server.bodies[2:4] == [{"prompt": "a b"}, {"messages": [{"role": "user", "content": "q"}]}]


async def test_a_refused_flush_is_an_error() -> None:
    async with FakeServer(always({"error": "running requests"}, status=400)).running() as server:
        backend = SglangHttp(server.url)
        with pytest.raises(RequestError, match="running requests"):
            await backend.flush_cache()
        await backend.close()
