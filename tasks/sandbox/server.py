"""The sandbox's server process: started where its layers work, spoken to over sockets."""

import contextlib
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import equipoise
from equipoise.evals.errors import EquipoiseError
from equipoise.tasks.sandbox.inside.patience import SLOWEST
from equipoise.tasks.sandbox.inside.serve import BODY_BYTES
from equipoise.tasks.sandbox.inside.wire import WireError, read_frame, write_frame
from equipoise.tasks.sandbox.types import Isolation, Probe

__all__ = ["LAYERS", "Server", "start"]

LAYERS = ("namespaces", "landlock", "seccomp")
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from equipoise.tasks.sandbox.inside.serve import main; main()"
)
_GRACE_S = 20.0
#: All that programs see of our environment: nothing of it. Hashes, and so the order of sets, are fixed.
_ENVIRONMENT = {
    "HOME": "/scratch",
    "LC_ALL": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",  # an arena a thread would take the limit of memory
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "TMPDIR": "/scratch",
    "TZ": "UTC",
}


class Server:
    """A running server; safe to use from several threads."""

    def __init__(self, process: "subprocess.Popen[bytes]", control: socket.socket, probe: Probe) -> None:
        self.probe = probe
        self._process, self._control = process, control

    def run(self, limits: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        """Run one program.

        Raises
        ------
        EquipoiseError
            The server is gone, or the program could not be run for a reason that is not its own.
        """
        ours, theirs = socket.socketpair()
        with ours:
            longest = limits["total_s"] + SLOWEST * limits["total_cpu_s"] + _GRACE_S
            patience = struct.pack("@ll", int(longest), 0)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, patience)
            try:
                with theirs:
                    socket.send_fds(self._control, [b"."], [theirs.fileno()])
                with contextlib.suppress(BrokenPipeError):  # it may end before it has read all
                    write_frame(ours.fileno(), limits)
                    write_frame(ours.fileno(), body, limit=BODY_BYTES)
                answer = read_frame(ours.fileno())
            except (OSError, WireError) as e:
                raise EquipoiseError(f"the sandbox does not answer ({e}); run again to continue") from e
        if not isinstance(answer, dict):
            raise EquipoiseError("the sandbox ended before it answered; run again to continue")
        if answer["status"] == "broken":
            raise EquipoiseError(f"the sandbox could not run a program: {answer['reason'][-1000:]}")
        return answer

    def close(self) -> None:
        """End it, with all that runs in it."""
        self._control.close()
        self._process.kill()
        self._process.wait()


def start(without: Mapping[str, str] = MappingProxyType({})) -> Server:
    """Start a server with every layer that works here.

    Parameters
    ----------
    without : mapping
        Layer -> why it is not to be used.

    Raises
    ------
    EquipoiseError
        It does not start.
    """
    server, error = _start({name: without.get(name, "") for name in LAYERS})
    if server is None and "namespaces" not in without:
        return start({**without, "namespaces": error})
    if server is None:
        raise EquipoiseError(f"the sandbox does not start: {error}")
    return server


def _start(wanted: dict[str, str]) -> tuple[Server | None, str]:
    home = str(Path(equipoise.__file__).parent.parent)
    ours, theirs = socket.socketpair()
    flags = ["-s", "-S", "-P", "-B", "-X", "utf8"]
    with theirs:
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", _BOOT, home, str(theirs.fileno()), json.dumps(wanted)],
            pass_fds=(theirs.fileno(),),
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us: what runs is ended when we close
        )
    hello: Any = None
    with contextlib.suppress(OSError, WireError):
        hello = read_frame(ours.fileno())
    if not isinstance(hello, dict) or "error" in hello:
        ours.close()
        process.kill()
        process.wait()
        return None, str(hello["error"]) if isinstance(hello, dict) else "its process ended at once"
    return Server(process, ours, _probe(hello)), ""


def _probe(hello: dict[str, Any]) -> Probe:
    missing = {name: str(hello[name]) for name in LAYERS if hello[name]}
    if hello["root"]:
        missing["unprivileged user"] = str(hello["root"])
    if "namespaces" not in missing and "seccomp" not in missing:
        level = Isolation.FULL
    elif "seccomp" not in missing or ("namespaces" not in missing and "landlock" not in missing):
        level = Isolation.PARTIAL
    else:
        level = Isolation.LIMITS
    return Probe(isolation=level, missing=missing)
