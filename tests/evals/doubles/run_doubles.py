"""Doubles for tests of the runner: a task, a scripted backend, a fake HTTP server."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from equipoise.evals.journal import Journal
from equipoise.evals.types import (
    Message,
    Output,
    Request,
    Sample,
    SampleKey,
    SamplingParams,
    Score,
    ScoreStatus,
    TaskItem,
)

GREEDY = SamplingParams(max_new_tokens=8)


def item(i: int | str, *, task: str = "echo", content_hash: str = "h") -> TaskItem:
    return TaskItem(
        task=task, id=str(i), inputs={}, target=str(i), content_hash=content_hash, cluster_id=str(i)
    )


class EchoTask:
    """Asks ``turns`` prompts an item."""

    version = "1"
    kind: Literal["accuracy", "logprob"] = "accuracy"

    def __init__(self, name: str = "echo", *, turns: int = 1, chat: bool = False) -> None:
        self.name = name
        self.turns = turns
        self.needs_chat_template = chat

    def items(self, n: int, seed: int) -> list[TaskItem]:
        return [item(i, task=self.name) for i in range(n)]

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        if len(outputs) == self.turns:
            return None
        text = f"{item.id}/{len(outputs)}"
        if self.needs_chat_template:
            return Request(messages=(Message(role="user", content=text),), sampling=GREEDY)
        return Request(text=text, sampling=GREEDY)

    def score(self, item: TaskItem, sample: Sample) -> Score:
        return Score(value=1.0, status=ScoreStatus.SCORED)


def output(text: str | None = "ok", **changes: Any) -> Output:
    values: dict[str, Any] = {
        "text": text,
        "finish_reason": "stop",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "latency_s": 0.01,
    }
    return Output(**{**values, **changes})


def key(i: int | str = 0, *, arm: str = "A", task: str = "echo", repeat: int = 0) -> SampleKey:
    return SampleKey(model="m", arm=arm, task=task, item_id=str(i), repeat=repeat)


def sample(i: int | str = 0, *, arm: str = "A", task: str = "echo", **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "key": key(i, arm=arm, task=task),
        "content_hash": "h",
        "outputs": (output(f"answer {i}"),),
        "attempts": 1,
        "started_unix_s": 1.5,
        "latency_s": 0.25,
    }
    return Sample(**{**values, **changes})


def new_journal(directory: Path, plan_hash: str = "plan-1") -> Journal:
    return Journal.create(
        directory / "journal.sqlite", plan_hash=plan_hash, plan_text="[plan]", provenance={"a": 1}
    )


class ScriptedBackend:
    """Answers through ``answer(key, request, call number)``, which may raise; keeps what it was asked."""

    def __init__(
        self,
        answer: Callable[[SampleKey, Request, int], Output] | None = None,
        *,
        label: str = "http://scripted",
        delay_s: float = 0.0,
    ) -> None:
        self._answer = answer or (lambda k, r, n: output(r.text))
        self.label = label
        self.delay_s = delay_s
        self.asked: list[SampleKey] = []
        self.in_flight = self.most_in_flight = 0

    async def complete(self, key: SampleKey, request: Request) -> Output:
        self.asked.append(key)
        number = len(self.asked)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.delay_s)
            return self._answer(key, request, number)
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        return


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def generated(text: str | None = "ok", **meta: Any) -> dict[str, Any]:
    """A ``/generate`` reply of SGLang 0.5.23."""
    return {
        "text": text,
        "output_ids": [5, 6],
        "meta_info": {
            "id": "x",
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "cached_tokens": 0,
            "weight_version": "default",
            **meta,
        },
    }


def chat_reply(
    content: str | None = "ok", *, finish_reason: str | None = "stop", **more: Any
) -> dict[str, Any]:
    return {
        "id": "x",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
        **more,
    }


class FakeServer:
    """An HTTP server on a free port; ``handler`` answers every path, and bodies are kept."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.bodies.append(json.loads(raw) if raw else None)
        self.headers.append(dict(request.headers))
        return await self._handler(request)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["FakeServer"]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            await runner.cleanup()


def always(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response(value, status=status, headers=headers)

    return handler
