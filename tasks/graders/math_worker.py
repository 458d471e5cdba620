"""Compares two LaTeX expressions with math-verify: one JSON request a line in, one JSON reply a line out.

Runs as a process of its own, under limits of memory and of CPU time for each comparison, because computer
algebra on a model's output may take any amount of both. What ends it is the parent's to report (see math.py).
"""

import json
import logging
import os
import resource
import signal
import sys
from typing import Any, TextIO

__all__ = ["MEMORY_BYTES", "main"]

MEMORY_BYTES = 3 << 30  # of address space


def main(requests: TextIO, replies: TextIO) -> None:
    """Answer requests until there are no more."""
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)
    from math_verify import verify  # type: ignore[import-untyped]
    from math_verify.parser import LatexExtractionConfig, parse  # type: ignore[import-untyped]

    def read(text: str) -> list[Any]:
        # LaTeX alone: the other reader of math-verify evaluates Python.
        found: list[Any] = parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=0)
        return found

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # nobody reads it from here on
    replies.write("{}\n")
    replies.flush()
    for line in requests:
        request = json.loads(line)
        # CPU time, not wall-clock time: a busy machine must not change what is right.
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
        reply: dict[str, Any]
        try:
            target, answer = read(request["target"]), read(request["answer"])
            equal = bool(target and answer and verify(target, answer, timeout_seconds=0))
            reply = {"equal": equal, "read": bool(answer)}
        except Exception as e:  # noqa: BLE001 - whatever computer algebra raises is the reply's reason
            reply = {"failed": f"not comparable: {type(e).__name__}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
