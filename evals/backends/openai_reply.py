"""The OpenAI wire format: bodies of requests, and replies read without guessing.

A reply without ``usage`` or ``finish_reason`` is an error, not an answer: truncation could not be
told from an ending. Null content stays None.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from equipoise.evals.backends.json_client import JsonClient
from equipoise.evals.types import ChatOptions, Message, Output, Request, ToolCall

__all__ = ["chat_body", "completion_body", "output_from_chat", "output_from_completion", "rendering"]

MAX_TOOL_CALLS = 1024
# Reasons that are no ending of an answer; beside OpenAI's those of SGLang, vLLM and Zhipu.
_ABORTED = frozenset({"abort", "error", "network_error"})
_FILTERED = frozenset({"content_filter", "sensitive"})
_SAME_REASON = dict.fromkeys(("max_tokens", "model_length", "model_context_window_exceeded"), "length")


def _sampling(request: Request, *, ignore_eos: bool) -> dict[str, Any]:
    s = request.sampling
    body: dict[str, Any] = {"max_tokens": s.max_new_tokens, "temperature": s.temperature}
    if s.top_p != 1.0:
        body["top_p"] = s.top_p
    if s.top_k is not None:
        body["top_k"] = s.top_k
    if s.min_p is not None:
        body["min_p"] = s.min_p
    if s.stop:
        body["stop"] = list(s.stop)
    if s.seed is not None:
        body["seed"] = s.seed
    if s.ignore_eos and ignore_eos:
        body["ignore_eos"] = True
    return body


def chat_body(request: Request, *, model: str, ignore_eos: bool) -> dict[str, Any]:
    """Body of ``/v1/chat/completions``; ``ignore_eos`` says whether the server knows that extension."""
    assert request.messages is not None
    body = _sampling(request, ignore_eos=ignore_eos)
    body["model"] = model
    body |= rendering(request.messages, request.chat)
    if request.output_logprobs:
        body["logprobs"] = True
    return body


def rendering(messages: Sequence[Message], chat: ChatOptions) -> dict[str, Any]:
    """The part of a chat body that decides how the prompt is rendered."""
    body: dict[str, Any] = {"messages": [_message(m) for m in messages]}
    if chat.tools:
        body["tools"] = [dict(t) for t in chat.tools]
    if chat.tool_choice is not None:
        body["tool_choice"] = chat.tool_choice
    if chat.reasoning_effort is not None:
        body["reasoning_effort"] = chat.reasoning_effort
    if chat.template_kwargs:
        body["chat_template_kwargs"] = dict(chat.template_kwargs)
    return body


def _message(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    return row


def completion_body(request: Request, *, model: str) -> dict[str, Any]:
    """Body of ``/v1/completions``."""
    body = _sampling(request, ignore_eos=False)
    body["model"] = model
    body["prompt"] = request.text if request.text is not None else list(request.input_ids or ())
    if request.prompt_logprobs is not None:
        body["echo"] = True
        body["logprobs"] = max(1, request.prompt_logprobs.top_n)
    elif request.output_logprobs:
        body["logprobs"] = 1
    return body


def _first_choice(client: JsonClient, path: str, reply: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The only choice, and the usage; whatever is wrong with them raises."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        client.fail(path, "the reply does not hold exactly one choice", retryable=True)
    usage = reply.get("usage")
    if not isinstance(usage, dict) or not all(
        isinstance(usage.get(k), int) for k in ("prompt_tokens", "completion_tokens")
    ):
        client.fail(
            path, "the reply has no usage (prompt_tokens, completion_tokens); the endpoint must send it"
        )
    reason = choices[0].get("finish_reason")
    if reason in _ABORTED:
        client.fail(path, f"the server aborted the generation ({reason})", retryable=True)
    if reason in _FILTERED:
        client.fail(path, f"the answer was cut off by the endpoint's content filter ({reason})", refused=True)
    if not isinstance(reason, str):
        client.fail(
            path, "the reply has no finish_reason: a truncated answer could not be told from a whole one"
        )
    return {**choices[0], "finish_reason": _SAME_REASON.get(reason, reason)}, usage


def _text(client: JsonClient, path: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        client.fail(path, f"the answer's content is a {type(value).__name__}, not text")
    return value


def _texts(tokens: Iterable[Any]) -> tuple[str, ...] | None:
    """The tokens as text, if all of them are."""
    found = tuple(tokens)
    return found if found and all(isinstance(t, str) for t in found) else None


def _cached(usage: Mapping[str, Any]) -> int | None:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) else None


def output_from_chat(client: JsonClient, path: str, reply: Any, *, latency_s: float) -> Output:
    """Read a chat completion.

    Raises
    ------
    RequestError
        Anything but exactly one choice with a finish_reason, and its usage.
    """
    choice, usage = _first_choice(client, path, reply)
    message = choice.get("message")
    if not isinstance(message, dict):
        client.fail(path, "the choice has no message", retryable=True)
    logprobs = choice.get("logprobs")
    rows = logprobs.get("content") if isinstance(logprobs, dict) else None
    try:
        output_logprobs = None if rows is None else tuple(float(row["logprob"]) for row in rows)
        output_tokens = None if rows is None else _texts(row.get("token") for row in rows)
    except (TypeError, ValueError, KeyError, AttributeError) as e:
        client.fail(path, f"malformed logprobs ({e!r})")
    return Output(
        text=_text(client, path, message.get("content")),
        finish_reason=choice["finish_reason"],
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        latency_s=latency_s,
        cached_tokens=_cached(usage),
        reasoning=_reasoning(client, path, message),
        tool_calls=_tool_calls(client, path, message.get("tool_calls")),
        output_logprobs=output_logprobs,
        output_tokens=output_tokens,
    )


def _reasoning(client: JsonClient, path: str, message: Mapping[str, Any]) -> str | None:
    """Thinking under either of its names; an empty one is none."""
    for name in ("reasoning_content", "reasoning"):
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            client.fail(path, f"the answer's {name} is a {type(value).__name__}, not text")
        if value:
            return value
    return None


def _tool_calls(client: JsonClient, path: str, value: Any) -> tuple[ToolCall, ...] | None:
    """Calls with their arguments as sent; a server that parsed them already gets them as JSON again."""
    if not value:
        return None
    if not isinstance(value, list) or len(value) > MAX_TOOL_CALLS:
        client.fail(path, f"tool_calls is not a list of at most {MAX_TOOL_CALLS} calls")
    calls = []
    for row in value:
        function = row.get("function") if isinstance(row, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            client.fail(path, "a tool call has no function with a name")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else json.dumps(arguments)
        calls.append(ToolCall(name=function["name"], arguments=arguments, id=str(row.get("id") or "")))
    return tuple(calls)


def output_from_completion(
    client: JsonClient, path: str, request: Request, reply: Any, *, latency_s: float
) -> Output:
    """Read a text completion, with the echoed prompt's logprobs if they were asked for.

    Raises
    ------
    RequestError
        As for chat; and when prompt logprobs were asked for and the endpoint did not send them.
    """
    choice, usage = _first_choice(client, path, reply)
    text = _text(client, path, choice.get("text"))
    n_prompt = usage["prompt_tokens"]
    found: dict[str, Any] = {}
    wants_any = request.prompt_logprobs is not None or request.output_logprobs
    if wants_any:
        logprobs = choice.get("logprobs")
        values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        if not isinstance(values, list):
            client.fail(
                path, "this endpoint sends no logprobs; use one that does, or leave out the logprob tasks"
            )
        try:
            numbers = tuple(None if v is None else float(v) for v in values)
        except (TypeError, ValueError) as e:
            client.fail(path, f"malformed logprobs ({e!r})")
        if request.prompt_logprobs is not None:
            if len(numbers) < n_prompt:
                client.fail(
                    path,
                    f"{len(numbers)} logprobs for a prompt of {n_prompt} tokens: this endpoint cannot echo "
                    "the prompt's logprobs; use SGLang's native endpoint, or leave out the logprob tasks",
                )
            start = request.prompt_logprobs.start
            found["prompt_logprobs_start"] = start
            found["prompt_logprobs"] = numbers[start:n_prompt]
            text = _without_echo(client, path, request, choice, n_prompt)
            numbers = numbers[n_prompt:]
        if request.output_logprobs:
            if any(n is None for n in numbers):
                client.fail(path, "a generated token has no logprob (NaN logits?)")
            found["output_logprobs"] = numbers
            tokens = choice["logprobs"].get("tokens")
            if isinstance(tokens, list) and len(tokens) == len(values):
                found["output_tokens"] = _texts(tokens[len(tokens) - len(numbers) :])
    return Output(
        text=text,
        finish_reason=choice["finish_reason"],
        prompt_tokens=n_prompt,
        completion_tokens=usage["completion_tokens"],
        latency_s=latency_s,
        cached_tokens=_cached(usage),
        **found,
    )


def _without_echo(
    client: JsonClient, path: str, request: Request, choice: Mapping[str, Any], n_prompt: int
) -> str | None:
    """The generated part of a text that starts with its prompt."""
    text: str | None = choice["text"]
    if text is None:
        return None
    if request.text is not None and text.startswith(request.text):
        return text[len(request.text) :]
    tokens = choice["logprobs"].get("tokens")
    if isinstance(tokens, list) and all(isinstance(t, str) for t in tokens):
        return "".join(tokens[n_prompt:])
    client.fail(path, "the echoed text does not start with the prompt; the answer cannot be told from it")
