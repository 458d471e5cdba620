"""Hostile code is a failed item: it reaches nothing outside, leaves nothing behind, and passes no test."""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from equipoise.tasks.sandbox.sandbox import Sandbox
from equipoise.tasks.sandbox.types import Call, Code, Isolation, Limits, Program, SandboxResult, Status

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")

LIMITS = Limits(cpu_s=1, memory_bytes=192 << 20, output_bytes=1 << 20)
BRIEF = replace(LIMITS, wall_s=1.0)  # for what does not end by itself and uses no processor time of its own
TESTS = ("assert f(2) == 3",)


@pytest.fixture(scope="module", params=["best", "filter", "namespaces"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """The best that there is, and each half of it alone."""
    off = {"best": {}, "filter": {"namespaces": "off"}, "namespaces": {"seccomp": "off"}}[request.param]
    found = Sandbox(without=off, minimum=Isolation.LIMITS)
    if found.probe().isolation < Isolation.PARTIAL:
        found.close()
        pytest.skip(f"this machine gives {found.probe()}")
    yield found
    found.close()


def run(sandbox: Sandbox, body: str, *, limits: Limits = LIMITS) -> SandboxResult:
    """``body`` inside the tested function, before its right result."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return sandbox.run(
        Code(code=f"import os, sys\ndef f(x):\n{lines}\n    return x + 1\n", tests=TESTS), limits
    )


FORGERIES = {
    "exits first": "os._exit(0)",
    "sys.exit": "sys.exit(0)",
    "is equal to all": """
class A(int):
    __eq__ = lambda a, b: True
    __hash__ = int.__hash__
return A(0)""",
    "no assertions": "import builtins\nbuiltins.AssertionError = SystemExit\nreturn 0",
    "patched builtins": "import builtins\nbuiltins.len = builtins.isinstance = lambda *a: True\nreturn 0",
    "looks for the tests": """
import gc
for o in gc.get_objects():
    if isinstance(o, (list, dict, tuple)) and ' f'.join(['assert', '(2)']) in str(o):
        return 3
return 0""",
    "looks up the stack": """
frame = sys._getframe()
while frame:
    for v in list(frame.f_globals.values()) + list(frame.f_locals.values()):
        if ' f'.join(['assert', '(2)']) in str(v):
            return 3
    frame = frame.f_back
return 0""",
    "writes a verdict": """
import json
b = json.dumps({"status": "ok", "reason": "", "passed": 1, "of": 1}).encode()
for fd in range(64):
    try:
        os.write(fd, len(b).to_bytes(4, 'big') + b)
    except OSError:
        pass
os._exit(0)""",
    "junk in the channel": "os.write(4, b'\\xff' * 64)\nos._exit(0)",
    "a huge frame": "os.write(4, (2**31).to_bytes(4, 'big'))\nos._exit(0)",
    "no result in a frame": "os.write(4, b'\\0\\0\\0\\2{}')\nos._exit(0)",
    "a number that does not compare": "import decimal\nreturn decimal.Decimal('sNaN')",
    "nested too deep": "v = []\nfor _ in range(100000):\n    v = [v]\nreturn v",
    "reads the tester": """
for p in os.listdir('/proc'):
    if p.isdigit() and b' f'.join([b'assert', b'(2)']) in open(f'/proc/{p}/mem', 'rb').read(1 << 20):
        return 3
return 0""",
}


@pytest.mark.parametrize("how", FORGERIES)
def test_a_verdict_cannot_be_forged(sandbox: Sandbox, how: str) -> None:
    result = run(sandbox, FORGERIES[how])
    assert result.status is not Status.OK
    assert result.reason


EXHAUSTION = {
    "endless loop": ("while True:\n    pass", {Status.TIMEOUT}),
    "endless loop in C": ("10 ** 10 ** 8", {Status.TIMEOUT, Status.MEMORY}),
    "sleep": ("import time\ntime.sleep(100)", {Status.TIMEOUT}),
    "sleep, no more answers": ("import time\nos.close(4)\ntime.sleep(100)", {Status.TIMEOUT}),
    "an answer byte by byte": (
        "import time\nos.write(4, b'\\0\\0\\1\\0')\nwhile True:\n    os.write(4, b' ')\n    time.sleep(0.1)",
        {Status.TIMEOUT},
    ),
    "endless iterator": ("import itertools\nreturn itertools.count()", {Status.FAILED, Status.TIMEOUT}),
    "memory": ("b = bytearray(1 << 33)", {Status.MEMORY}),
    "memory, slowly": ("v = []\nwhile True:\n    v.append(' ' * 10**7)", {Status.MEMORY}),
    "a huge result": ("return ' ' * (1 << 27)", {Status.FAILED, Status.MEMORY}),
    "output": ("print('x' * (1 << 26))\nsys.stdout.flush()", {Status.OUTPUT_LIMIT}),
    "output, slowly": ("while True:\n    print('x' * 10**5)", {Status.OUTPUT_LIMIT}),
    "recursion": ("sys.setrecursionlimit(10**9)\ng = lambda: g()\ng()", set(Status) - {Status.OK}),
    "segmentation fault": ("import ctypes\nctypes.string_at(0)", {Status.CRASHED}),
    "abort": ("os.abort()", {Status.CRASHED}),
    "kills itself": ("os.kill(os.getpid(), 9)", {Status.KILLED}),
    "ignores signals": (
        "import signal\nfor n in range(1, 65):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass",
        {Status.TIMEOUT},
    ),
}


@pytest.mark.parametrize("sandbox", ["best"], indirect=True)
@pytest.mark.parametrize("how", EXHAUSTION)
def test_what_is_used_up_is_named(sandbox: Sandbox, how: str) -> None:
    body, expected = EXHAUSTION[how]
    result = run(sandbox, body, limits=BRIEF if "sleep" in body else LIMITS)
    assert result.status in expected, result
    assert result.reason


def test_threads_are_limited_and_end_with_the_program(sandbox: Sandbox) -> None:
    body = (
        "import threading\nthreading.stack_size(1 << 16)\nfor n in range(100_000):\n"
        "    threading.Thread(target=__import__('time').sleep, args=(99,), daemon=True).start()"
    )
    assert run(sandbox, body, limits=BRIEF).status is not Status.OK


def test_no_process_outlives_its_program(sandbox: Sandbox) -> None:
    marker = f"canary-{os.getpid()}-{time.monotonic_ns()}"
    body = f"""
def spin():
    try:
        os.setsid()
    except OSError:
        pass
    import ctypes
    ctypes.CDLL(None).prctl(15, {marker[-15:]!r}.encode(), 0, 0, 0)
    while True:
        pass
try:
    for n in range(4):
        if os.fork() == 0:
            if os.fork() == 0:
                spin()
            os._exit(0)
except OSError:
    pass
"""
    run(sandbox, body, limits=BRIEF)
    assert not [p.pid for p in psutil.process_iter(["name"]) if p.info["name"] == marker[-15:]]


def test_a_fork_bomb_ends_and_the_next_program_runs(sandbox: Sandbox) -> None:
    before = len(psutil.pids())
    run(sandbox, "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass", limits=BRIEF)
    assert len(psutil.pids()) < before + 50
    assert run(sandbox, "pass").ok


OUTSIDE = {
    "parent": "os.kill(os.getppid(), 9)",
    "everyone": "os.kill(-1, 9)",
    "init": "os.kill(1, 9)",
    "group": "os.killpg(0, 9)",
    "by ownership of a pipe": "import fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, 8, os.getppid())\n"
    "fcntl.fcntl(r, 10, 9)\nfcntl.fcntl(r, 4, fcntl.fcntl(r, 3) | 0o20000)\nos.write(w, b'x')",
}


@pytest.mark.parametrize("how", OUTSIDE)
def test_no_process_outside_can_be_signalled(sandbox: Sandbox, how: str) -> None:
    server = sandbox._running()
    run(
        sandbox,
        "try:\n" + "\n".join(f"    {x}" for x in OUTSIDE[how].splitlines()) + "\nexcept OSError:\n    pass",
    )
    assert server._process.poll() is None
    assert run(sandbox, "x += 0").ok
    assert sandbox._running() is server


def test_no_file_outside_can_be_read(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    paths = [str(secret), "/etc/passwd", "/proc/self/environ", "/proc/1/environ", "/root/.bashrc", "/"]
    body = f"""
for p in {paths!r}:
    try:
        os.listdir(p) if p == "/" and not os.path.exists("/scratch") else open(p).read() if p != "/" else 1/1
    except OSError:
        continue
    if p != "/":
        raise ValueError("read " + p)
"""
    result = run(sandbox, body)
    assert result.ok, result


def test_no_file_outside_can_be_changed(sandbox: Sandbox, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("alive")
    home = Path.home() / f".canary-{os.getpid()}"
    home.write_text("alive")
    shared = Path("/dev/shm") / f"canary-{os.getpid()}"
    try:
        mode = canary.stat().st_mode
        body = f"""
import shutil
targets = {[str(canary), str(home)]!r}
for act in (os.remove, lambda p: open(p, "w"), lambda p: os.chmod(p, 0), lambda p: os.truncate(p, 0),
            lambda p: os.rename(p, p + "x"), lambda p: os.utime(p, (0, 0)), lambda p: os.link(p, p + "l"),
            lambda p: os.chown(p, 1, 1), lambda p: shutil.rmtree(os.path.dirname(p))):
    for p in targets:
        try:
            act(p)
        except OSError:
            continue
        raise ValueError("changed " + p)
for p in ({str(shared)!r}, {str(tmp_path / "new")!r}, "/tmp/new-{os.getpid()}", sys.prefix + "/new", "/new"):
    try:
        open(p, "w")
    except OSError:
        continue
    raise ValueError("wrote " + p)
"""
        result = run(sandbox, body)
        assert result.ok, result
        assert canary.read_text() == home.read_text() == "alive"
        assert canary.stat().st_mode == mode
        assert not shared.exists()
    finally:
        home.unlink()


def test_scratch_is_small_and_gone_with_the_program(sandbox: Sandbox) -> None:
    if "namespaces" in sandbox.probe().missing:
        pytest.skip("nothing can be written without a mount namespace")
    assert run(sandbox, "open('a', 'w').write('x')\nassert os.listdir() == ['a']").ok
    assert run(sandbox, "assert os.listdir() == []").ok
    many = run(sandbox, "for n in range(10**6):\n    open(str(n), 'w').close()")
    assert "No space left" in many.reason
    large = run(sandbox, "for n in range(100):\n    open(str(n), 'wb').write(bytes(1 << 19))")
    assert "No space left" in large.reason


def test_our_environment_is_not_seen(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(sandbox, "assert 'EQUIPOISE_DATA' not in os.environ and 'USER' not in os.environ").ok
    fresh = Sandbox(minimum=Isolation.LIMITS)
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    try:
        assert run(fresh, "assert 'canary' not in str(dict(os.environ))").ok
    finally:
        fresh.close()


def test_nothing_connects(sandbox: Sandbox) -> None:
    accepted: list[object] = []
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as local:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.3)
        local.bind("\0equipoise-canary")
        local.listen()
        local.settimeout(0.3)

        def accept(on: socket.socket) -> None:
            with contextlib.suppress(TimeoutError):
                accepted.append(on.accept())

        threads = [threading.Thread(target=accept, args=(s,)) for s in (listener, local)]
        for thread in threads:
            thread.start()
        port = listener.getsockname()[1]
        body = f"""
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_UNIX, "\\0equipoise-canary"),
                        (socket.AF_INET, ("192.0.2.1", 80))):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            s = socket.socket(family, kind)
            s.settimeout(0.2)
            s.connect(address)
            s.send(b"hello")
        except OSError:
            continue
        raise ValueError("connected to " + str(address))
