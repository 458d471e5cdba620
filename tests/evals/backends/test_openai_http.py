"""OpenAI-compatible endpoints: what is asked, and that nothing missing is made up."""

from typing import Any

import pytest
from run_doubles import GREEDY, FakeServer, always, chat_reply, key

from equipoise.evals.backends.openai_http import OpenAIHttp
from equipoise.evals.errors import RequestError
from equipoise.evals.types import Message, Output, PromptLogprobs, Request, SamplingParams

CHAT = Request(messages=(Message(role="user", content="hi"),), sampling=GREEDY)


def completion(text: str | None = "ok", **choice: Any) -> dict[str, Any]:
    return {
        "choices": [{"index": 0, "text": text, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    }


async def complete(reply: Any, request: Request) -> tuple[Output, Any]:
    async with FakeServer(always(reply)).running() as server:
        backend = OpenAIHttp(server.url, model="the-model")
        try:
            return await backend.complete(key(), request), server.bodies[0]
        finally:
            await backend.close()


async def test_a_chat_request_and_its_reply() -> None:
    out, body = await complete(chat_reply("hello", finish_reason="length"), CHAT)
    assert body == {
        "model": "the-model",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 8,
        "temperature": 0.0,
    }
    assert (out.text, out.finish_reason, out.prompt_tokens, out.completion_tokens) == (
        "hello",
        "length",
        7,
        2,
    )


async def test_null_content_is_not_an_empty_answer() -> None:
    assert (await complete(chat_reply(None), CHAT))[0].text is None
    assert (await complete(chat_reply(""), CHAT))[0].text == ""


@pytest.mark.parametrize("request_", [CHAT, Request(text="x", sampling=GREEDY)])
@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": 1}, {"prompt_tokens": "1", "completion_tokens": 2}]
)
async def test_a_reply_without_usage_is_an_error(request_: Request, usage: Any) -> None:
    reply = (
        {**completion(), **chat_reply(usage=usage)} if request_ is CHAT else {**completion(), "usage": usage}
    )
    with pytest.raises(RequestError, match="usage"):
        await complete(reply, request_)


@pytest.mark.parametrize(
    ("reason", "refused", "retryable"),
    [
        *(("content_filter", True, False), ("sensitive", True, False)),
        *(("abort", False, True), ("error", False, True), ("network_error", False, True)),
    ],
)
async def test_what_a_filter_or_a_fault_cut_off_is_no_answer(
    reason: str, refused: bool, retryable: bool
) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        await complete(chat_reply("I can", finish_reason=reason), CHAT)
    assert (caught.value.refused, caught.value.retryable) == (refused, retryable)


@pytest.mark.parametrize("reason", ["max_tokens", "model_length", "model_context_window_exceeded"])
async def test_a_budget_by_another_name_is_one(reason: str) -> None:
    out, _ = await complete(chat_reply("I can", finish_reason=reason), CHAT)
    assert out.finish_reason == "length"


async def test_a_reply_without_a_finish_reason_is_an_error() -> None:
    with pytest.raises(RequestError, match="finish_reason"):
        await complete(chat_reply(finish_reason=None), CHAT)


async def test_two_choices_are_an_error() -> None:
    reply = chat_reply()
    reply["choices"] *= 2
    with pytest.raises(RequestError, match="exactly one choice"):
        await complete(reply, CHAT)


@pytest.mark.parametrize("content", [3, ["a"], {"type": "text"}])
async def test_content_that_is_not_text_is_an_error(content: Any) -> None:
    with pytest.raises(RequestError, match="not text"):
        await complete(chat_reply(content), CHAT)


async def test_completions_take_text_and_token_ids() -> None:
    sampling = SamplingParams(max_new_tokens=4, stop=("x",), seed=3, top_p=0.5, ignore_eos=True)
    out, body = await complete(completion("four"), Request(text="2+2=", sampling=sampling))
    assert body["prompt"] == "2+2="
    assert (body["stop"], body["seed"], body["top_p"]) == (["x"], 3, 0.5)
    assert "ignore_eos" not in body  # not in the protocol; a strict endpoint answers 400
    assert (out.text, out.cached_tokens) == ("four", 1)
    _, body = await complete(completion(), Request(input_ids=(1, 2), sampling=GREEDY))
    assert body["prompt"] == [1, 2]


async def test_prompt_logprobs_come_by_echo_and_the_echo_is_taken_off() -> None:
    reply = completion(
        "2+2= 4", logprobs={"tokens": ["2", "+", "2=", " ", "4"], "token_logprobs": [None, -1, -2.5, -3, -4]}
    )
    out, body = await complete(
        reply,
        Request(text="2+2=", sampling=GREEDY, prompt_logprobs=PromptLogprobs(start=1), output_logprobs=True),
    )
    assert body["echo"] is True
    assert out.text == " 4"
    assert (out.prompt_logprobs_start, out.prompt_logprobs) == (1, (-1.0, -2.5))
    assert out.output_logprobs == (-3.0, -4.0)
    out, _ = await complete(
        reply, Request(input_ids=(1, 2, 3), sampling=GREEDY, prompt_logprobs=PromptLogprobs(start=0))
    )
    assert out.text == " 4"


@pytest.mark.parametrize("logprobs", [None, {"token_logprobs": [-1.0, -2.0]}, {"token_logprobs": None}])
async def test_an_endpoint_that_cannot_give_prompt_logprobs_is_told_so(logprobs: Any) -> None:
    request = Request(text="2+2=", sampling=GREEDY, prompt_logprobs=PromptLogprobs(start=0))
    with pytest.raises(RequestError, match="logprob"):
        await complete(completion("2+2= 4", logprobs=logprobs), request)


async def test_chat_logprobs_are_read() -> None:
    reply = chat_reply("ab")
    reply["choices"][0]["logprobs"] = {
        "content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]
    }
    request = Request(messages=CHAT.messages, sampling=GREEDY, output_logprobs=True)
    out, body = await complete(reply, request)
    assert body["logprobs"] is True
    assert out.output_logprobs == (-0.5, -1.0)


async def test_a_model_that_is_not_served_is_named_with_those_that_are() -> None:
    reply = {"object": "list", "data": [{"id": "other", "object": "model"}]}
    async with FakeServer(always(reply)).running() as server:
        backend = OpenAIHttp(server.url, model="mine")
        with pytest.raises(RequestError, match=r"no model 'mine' here; it serves 'other'"):
            await backend.describe()
        await backend.close()


def test_v1_is_added_only_to_a_bare_host() -> None:
    assert OpenAIHttp("http://h:1/", model="m").label == "http://h:1/v1"
    assert OpenAIHttp("http://h:1/v1", model="m").label == "http://h:1/v1"
    assert OpenAIHttp("https://h/api/paas/v4", model="m").label == "https://h/api/paas/v4"
