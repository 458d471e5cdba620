"""A server starts, says why it did not, and leaves neither process nor port behind."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from equipoise.evals.backends.sglang_server import SglangServer, choose_port, serve_all, servers_that_fit
from equipoise.evals.errors import ServerError
from equipoise.quant.variants import ServeOptions, build_launch_command, find_variant, resolve_server_python

STAND_IN = Path(__file__).with_name("stand_in_server.py")
EMBEDDED_MODEL = Path(__file__).resolve().parents[3] / "tasks" / "embedded" / "glm_tiny"


@dataclass(frozen=True)
class StandIn:
    """A launch command for the stand-in process tree."""

    mode: str
    port: int
    host: str = "127.0.0.1"
    env: dict[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> list[str]:
        return [sys.executable, str(STAND_IN), str(self.port), self.mode]


def stand_in(tmp_path: Path, mode: str = "ready", **options: object) -> SglangServer:
    return SglangServer(
        label="m@bf16",
        command=StandIn(mode=mode, port=choose_port()),
        log_path=tmp_path / "logs" / "server.log",
        **options,  # type: ignore[arg-type]
    )


def pids_in(log_path: Path) -> list[int]:
    return [int(p) for p in re.findall(r"(?:server|worker) (\d+)", log_path.read_text())]


def running(pids: list[int]) -> list[int]:
    alive = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                alive.append(pid)
        except psutil.NoSuchProcess:
            pass
    return alive


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition, timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


async def test_a_server_starts_describes_itself_without_secrets_and_stops(tmp_path: Path) -> None:
    server = stand_in(tmp_path)
    async with server:
        assert server.alive()
        described = await server.describe()
        pids = pids_in(server.log_path)
        assert len(pids) == 2
        assert running(pids) == pids
    assert described["server_info"] == {"version": "0.5.23", "internal_states": [{"max_total_num_tokens": 7}]}
    assert described["model_info"] == {"model_path": "/m", "bos_token_id": 1}
    assert not server.alive()
    assert running(pids) == []
    assert not is_listening(server.command.port)
    await server.stop()  # again: nothing happens


async def test_a_server_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    server = stand_in(tmp_path, "stubborn", grace_s=0.5)
    await server.start()
    pids = pids_in(server.log_path)
    started = time.monotonic()
    await server.stop()
    assert time.monotonic() - started < 5
    assert running(pids) == []


async def test_a_server_that_dies_while_starting_shows_its_last_lines_and_its_log(tmp_path: Path) -> None:
    server = stand_in(tmp_path, "die")
    with pytest.raises(ServerError) as raised:
        await server.start()
    message = str(raised.value)
    assert "m@bf16 ended with code 3 while starting" in message
    assert str(server.log_path) in message
    assert message.splitlines()[-1].strip() == "ValueError: no such model"
    assert "line 99" in message
    assert "line 60\n" not in message  # about 30 lines


async def test_a_server_that_never_answers_is_ended_at_the_timeout(tmp_path: Path) -> None:
    server = stand_in(tmp_path, "silent", start_timeout_s=1.5)
    with pytest.raises(ServerError, match=r"did not answer .*/health_generate within 2 s"):
        await server.start()
    pids = pids_in(server.log_path)
    assert len(pids) == 2
    assert running(pids) == []


async def test_a_taken_port_is_named_before_anything_is_started(tmp_path: Path) -> None:
    server = stand_in(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", server.command.port))
        taken.listen()
        with pytest.raises(ServerError, match=f"port {server.command.port} .* is in use"):
            await server.start()
    assert not server.log_path.exists()


async def test_progress_names_the_server_and_its_last_log_line(tmp_path: Path) -> None:
    seen: list[tuple[str, float, str]] = []
    server = stand_in(
        tmp_path, "silent", start_timeout_s=3.0, on_progress=lambda *update: seen.append(update)
    )
    with pytest.raises(ServerError):
        await server.start()
    assert {label for label, _, _ in seen} == {"m@bf16"}
    assert [waited for _, waited, _ in seen] == sorted(waited for _, waited, _ in seen)
    assert any(line.startswith("server ") for _, _, line in seen)


async def test_cancelling_the_start_ends_the_server(tmp_path: Path) -> None:
    server = stand_in(tmp_path, "silent")
    task = asyncio.create_task(server.start())
    log = server.log_path
    assert await asyncio.to_thread(wait_until, lambda: log.exists() and len(pids_in(log)) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running(pids_in(log)) == []


async def test_killing_the_guard_does_not_free_the_server(tmp_path: Path) -> None:
    server = stand_in(tmp_path)
    await server.start()
    main_process = pids_in(server.log_path)[0]
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert wait_until(lambda: not running([main_process]))
    assert not server.alive()
    await server.stop()


async def test_if_one_of_several_servers_fails_none_stays(tmp_path: Path) -> None:
    good, bad = stand_in(tmp_path / "a"), stand_in(tmp_path / "b", "die")
    with pytest.raises(ServerError, match="while starting"):
        async with serve_all([good, bad]):
            pytest.fail("must not be reached")
    assert not good.alive()
    assert running(pids_in(good.log_path)) == []


async def test_an_error_among_running_servers_passes_through_and_ends_them(tmp_path: Path) -> None:
    servers = [stand_in(tmp_path / name) for name in "ab"]
    with pytest.raises(KeyError):  # noqa: PT012  the body is what is tested
        async with serve_all(servers):
            assert all(s.alive() for s in servers)
            raise KeyError
    assert running([p for s in servers for p in pids_in(s.log_path)]) == []


def test_memory_decides_how_many_servers_run_at_once() -> None:
    gib = 1024**3
    assert servers_that_fit(4, available_bytes=64 * gib) == 4
    assert servers_that_fit(4, available_bytes=5 * gib) == 2
    assert servers_that_fit(4, available_bytes=5 * gib, weights_bytes=2 * gib) == 1
    with pytest.raises(ServerError, match=r"needs about 2\.1 GB of memory and 1\.1 GB are free"):
        servers_that_fit(4, available_bytes=gib)


OWNER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_sglang_server import StandIn, real_command
from equipoise.evals.backends.sglang_server import SglangServer

async def main():
    command = {command}
    async with SglangServer(label="m@bf16", command=command, log_path=Path({log!r})):
        print("up", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def start_owner(tmp_path: Path, command: str) -> subprocess.Popen[str]:
    """Another process that owns a server, and has it up."""
    code = textwrap.dedent(OWNER).format(
        tests=str(Path(__file__).parent), command=command, log=str(tmp_path / "server.log")
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline().strip() == "up"
    return owner


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_however_the_owner_ends_nothing_of_the_server_stays(tmp_path: Path, number: signal.Signals) -> None:
    port = choose_port()
    owner = start_owner(tmp_path, f"StandIn(mode='stubborn', port={port})")
    pids = pids_in(tmp_path / "server.log")
    assert running(pids) == pids
    owner.send_signal(number)
    assert wait_until(lambda: not running(pids) and not is_listening(port))
    owner.wait(timeout=20)


def real_command(port: int, model: str = str(EMBEDDED_MODEL)):  # type: ignore[no-untyped-def]
    return build_launch_command(
        model,
        find_variant("bf16"),
        port=port,
        device="cpu",
        python=resolve_server_python(os.environ),
        options=ServeOptions(max_total_tokens=4096),
    )


@pytest.mark.server
@pytest.mark.timeout(600)
def test_a_real_server_whose_owner_is_killed_leaves_no_process_and_no_busy_port(tmp_path: Path) -> None:
    port = choose_port()
    owner = start_owner(tmp_path, f"real_command({port})")
    pids = [p.pid for p in psutil.Process(owner.pid).children(recursive=True)]
    assert len(pids) >= 4  # guard, HTTP server, scheduler, detokenizer
    owner.kill()
    assert wait_until(lambda: not running(pids) and not is_listening(port))
    owner.wait(timeout=20)


@pytest.mark.server
@pytest.mark.timeout(600)
async def test_a_real_server_without_its_model_says_so(tmp_path: Path) -> None:
    server = SglangServer(
        label="missing@bf16",
        command=real_command(choose_port(), model=str(tmp_path / "no_such_model")),
        log_path=tmp_path / "server.log",
    )
    with pytest.raises(ServerError, match="while starting") as raised:
        await server.start()
    assert "no_such_model" in str(raised.value)
