"""Runs code as a program of its own for every input: standard input and output are files in memory."""

import contextlib
import os
import signal
import sys
import tempfile
import time
from typing import Any

from equipoise.tasks.sandbox.inside.layers import Layers
from equipoise.tasks.sandbox.inside.patience import Patience
from equipoise.tasks.sandbox.inside.wire import read_frame, write_frame

__all__ = ["INPUT_BYTES", "end_of", "file_in_memory", "serve_programs"]

INPUT_BYTES = 1 << 28


def serve_programs(
    requests: int, results: int, layers: Layers, limits: dict[str, Any], first: dict[str, Any]
) -> None:
    """Answer every input with what the program wrote, until they end."""
    while (asked := read_frame(requests, limit=INPUT_BYTES)) is not None:
        given, out, err = (file_in_memory() for _ in range(3))
        _fill(given, asked["stdin"].encode("utf-8", "surrogatepass"))
        child = os.fork()
        if child == 0:
            _become_program(layers, limits, first, (given, out, err), (requests, results))
        status, cpu_s, in_time = _wait(child, limits["wall_s"])
        answer = {
            "status": status,
            "cpu_s": cpu_s,
            "in_time": in_time,
            "stdout": _text(out, limits["output_bytes"]),
            "stderr": _text(err, limits["kept_bytes"]),
            "stdout_bytes": os.fstat(out).st_size,
        }
        for fd in (given, out, err):
            os.close(fd)
        write_frame(results, answer, limit=INPUT_BYTES)


def file_in_memory() -> int:
    """A descriptor of a file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("io")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _wait(child: int, seconds: float) -> tuple[int, float, bool]:
    """Wait for a child, or kill it: its status, processor time in seconds, and whether it ended by itself.

    ``seconds`` of the clock, and more while it works (see patience.py).
    """
    ended = end_of(child, seconds)
    if ended is not None:
        return *ended, True
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    return status, usage.ru_utime + usage.ru_stime, False


def end_of(child: int, seconds: float) -> tuple[int, float] | None:
    """Status and processor time of a child that ends within its time, as in `_wait`; None: it does not."""
    patience = Patience(child, seconds)
    pause = 0.0002
    while True:
        late = patience.left() <= 0  # before the look: what ended meanwhile was not late
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            return status, usage.ru_utime + usage.ru_stime
        if late:
            return None
        time.sleep(pause)
        pause = min(0.01, 1.5 * pause)


def _become_program(
    layers: Layers,
    limits: dict[str, Any],
    first: dict[str, Any],
    files: tuple[int, ...],
    closed: tuple[int, ...],
) -> None:
    """Run the code as ``__main__`` and end this process as the interpreter would."""
    import atexit
    import threading

    code = 1
    try:
        for target, fd in enumerate(files):
            os.dup2(fd, target)
        for fd in (*files, *closed):
            os.close(fd)
        sys.argv = ["solution.py"]
        space = {"__name__": "__main__", "__builtins__": __builtins__}
        layers.before_code(limits)
        try:
            for source in (first["preamble"], first["code"]):
                exec(compile(source, "<solution>", "exec", dont_inherit=True), space)  # noqa: S102 the purpose
            code = 0
        except SystemExit:
            code = 0  # what it wrote is what counts
        except BaseException as e:  # noqa: BLE001 the program's failure is its result
            sys.stderr.write(f"{type(e).__name__}: {e}"[:2000])
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _fill(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)


def _text(fd: int, limit: int) -> str:
    return os.pread(fd, limit, 0).decode("utf-8", "replace")
