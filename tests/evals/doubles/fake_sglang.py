"""An SGLang endpoint that answers the embedded tasks without a model, on a thread of its own.

Characters are tokens (the embedded models' own tokenizer), answers are right unless ``wrong`` says
otherwise, and the prefix cache obeys its salts.
"""

import asyncio
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from aiohttp import web

from equipoise.evals.types import Message
from equipoise.tasks.embedded.tokenizer import encode, render_chat

__all__ = ["FakeSglang", "serving", "share"]

NO_TEMPLATE = "tokenizer.chat_template is not set and no template argument was passed"


def share(fraction: float, name: str = "") -> Callable[[str], bool]:
    """Picks about this fraction of the questions, always the same ones for one ``name``."""

    def picked(question: str) -> bool:
        digest = hashlib.sha256(f"{name}{question}".encode()).digest()
        return int.from_bytes(digest[:4], "big") < fraction * 2**32

    return picked


def _answer(first: str, last: str, *, wrong: bool) -> str:
    """To the last question of a conversation that began with ``first``."""
    if first.startswith("K:"):
        table = dict(re.findall(r"(\w\w)=(\w\w);", first))
        right = table[last.rpartition("?")[2]]
        # Another entry of the table, so that a conversation can go on from it.
        return next(v for v in table.values() if v != right) if wrong else right
    right = first[2:] if first.startswith("C:") else "".join(sorted(first[2:]))
    return right + "x" if wrong else right


class FakeSglang:
    """One endpoint.

    Parameters
    ----------
    wrong : callable
        Whether the conversation that began with this question is answered wrongly.
    nll : float
        Of the scored tokens of a prompt (nats), on average; sequences differ by a tenth of it.
    delay_s : float
        Before each answer; may be changed while it runs.
    shift : int
        Added to every token id: another tokenizer.
    """

    def __init__(
        self,
        *,
        wrong: Callable[[str], bool] = lambda question: False,
        nll: float = 0.5,
        delay_s: float = 0.0,
        shift: int = 0,
        chat_template: bool = True,
        status: int = 200,
        **info: Any,
    ) -> None:
        self.wrong = wrong
        self.nll = nll
        self.delay_s = delay_s
        self.shift = shift
        self.chat_template = chat_template
        self.status = status
        self.info = {"version": "0.5.23", "kv_cache_dtype": "auto", "model_path": "/models/m", **info}
        self.asked: Counter[tuple[str | None, str]] = Counter()  # (cache salt, conversation)
        self.sampling: set[tuple[float, float]] = set()  # temperature and top_p of the chats
        self.url = ""
        self._cached: dict[str | None, list[list[int]]] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else {}
        if self.status != 200:
            return web.json_response({"detail": "Not Found"}, status=self.status)
        match request.path:
            case "/server_info":
                return web.json_response(self.info)
            case "/model_info":
                return web.json_response({"model_path": "/models/m"})
            case "/v1/tokenize":
                return self._tokenized(body)
            case "/v1/chat/completions":
                await asyncio.sleep(self.delay_s)
                return web.json_response(self._chat(body))
            case "/generate":
                await asyncio.sleep(self.delay_s if "input_ids" in body else 0.0)
                return web.json_response(self._generated(body))
        return web.json_response({"detail": f"no route {request.path}"}, status=404)

    def _tokenized(self, body: dict[str, Any]) -> web.StreamResponse:
        if "messages" not in body:
            return web.json_response({"tokens": [i + self.shift for i in encode(body["prompt"])]})
        if not self.chat_template:
            return web.json_response({"message": NO_TEMPLATE}, status=400)
        return web.json_response({"tokens": _rendered(body["messages"])})

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        messages = body["messages"]
        self.asked[body.get("cache_salt"), json.dumps(messages)] += 1
        self.sampling.add((body["temperature"], body.get("top_p", 1.0)))
        first, last = messages[0]["content"], messages[-1]["content"]
        text = _answer(first, last, wrong=self.wrong(first))
        ids = _rendered(messages)
        return {
            "id": "x",
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            ],
            "usage": {
                "prompt_tokens": len(ids),
                "completion_tokens": len(text) + 1,
                "total_tokens": len(ids) + len(text) + 1,
            },
        }

    def _generated(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = body["input_ids"] if "input_ids" in body else encode(body["text"])
        salt = body.get("cache_salt")
        if "input_ids" in body:
            self.asked[salt, json.dumps(ids)] += 1
        meta: dict[str, Any] = {
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": len(ids),
            "completion_tokens": 1,
            "cached_tokens": max((_common(ids, old) for old in self._cached.get(salt, ())), default=0),
        }
        self._cached.setdefault(salt, []).append(ids)
        if "logprob_start_len" in body:
            start = body["logprob_start_len"]
            logprob = -self.nll * (0.95 + 0.1 * (sum(ids) % 97) / 96)
            rows = [[logprob, token, None] for token in ids[start:]]
            meta["input_token_logprobs"] = [[None, rows[0][1], None], *rows[1:]]
            meta["input_top_logprobs"] = [None, *([row] for row in rows[1:])]
        return {"text": "x", "output_ids": [1], "meta_info": meta}


def _rendered(messages: list[dict[str, str]]) -> list[int]:
    return render_chat([Message(role=m["role"], content=m["content"]) for m in messages])  # type: ignore[arg-type]


def _common(a: list[int], b: list[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


@contextmanager
def serving(*servers: FakeSglang) -> Iterator[None]:
    """All servers up, each at its ``url``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def now(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(timeout=20)

    with ExitStack() as stack:
        stack.callback(loop.close)
        stack.callback(thread.join, 20)
        stack.callback(loop.call_soon_threadsafe, loop.stop)
        for server in servers:
            runner = now(_up(server))
            stack.callback(lambda r=runner: now(r.cleanup()))
        yield


async def _up(server: FakeSglang) -> web.AppRunner:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    return runner
