"""A running SGLang server, asked through its native ``/generate``.

Native requests give what the OpenAI protocol does not: token ids, logprobs of prompt tokens from a
given position with the prefix read from the cache, and the number of cached tokens. Conversations
go through ``/v1/chat/completions`` of the same server, so that its own chat template renders them.
Field names are those of SGLang 0.5.23.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from equipoise.evals.backends.json_client import JsonClient
from equipoise.evals.backends.openai_reply import chat_body, output_from_chat, rendering
from equipoise.evals.errors import RequestError
from equipoise.evals.types import (
    ChatOptions,
    Message,
    Output,
    PromptLogprobs,
    Request,
    SampleKey,
    TopLogprobs,
)

__all__ = ["SglangHttp"]

_GENERATE = "/generate"
_CHAT = "/v1/chat/completions"
_TOKENIZE = "/v1/tokenize"


class SglangHttp:
    """Backend over one SGLang server.

    Parameters
    ----------
    base_url : str
        Without ``/v1``.
    cache_salt : str or None
        Namespace of the prefix cache. Two arms that ask one server need different ones, or the
        second only re-reads the first one's pages; within an arm the turns of an item share their
        prefix. Make it unique to run and arm. Repeats of an item get namespaces of their own.
    timeout_s : float
        For one request.
    api_key_env : str or None
        The environment variable with the server's ``--api-key``.
    """

    def __init__(
        self,
        base_url: str,
        *,
        cache_salt: str | None = None,
        timeout_s: float = 600.0,
        api_key_env: str | None = None,
    ) -> None:
        base_url = base_url.rstrip("/").removesuffix("/v1")
        self._client = JsonClient(base_url, timeout_s=timeout_s, api_key_env=api_key_env)
        self.cache_salt = cache_salt
        self._parses_reasoning = False  # until the server has said so, see `describe`

    def __repr__(self) -> str:
        return f"SglangHttp({self.label!r}, cache_salt={self.cache_salt!r})"

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
            Any failure, also an aborted generation and a reply without its counts.
        """
        salt = self._salt(key.repeat)
        started = time.perf_counter()
        if request.messages is not None:
            if request.prompt_logprobs is not None:
                self._client.fail(_CHAT, "no prompt logprobs for conversations; ask with text or input_ids")
            body = chat_body(request, model="default", ignore_eos=True)
            if salt is not None:
                body["cache_salt"] = salt
            reply = await self._client.post(_CHAT, body)
            output = output_from_chat(self._client, _CHAT, reply, latency_s=time.perf_counter() - started)
            if self._parses_reasoning and output.reasoning is None:
                return replace(output, reasoning="")  # known to be none; without a parser it is not known
            return output
        reply = await self._client.post(_GENERATE, generate_body(request, cache_salt=salt))
        return self._output(request, reply, latency_s=time.perf_counter() - started)

    def _salt(self, repeat: int) -> str | None:
        if self.cache_salt is None or repeat == 0:
            return self.cache_salt
        return f"{self.cache_salt}#{repeat}"

    # -- about the server ------------------------------------------------------------------

    async def server_info(self) -> dict[str, Any]:
        """What ``/server_info`` says: resolved arguments, version, live state."""
        return self._mapping("/server_info", await self._client.get("/server_info"))

    async def model_info(self) -> dict[str, Any]:
        """What ``/model_info`` says: paths, type, architectures, weight version."""
        return self._mapping("/model_info", await self._client.get("/model_info"))

    async def describe(self) -> dict[str, Any]:
        """All facts about the server in one mapping; see `parity.compare_arms`."""
        facts = {**await self.model_info(), **await self.server_info()}
        self._parses_reasoning = bool(facts.get("reasoning_parser"))
        return facts

    async def flush_cache(self) -> None:
        """Empty the prefix cache; the server refuses while requests run, which raises."""
        await self._client.post_plain("/flush_cache?timeout=30")

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """The token ids that the server gives a plain prompt."""
        return await self._tokenize({"prompt": text})

    async def tokenize_chat(
        self, messages: Sequence[Message], chat: ChatOptions | None = None
    ) -> tuple[int, ...]:
        """The token ids of a conversation as the server's chat template renders it."""
        return await self._tokenize(rendering(messages, chat or ChatOptions()))

    async def cached_share(self, text: str) -> float:
        """The share of a prompt's tokens that the server finds in this arm's prefix cache, asking it once."""
        body = {"text": text, "sampling_params": {"temperature": 0.0, "max_new_tokens": 1}}
        if self.cache_salt is not None:
            body["cache_salt"] = self.cache_salt
        reply = self._mapping(_GENERATE, await self._client.post(_GENERATE, body))
        meta = self._mapping(_GENERATE, reply.get("meta_info"))
        return self._count(meta, "cached_tokens") / max(1, self._count(meta, "prompt_tokens"))

    async def _tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        reply = self._mapping(_TOKENIZE, await self._client.post(_TOKENIZE, body))
        ids = reply.get("tokens")
        if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
            self._client.fail(_TOKENIZE, "the reply holds no token ids")
        return tuple(ids)

    # -- reading replies -------------------------------------------------------------------

    def _mapping(self, path: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._client.fail(path, f"expected a JSON object, got {type(value).__name__}", retryable=True)
        return value

    def _count(self, meta: Mapping[str, Any], name: str) -> int:
        value = meta.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self._client.fail(_GENERATE, f"the reply has no {name}; is this an SGLang server?")
        return value

    def _output(self, request: Request, reply: Any, *, latency_s: float) -> Output:
        reply = self._mapping(_GENERATE, reply)
        meta = self._mapping(_GENERATE, reply.get("meta_info"))
        finish = meta.get("finish_reason")
        kind = finish.get("type") if isinstance(finish, dict) else finish
        if kind == "abort":
            why = finish.get("message", "no reason given") if isinstance(finish, dict) else "no reason given"
            self._client.fail(_GENERATE, f"the server aborted the generation: {why}", retryable=True)
        if not isinstance(kind, str):
            self._client.fail(_GENERATE, "the reply has no finish_reason; is this an SGLang server?")
        text = reply.get("text")
        if text is not None and not isinstance(text, str):
            self._client.fail(_GENERATE, f"the reply's text is a {type(text).__name__}")
        try:
            return Output(
                text=text,
                finish_reason=kind,
                prompt_tokens=self._count(meta, "prompt_tokens"),
                completion_tokens=self._count(meta, "completion_tokens"),
                latency_s=latency_s,
                cached_tokens=self._count(meta, "cached_tokens"),
                token_ids=_token_ids(request, reply, meta),
                **_logprobs(request, meta),
            )
        except (TypeError, ValueError, KeyError, IndexError, OverflowError) as e:
            raise RequestError(f"{self.label}{_GENERATE}: malformed logprobs or token ids ({e!r})") from e


def generate_body(request: Request, *, cache_salt: str | None) -> dict[str, Any]:
    """The ``/generate`` body of a text or token request."""
    s = request.sampling
    sampling: dict[str, Any] = {"max_new_tokens": s.max_new_tokens, "temperature": s.temperature}
    if s.top_p != 1.0:
        sampling["top_p"] = s.top_p
    if s.top_k is not None:
        sampling["top_k"] = s.top_k
    if s.min_p is not None:
        sampling["min_p"] = s.min_p
    if s.stop:
        sampling["stop"] = list(s.stop)
    if s.seed is not None:
        sampling["sampling_seed"] = s.seed
    if s.ignore_eos:
        sampling["ignore_eos"] = True
    body: dict[str, Any] = {"sampling_params": sampling}
    if request.text is not None:
        body["text"] = request.text
    else:
        assert request.input_ids is not None
        body["input_ids"] = list(request.input_ids)
    if cache_salt is not None:
        body["cache_salt"] = cache_salt
    if request.prompt_logprobs is not None:
        body["return_logprob"] = True
        body["logprob_start_len"] = request.prompt_logprobs.start
        body["top_logprobs_num"] = request.prompt_logprobs.top_n
    elif request.output_logprobs:
        body["return_logprob"] = True
    return body


def _token_ids(request: Request, reply: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The generated tokens, from the reply or from the rows of their logprobs."""
    if reply.get("output_ids") is not None:
        return tuple(map(int, reply["output_ids"]))
    return tuple(int(row[1]) for row in meta["output_token_logprobs"]) if request.output_logprobs else None


def _logprobs(request: Request, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The logprob fields of an Output, from ``[logprob, token id, text]`` rows."""
    found: dict[str, Any] = {}
    if request.output_logprobs:
        found["output_logprobs"] = tuple(float(row[0]) for row in meta["output_token_logprobs"])
    if request.prompt_logprobs is None:
        return found
    rows = meta["input_token_logprobs"]
    start = request.prompt_logprobs.start
    if len(rows) != meta["prompt_tokens"] - start:
        raise ValueError(
            f"{len(rows)} prompt logprobs for {meta['prompt_tokens'] - start} tokens from {start} on"
        )
    found["prompt_logprobs_start"] = start
    # The first is None by SGLang's convention; a later None means NaN logits and is kept as such.
    found["prompt_logprobs"] = tuple(None if row[0] is None else float(row[0]) for row in rows)
    found["prompt_token_ids"] = tuple(int(row[1]) for row in rows)
    if request.prompt_logprobs.top_n > 0:
        tops = meta["input_top_logprobs"]
        if len(tops) != len(rows):
            raise ValueError(f"{len(tops)} rows of top logprobs for {len(rows)} prompt tokens")
        found["prompt_top1_ids"] = tuple(int(top[0][1]) if top else None for top in tops)
        found["prompt_top_logprobs"] = _top_logprobs(request.prompt_logprobs, tops)
    return found


def _top_logprobs(asked: PromptLogprobs, tops: Sequence[Any]) -> TopLogprobs | None:
    """The lists at the positions asked for; None if none of them has one."""
    positions = (
        range(asked.start, asked.start + len(tops)) if asked.top_positions is None else asked.top_positions
    )
    kept, lists = [], []
    for position in positions:
        top = tops[position - asked.start] if position >= asked.start else None
        # Nothing precedes the first position; a null inside a list means NaN or minus infinity.
        if not top or any(row[0] is None for row in top):
            continue
        if len(top) > asked.top_n:
            raise ValueError(f"{len(top)} likely tokens at position {position}, {asked.top_n} were asked for")
        kept.append(position)
        lists.append([(int(row[1]), float(row[0])) for row in top])
    return TopLogprobs.of(kept, lists) if kept else None
