"""Runs one server and makes sure that nothing of it outlives the process that asked for it.

Started by ``sglang_server`` as a script (standard library only), in a session of its own::

    python -I server_guard.py OWNER_FD GRACE_S COMMAND...

``OWNER_FD`` is the read end of a pipe whose other end the owner holds: it closes when the owner
ends, however it ends (SIGKILL too), and then every descendant is killed. On SIGTERM the server
gets SIGTERM and ``GRACE_S`` seconds. The exit code is the server's (128 + n for signal n).
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.2


def prctl(option: int, value: int) -> None:
    """Linux only; elsewhere the process group is all there is."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants() -> list[int]:
    """Pids below this process; as a subreaper it inherits the children of dead ones."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        if after_name[0] != "Z":
            parents[int(stat.parent.name)] = int(after_name[1])
    found = [os.getpid()]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found[1:]


def kill_all(timeout_s: float = 10.0) -> None:
    """SIGKILL every descendant until there is none (one may fork while we look)."""
    deadline = time.monotonic() + timeout_s
    while (pids := descendants()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def main() -> int:
    owner_fd, grace_s, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    asked_to_stop: list[float] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: asked_to_stop.append(time.monotonic()))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # If this guard itself is killed, the server's main process goes too, and SGLang's own
    # processes follow theirs.
    server = subprocess.Popen(
        command,
        preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509  no threads here
    )
    told = False
    while server.poll() is None:
        if asked_to_stop and not told:
            server.terminate()
            told = True
        if told and time.monotonic() > asked_to_stop[0] + grace_s:
            break
        if select.select([owner_fd], [], [], POLL_S)[0]:  # end of file: the owner is gone
            break
    kill_all()
    code = server.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
