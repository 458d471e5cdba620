"""Any OpenAI-compatible endpoint: completions for text and token ids, chat for conversations."""

import time
from collections.abc import Sequence
from typing import Any

from equipoise.evals.backends.json_client import JsonClient
from equipoise.evals.backends.openai_reply import (
    chat_body,
    completion_body,
    output_from_chat,
    output_from_completion,
)
from equipoise.evals.backends.openai_stream import STREAMED, ChatStream
from equipoise.evals.types import ChatOptions, Message, Output, Request, SampleKey, SamplingParams

__all__ = ["OpenAIHttp"]

_CHAT = "/chat/completions"
_COMPLETIONS = "/completions"


class OpenAIHttp:
    """Backend over one OpenAI-compatible endpoint.

    Parameters
    ----------
    base_url : str
        With or without ``/v1``; without a path, ``/v1`` is added.
    model : str
        The model name to ask for.
    timeout_s : float
        For one request.
    api_key_env : str or None
        The environment variable with the API key.
    stream : bool
        Whether conversations are answered by a stream, of which only a whole one counts; not where
        logprobs are asked for.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        timeout_s: float = 600.0,
        api_key_env: str | None = None,
        stream: bool = False,
    ) -> None:
        base_url = base_url.rstrip("/")
        if base_url.count("/") == 2:  # http://host:port
            base_url += "/v1"
        self._client = JsonClient(base_url, timeout_s=timeout_s, api_key_env=api_key_env)
        self.model = model
        self.stream = stream

    def __repr__(self) -> str:
        return f"OpenAIHttp({self.label!r}, model={self.model!r})"

    @property
    def label(self) -> str:
        return self._client.base_url

    async def close(self) -> None:
        await self._client.close()

    async def complete(self, key: SampleKey, request: Request) -> Output:
        """Answer one request.

        Raises
        ------
        RequestError
            Any failure; also when something was asked for that this endpoint cannot give.
        """
        started = time.perf_counter()
        if request.messages is not None:
            if request.prompt_logprobs is not None:
                self._client.fail(_CHAT, "no prompt logprobs for conversations; ask with text or input_ids")
            body = chat_body(request, model=self.model, ignore_eos=False)
            # SGLang's streams leave out the logprobs of tokens without text, such as the last.
            if self.stream and not request.output_logprobs:
                stream = ChatStream(self._client, _CHAT)
                await self._client.post_events(_CHAT, {**body, **STREAMED}, stream.take)
                reply: Any = stream.reply()
            else:
                reply = await self._client.post(_CHAT, body)
            return output_from_chat(self._client, _CHAT, reply, latency_s=time.perf_counter() - started)
        reply = await self._client.post(_COMPLETIONS, completion_body(request, model=self.model))
        return output_from_completion(
            self._client, _COMPLETIONS, request, reply, latency_s=time.perf_counter() - started
        )

    # -- about the server ------------------------------------------------------------------

    async def describe(self) -> dict[str, Any]:
        """What can be learned about the model: its entry in ``/models``, less what always differs."""
        reply = await self._client.get("/models")
        rows = reply.get("data") if isinstance(reply, dict) else None
        entries = [row for row in rows or () if isinstance(row, dict)]
        for row in entries:
            if row.get("id") == self.model:
                return {k: v for k, v in row.items() if k not in ("id", "created", "permission")}
        names = ", ".join(repr(row.get("id")) for row in entries[:8]) or "none"
        self._client.fail("/models", f"no model {self.model!r} here; it serves {names}")

    async def count_prompt_tokens(self, text: str) -> int:
        """How many tokens the endpoint makes of a plain prompt, by asking for one token."""
        request = Request(text=text, sampling=SamplingParams(max_new_tokens=1))
        return (await self.complete(_PROBE, request)).prompt_tokens

    async def count_chat_tokens(self, messages: Sequence[Message], chat: ChatOptions | None = None) -> int:
        """How many prompt tokens the endpoint makes of a conversation."""
        request = Request(
            messages=tuple(messages),
            sampling=SamplingParams(max_new_tokens=1),
            chat=chat or ChatOptions(),
        )
        return (await self.complete(_PROBE, request)).prompt_tokens


_PROBE = SampleKey(model="", arm="", task="parity", item_id="probe")