"""
        result = run(sandbox, body)
        for thread in threads:
            thread.join()
    assert result.ok, result
    assert not accepted


def test_privileged_calls_fail(sandbox: Sandbox) -> None:
    if "seccomp" in sandbox.probe().missing:
        pytest.skip("there is no filter")
    body = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
pair = (ctypes.c_int * 2)()
for call in (
    lambda: libc.ptrace(16, os.getppid(), 0, 0),
    lambda: libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0),
    lambda: libc.unshare(0x10000000),
    lambda: libc.setns(0, 0),
    lambda: libc.mount(b"x", b"/", b"tmpfs", 0, None),
    lambda: libc.memfd_create(b"x", 0),
    lambda: libc.shmget(1, 4096, 0o1666),
    lambda: libc.prctl(38, 1),
    lambda: libc.personality(0),
    lambda: libc.inotify_init(),
    lambda: libc.socketpair(1, 1, 0, pair),
    lambda: libc.execv(b"/bin/true", None),
    lambda: libc.syscall(425, 8, pair),  # io_uring_setup
):
    if call() != -1:
        raise ValueError("a call was let through")
"""
    result = run(sandbox, body)
    assert result.ok, result


def test_a_program_and_a_call_are_judged_outside_of_their_reach(sandbox: Sandbox) -> None:
    forged = "import os, sys\nprint('3')\nsys.stdout.flush()\nos._exit(0)"
    assert sandbox.run(Program(code=forged, cases=[("2", "3"), ("3", "4")]), LIMITS).passed == 1
    lying = "class A(list):\n    __eq__ = lambda a, b: True\ndef f(x): return A()"
    assert not sandbox.run(Call(code=lying, function="f", cases=[([2], [3])]), LIMITS).ok
    loop = sandbox.run(Program(code="while True: pass", cases=[("", "")]), LIMITS)
    assert loop.status is Status.TIMEOUT
    flood = sandbox.run(Program(code="while True: print('x' * 10**5)", cases=[("", "")]), LIMITS)
    assert flood.status is Status.OUTPUT_LIMIT
    hungry = sandbox.run(Program(code="bytearray(1 << 33)", cases=[("", "")]), LIMITS)
    assert hungry.status is Status.MEMORY
    killer = "import os\ntry:\n    os.kill(os.getppid(), 9)\nexcept OSError:\n    pass\n"
    assert not sandbox.run(Program(code=killer, cases=[("", "no")]), LIMITS).ok
