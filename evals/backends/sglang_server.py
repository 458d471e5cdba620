"""Starts one SGLang server, waits for it, describes it, and surely ends it."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp
import psutil

from equipoise.evals.backends.server_resources import choose_port, is_free, servers_that_fit
from equipoise.evals.errors import ServerError

__all__ = ["Command", "SglangServer", "choose_port", "serve_all", "servers_that_fit"]

GUARD = Path(__file__).with_name("server_guard.py")
LOG_TAIL_LINES = 30
POLL_S = 0.25
SECRET_KEY = re.compile(r"api_?key|password|secret|credential|(^|_)token$|auth_token", re.IGNORECASE)

# Called while waiting: label, seconds since the start, the log's last line.
Progress = Callable[[str, float, str], None]


class Command(Protocol):
    """What to run and where it will listen (``equipoise.quant.variants.LaunchCommand``)."""

    @property
    def argv(self) -> Sequence[str]: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_secrets(v) for k, v in value.items() if not SECRET_KEY.search(str(k))}
    if isinstance(value, list):
        return [_without_secrets(v) for v in value]
    return value


class SglangServer:
    """One server process, as an async context manager.

    The server runs under a guard in a session of its own. When this process ends, however it
    ends, the guard kills the server and all its descendants.

    Parameters
    ----------
    label : str
        What messages call it, usually ``MODEL@VARIANT``.
    command : Command
        Model paths in it must be absolute: it runs in the system's temporary directory.
    log_path : Path
        Its output is appended here and kept.
    start_timeout_s : float
        From start to the first generated token.
    grace_s : float
        Between SIGTERM and SIGKILL.
    on_progress : callable or None
        Called about four times a second while waiting.
    """

    def __init__(
        self,
        *,
        label: str,
        command: Command,
        log_path: Path,
        start_timeout_s: float = 600.0,
        grace_s: float = 5.0,
        on_progress: Progress | None = None,
    ) -> None:
        self.label = label
        self.command = command
        self.log_path = log_path
        self.start_timeout_s = start_timeout_s
        self.grace_s = grace_s
        self.on_progress = on_progress
        self._guard: subprocess.Popen[bytes] | None = None
        self._owner_end: int | None = None  # held open; its closing is what the guard waits for
        self._log_start = 0

    @property
    def url(self) -> str:
        return f"http://{self.command.host}:{self.command.port}"

    @property
    def pid(self) -> int | None:
        """Of the guard, which leads the server's process group."""
        return None if self._guard is None else self._guard.pid

    def alive(self) -> bool:
        """Whether the process runs (it may still be starting)."""
        return self._guard is not None and self._guard.poll() is None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and return when it has generated a token.

        Raises
        ------
        ServerError
            Port in use; the process died (with its log's last lines); no answer in time.
        """
        if self.alive():
            raise ServerError(f"{self.label} already runs at {self.url}")
        host, port = self.command.host, self.command.port
        if not is_free(host, port):
            raise ServerError(
                f"{self.label}: port {port} of {host} is in use: "
                "end what listens there, or choose another port"
            )
        try:
            self._spawn()
            await self._wait_until_ready()
        except BaseException:
            await self.stop()
            raise

    def _spawn(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        read_end, write_end = os.pipe()
        env = os.environ | dict(self.command.env)
        # A search path of ours could put foreign packages before the server's own.
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            env.pop(name, None)
        guard = [sys.executable, "-I", str(GUARD), str(read_end), str(self.grace_s)]
        try:
            with self.log_path.open("ab") as log:
                self._log_start = log.tell()
                self._guard = subprocess.Popen(
                    [*guard, *self.command.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=env,
                    cwd=tempfile.gettempdir(),
                    pass_fds=(read_end,),
                    start_new_session=True,  # so that Ctrl-C reaches us alone
                )
            self._owner_end = write_end
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)

    async def _wait_until_ready(self) -> None:
        started = time.monotonic()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            while (waited := time.monotonic() - started) < self.start_timeout_s:
                if not self.alive():
                    raise ServerError(
                        f"{self.label} ended with code {self._exit_code()} while starting: mend "
                        f"what its log says (checkpoint, flags, memory) and run again; "
                        f"{self._log_report()}"
                    )
                if await self._answers(session):
                    return
                if self.on_progress is not None:
                    self.on_progress(self.label, waited, (self.log_tail(1) or [""])[0])
                await asyncio.sleep(POLL_S)
        raise ServerError(
            f"{self.label} did not answer {self.url}/health_generate within {self.start_timeout_s:.0f} s; "
            f"{self._log_report()}"
        )

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.url}/health_generate") as reply:
                return reply.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False  # not listening yet

    def _exit_code(self) -> int | None:
        return None if self._guard is None else self._guard.poll()

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> list[str]:
        """The last lines this server wrote."""
        try:
            with self.log_path.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, end - 500 * lines))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return [line for line in text.splitlines() if line.strip()][-lines:]

    def _log_report(self) -> str:
        return "\n".join([f"the end of its log ({self.log_path}):", *(f"  {x}" for x in self.log_tail())])

    async def describe(self) -> dict[str, dict[str, Any]]:
        """``{"server_info": ..., "model_info": ...}`` as the server tells them, without secrets.

        Raises
        ------
        ServerError
            It does not answer, or not with JSON.
        """
        described = {}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            for name in ("server_info", "model_info"):
                url = f"{self.url}/{name}"
                try:
                    async with session.get(url) as reply:
                        reply.raise_for_status()
                        described[name] = _without_secrets(await reply.json(content_type=None))
                except (aiohttp.ClientError, TimeoutError, ValueError) as e:
                    raise ServerError(f"{self.label}: {url} gave no description ({e!r})") from e
        return described

    async def stop(self) -> None:
        """End the server and everything it started; safe to call again.

        Raises
        ------
        ServerError
            Something of it survived, or still holds the port.
        """
        guard, self._guard = self._guard, None
        if guard is None:
            return
        group = guard.pid
        try:
            if guard.poll() is None:
                guard.terminate()
                if not await _ended(guard, self.grace_s + 5.0):
                    self._close_owner_end()  # the guard now kills at once
                    await _ended(guard, 5.0)
        finally:
            self._close_owner_end()
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)  # what is left when the guard itself was killed
            await _ended(guard, 5.0)
        await self._confirm_gone(group)

    def _close_owner_end(self) -> None:
        if self._owner_end is not None:
            os.close(self._owner_end)
            self._owner_end = None

    async def _confirm_gone(self, group: int) -> None:
        deadline = time.monotonic() + 5.0
        while True:
            left = _members(group)
            if not left and is_free(self.command.host, self.command.port):
                return
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{self.label} was stopped, but "
                    + (f"processes {left} remain" if left else f"port {self.command.port} is still taken")
                    + ": end them by hand"
                )
            await asyncio.sleep(0.05)


async def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def _members(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


@asynccontextmanager
async def serve_all(servers: Sequence[SglangServer]) -> AsyncIterator[Sequence[SglangServer]]:
    """Start servers together and stop them together; if one fails, none stays.

    Ask :func:`servers_that_fit` first: without the memory for all, start them one after another.

    Raises
    ------
    ServerError
        The first failure, after the others have been stopped.
    """
    try:
        try:
            async with asyncio.TaskGroup() as group:
                for server in servers:
                    group.create_task(server.start())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        yield servers
    finally:
        await asyncio.gather(*(server.stop() for server in servers))
