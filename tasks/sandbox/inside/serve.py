"""The sandbox's own process: waits for programs, and gives each a process tree that it outlives.

::

    our process --socket--> server (this, never runs foreign code)
                              fork: supervisor, one a program: time, and the end of all below it
                                fork: tester, first of its process tree (tester.py)
                                  fork: candidate (candidate.py)

A supervisor ends its tree when the tester has answered, time is up, or the socket of its program is closed,
so nothing is left where any of these processes dies.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any

from equipoise.tasks.sandbox.inside import kernel as k
from equipoise.tasks.sandbox.inside import root
from equipoise.tasks.sandbox.inside.candidate import REQUESTS, RESULTS, serve
from equipoise.tasks.sandbox.inside.layers import Layers, find_layers
from equipoise.tasks.sandbox.inside.patience import SLOWEST
from equipoise.tasks.sandbox.inside.programs import file_in_memory
from equipoise.tasks.sandbox.inside.tester import BadTests, Candidate, ending, judge
from equipoise.tasks.sandbox.inside.wire import WireError, read_frame, write_frame

__all__ = ["BODY_BYTES", "main"]

BODY_BYTES = 1 << 30
_ANSWER_BYTES = 1 << 24
#: loaded once, for the programs that use them
_COMMON = (
    "abc bisect cmath collections copy dataclasses datetime decimal enum fractions functools hashlib heapq "
    "io itertools json math operator random re statistics string textwrap typing"
)


def main() -> None:
    """Serve the socket that the arguments name, until it is closed."""
    control = socket.socket(fileno=int(sys.argv[2]))
    wanted = json.loads(sys.argv[3])
    for name in _COMMON.split():
        __import__(name)
    sys.path[:] = [p for p in sys.path if p != sys.argv[1]]
    try:
        layers = find_layers(wanted)
    except Exception as e:  # noqa: BLE001 told to the one who started us
        _hello(control, {"error": str(e) or type(e).__name__})
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are not waited for
    _hello(control, {**dataclasses.asdict(layers), "python": sys.version.split()[0]})
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        (job,) = fds
        if os.fork() == 0:
            control.close()
            _supervise(job, layers)
        os.close(job)


def _hello(control: socket.socket, value: dict[str, Any]) -> None:
    write_frame(control.fileno(), value)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        k.prctl(k.PR_SET_PDEATHSIG, signal.SIGKILL)


def _supervise(job: int, layers: Layers) -> None:
    """Start a program's tester and see to its end; never returns."""
    answer: dict[str, Any]
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        limits = read_frame(job)
        if not layers.namespaces:
            root.own_tree(layers.proc)
            os.close(layers.proc)
        _die_with_parent()  # which a change of namespaces would have undone
        if layers.namespaces and sys.platform == "linux":
            k.prctl(k.PR_SET_CHILD_SUBREAPER, 1)
        reader, writer = os.pipe()
        tester = os.fork()
        if tester == 0:
            os.close(reader)
            _test(job, writer, layers, limits)
        os.close(writer)
        answer = _answer_of(tester, reader, job, limits)
        _end_tree(tester)
    except BaseException:  # noqa: BLE001 told to the one who asked
        answer = {"status": "broken", "reason": traceback.format_exc()[-2000:]}
    with contextlib.suppress(OSError):  # nobody waits for it any more
        write_frame(job, answer, limit=_ANSWER_BYTES)
    os._exit(0)


def _answer_of(tester: int, reader: int, job: int, limits: dict[str, Any]) -> dict[str, Any]:
    """What the tester says; else why it says nothing."""
    end = time.monotonic() + limits["total_s"] + SLOWEST * limits["total_cpu_s"]
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(job, 0)  # only that it is closed
    while (left := end - time.monotonic()) > 0:
        ready = {fd: event for fd, event in poll.poll(1000 * left)}
        if reader in ready:
            found = read_frame(reader, limit=_ANSWER_BYTES)
            if isinstance(found, dict):
                return found
            _, status, usage = os.wait4(tester, 0)
            used = usage.ru_utime + usage.ru_stime
            status_name, reason = ending(status, used, limits["total_cpu_s"])
            return {"status": status_name, "reason": f"while its results were judged: {reason}"}
        if job in ready:
            return {"status": "broken", "reason": "nobody waits"}
    return {"status": "timeout", "reason": f"no end after {limits['total_s']:g} s"}


def _end_tree(tester: int) -> None:
    """Kill the tester and all that is below it, in whatever session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(tester, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(tester, signal.SIGKILL)
    while True:  # what outlived its parent became our child
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # another system, or a namespace of its own: then the first process takes all with it
        return []


def _test(job: int, writer: int, layers: Layers, limits: dict[str, Any]) -> None:
    """The tester's process: fork the candidate before the tests are read, then judge; never returns."""
    answer: dict[str, Any]
    try:
        os.setpgid(0, 0)
        _die_with_parent()
        if layers.writable:
            root.own_scratch(size=limits["scratch_bytes"], files=limits["scratch_files"])
        else:
            os.chdir("/")
        layers.before_fork(limits)
        requests_in, requests = os.pipe()
        results, results_out = os.pipe()
        out, err = file_in_memory(), file_in_memory()
        child = os.fork()
        if child == 0:
            _be_candidate(layers, limits, (requests_in, results_out), (out, err))
        os.close(requests_in)
        os.close(results_out)
        layers.before_code({**limits, "cpu_s": limits["total_cpu_s"]})
        body = read_frame(job, limit=BODY_BYTES)
        answer = judge(body, Candidate(requests, results, child, limits))
        if body["mode"] != "stdin":
            _add_output(answer, out, err, limits)
    except (WireError, BadTests) as e:
        answer = {"status": "broken", "reason": str(e)}
    except BaseException:  # noqa: BLE001 told to the one who asked
        answer = {"status": "broken", "reason": traceback.format_exc()[-2000:]}
    write_frame(writer, answer, limit=_ANSWER_BYTES)
    os._exit(0)


def _add_output(answer: dict[str, Any], out: int, err: int, limits: dict[str, Any]) -> None:
    for name, fd in (("stdout", out), ("stderr", err)):
        answer[name] = os.pread(fd, limits["kept_bytes"], 0).decode("utf-8", "replace")
        if os.fstat(fd).st_size >= limits["output_bytes"] and answer["status"] != "ok":
            answer["status"] = "output_limit"
            answer["reason"] = f"more than {limits['output_bytes']} bytes of output; {answer['reason']}"


def _be_candidate(
    layers: Layers, limits: dict[str, Any], channel: tuple[int, int], outputs: tuple[int, int]
) -> None:
    """The candidate's process: nothing is open but its channel and its output; never returns."""
    code = 1
    try:
        _die_with_parent()
        nothing = os.open(os.devnull, os.O_RDONLY)
        aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, 32) for fd in (nothing, *outputs, *channel)]
        for target, fd in enumerate(aside):
            os.dup2(fd, target)
        assert aside.index(aside[-1]) == RESULTS == REQUESTS + 1, "their order is their number"
        os.closerange(RESULTS + 1, 4096)
        serve(layers, limits)
        code = 0
    except BaseException:  # noqa: BLE001 it just ends, and the tester sees that
        code = 1
    finally:
        os._exit(code)
