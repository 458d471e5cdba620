"""An OpenAI-compatible server in this process that answers from a function; standard library only."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    text: str | None
    finish_reason: str = "stop"
    status: int = 200
    tokens: int = 3


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._reply(200, {"object": "list", "data": [{"id": "stub", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = "messages" in body
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        prompts = prompt if isinstance(prompt, list) and not chat else [prompt]
        answers = [self.server.answer(p) for p in prompts]
        if answers[0].status != 200:
            self._reply(answers[0].status, {"error": {"message": "refused", "code": answers[0].status}})
            return
        choices = [
            {"index": i, "finish_reason": a.finish_reason}
            | ({"message": {"role": "assistant", "content": a.text}} if chat else {"text": a.text})
            for i, a in enumerate(answers)
        ]
        tokens = sum(a.tokens for a in answers)
        usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
        kind = "chat.completion" if chat else "text_completion"
        self._reply(200, {"id": "x", "object": kind, "created": 0, "model": "stub",
                          "choices": choices, "usage": usage})  # fmt: skip

    def _reply(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answer: Callable[[str], Answer]


@contextmanager
def serve(answer: Callable[[str], Answer]) -> Iterator[str]:
    """Serve on a free port; gives the base URL (without ``/v1``)."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.answer = answer
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
