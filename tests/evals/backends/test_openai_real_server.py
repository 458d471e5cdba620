"""The real server through the OpenAI protocol: streamed and whole replies are the same."""

import os
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from run_doubles import key

from equipoise.evals.backends.openai_http import OpenAIHttp
from equipoise.evals.backends.sglang_server import SglangServer, choose_port
from equipoise.evals.types import ChatOptions, Message, Output, Request, SamplingParams
from equipoise.quant.variants import ServeOptions, build_launch_command, find_variant, resolve_server_python

TOOL = {"type": "function", "function": {"name": "sort", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.server
@pytest.mark.timeout(600)
async def test_a_streamed_reply_is_the_same_as_a_whole_one(tmp_path: Path) -> None:
    command = build_launch_command(
        str(files("equipoise.tasks.embedded") / "glm_tiny"),
        find_variant("bf16"),
        port=choose_port(),
        device="cpu",
        python=resolve_server_python(os.environ),
        options=ServeOptions(max_total_tokens=4096),
    )
    server = SglangServer(label="glm_tiny@bf16", command=command, log_path=tmp_path / "server.log")
    await server.start()
    try:
        replies: list[list[Output]] = []
        for stream in (False, False, True):  # the first fills the prefix cache, whose use may round otherwise
            backend = OpenAIHttp(command.url, model="default", stream=stream)
            found = []
            for text, tokens in (("copy: 17 23 5", 32), ("sort: 9 1 4", 32), ("sort: 9 1 4", 2)):
                for tools in ((), (TOOL,)):
                    request = Request(
                        messages=(Message(role="user", content=text),),
                        sampling=SamplingParams(max_new_tokens=tokens),
                        chat=ChatOptions(tools=tools),
                    )
                    answer = await backend.complete(key(), request)
                    found.append(replace(answer, latency_s=0.0, cached_tokens=None))
            replies.append(found)
            await backend.close()
        _, whole, streamed = replies
        assert streamed == whole
        assert {r.finish_reason for r in streamed} == {"stop", "length"}
        assert all(r.text and r.completion_tokens for r in streamed)
    finally:
        await server.stop()
