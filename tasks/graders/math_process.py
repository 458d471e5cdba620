"""One process that compares expressions (see math_worker.py): started at the first need, ended at exit."""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from typing import Any

__all__ = ["CPU_S", "Comparer"]

CPU_S = 5.0  # for one comparison; most take 0.01 s to 0.5 s
WALL_S = 20 * CPU_S  # only for a process that sleeps, or a machine that gives it no time
START_S = 120.0


class Comparer:
    """Compares on demand; safe to share between threads, which then wait for each other."""

    def __init__(self, *, cpu_s: float = CPU_S) -> None:
        self.cpu_s = cpu_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # process id: a fork must not share the pipes
        self._unread = b""

    def compare(self, target: str, answer: str) -> dict[str, Any]:
        """``{"equal": bool, "read": bool}``, or ``{"failed": why}``.

        Raises
        ------
        RuntimeError
            The process cannot start: math-verify is not installed, or not usable.
        """
        with self._lock:
            process = self._started()
            request = {"target": target, "answer": answer, "cpu_s": self.cpu_s}
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                line = self._read_line(process, WALL_S)
            except BrokenPipeError:
                line = None
            if line is None:
                self._end()
                return {"failed": f"not comparable within {self.cpu_s:g} s"}
            reply: dict[str, Any] = json.loads(line)
            return reply

    def close(self) -> None:
        """End the process; the next comparison starts another."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        self._end()
        command = [sys.executable, "-P", "-m", "equipoise.tasks.graders.math_worker"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._process, self._owner, self._unread = process, os.getpid(), b""
        atexit.register(self.close)
        if self._read_line(process, START_S) is None:
            process.kill()
            assert process.stderr is not None
            said = process.stderr.read().decode(errors="replace").strip()
            self._end()
            raise RuntimeError(f"the process that compares expressions does not start: {said[-500:]}")
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        atexit.unregister(self.close)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()

    def _read_line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        """One line of a reply; None if the process ended, or gave none in time."""
        assert process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                return None
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line
