"""Which layers of protection are in force, and putting a process behind them.

Each layer is tried where it would be used, in a child of its own: what is reported is what was seen to work.
"""

import math
import os
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

from equipoise.tasks.sandbox.inside import kernel as k
from equipoise.tasks.sandbox.inside import root, seccomp

__all__ = ["Layers", "find_layers", "more_cpu"]

_STACK_BYTES = 64 << 20  # of the first thread; Linux keeps at least 128 MiB free for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Each is empty if it is in force, else says why not. ``proc`` is what `root.own_tree` needs."""

    namespaces: str
    landlock: str
    seccomp: str
    root: str  # why the programs run as root; empty: they do not
    proc: int = -1

    @property
    def writable(self) -> bool:
        """Whether programs have a scratch folder; without a mount namespace nothing can be written."""
        return not self.namespaces

    def before_fork(self, limits: dict[str, Any]) -> None:
        """Confine a program's processes, all but for the filter."""
        self._limit(limits)
        if sys.platform != "linux":
            return
        k.no_new_privileges()
        if not self.landlock:
            paths = list(root.readable_paths().values())
            k.restrict_files(paths, [root.SCRATCH] if self.writable else [])
        k.drop_capabilities()

    def before_code(self, limits: dict[str, Any]) -> None:
        """Processor time, the size of files (so of output), and the filter: then no process can be made."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["output_bytes"],) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["total_cpu_s"]))
        if not self.seccomp:
            k.install_filter(seccomp.build(os.uname().machine, pid=os.getpid(), writable=self.writable))

    def _limit(self, limits: dict[str, Any]) -> None:
        memory = limits["memory_bytes"]
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits["open_files"], limits["open_files"]))
        if sys.platform == "linux":  # elsewhere it is not enforced, and may be refused
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            _set_stack(_STACK_BYTES)
            threads = limits["threads"]
            if self.namespaces:  # counted over all that this user runs, anywhere
                with open("/proc/loadavg") as file:
                    threads += int(file.read().split()[3].split("/")[1])
            resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))


def _set_stack(size: int) -> None:
    """How deep code may recurse must not depend on the shell that we were started from."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    size = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (size, hard))


def more_cpu(limits: dict[str, Any]) -> None:
    """Grant this process ``cpu_s`` seconds of processor time from here on, up to its total."""
    used = math.ceil(time.process_time())
    resource.setrlimit(
        resource.RLIMIT_CPU, (min(used + limits["cpu_s"], limits["total_cpu_s"]), limits["total_cpu_s"])
    )


def find_layers(wanted: dict[str, str]) -> Layers:
    """The layers that work here.

    Parameters
    ----------
    wanted : dict
        Layer -> why it is not to be used, or "".

    Raises
    ------
    OSError
        Namespaces were wanted and a step failed: start again without them.
    """
    if sys.platform != "linux":
        why = f"{sys.platform} has none"
        return Layers(namespaces=why, landlock=why, seccomp=why, root="" if os.geteuid() else "as started")
    k.prctl(k.PR_SET_DUMPABLE, 0)
    proc = -1
    stays_root = ""
    if not wanted["namespaces"]:
        proc = root.enter()
        _python_is_there()
    elif os.geteuid() == 0:
        stays_root = _seen(_as_nobody)
        if not stays_root:
            root.leave_root()
            k.prctl(k.PR_SET_DUMPABLE, 0)
    return Layers(
        namespaces=wanted["namespaces"],
        landlock=wanted["landlock"] or _seen(_landlock),
        seccomp=wanted["seccomp"] or _seen(_seccomp),
        root=stays_root,
        proc=proc,
    )


def _seen(trial: Any) -> str:
    """Run ``trial`` in a child: "" if it works, else why not."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            trial()
            os._exit(0)
        except BaseException as e:  # noqa: BLE001 reported to the parent
            os.write(writer, f"{e}".encode()[:400] or b"failed")
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return said or ("" if status == 0 else f"ended with status {status}")


def _as_nobody() -> None:
    root.leave_root()
    _python_is_there()


def _python_is_there() -> None:
    try:
        os.listdir(os.path.dirname(os.__file__))
        with open(os.__file__, "rb") as file:
            file.read(1)
    except OSError as e:
        raise OSError(f"an unprivileged user cannot read Python's own files ({e})") from e


def _landlock() -> None:
    k.no_new_privileges()
    k.restrict_files([os.path.dirname(os.__file__)], [])
    with open(os.__file__, "rb") as file:
        file.read(1)
    try:
        os.listdir("/")
    except PermissionError:
        return
    raise OSError("Landlock does not restrict")


def _seccomp() -> None:
    import _socket
    import threading

    k.no_new_privileges()
    k.install_filter(seccomp.build(os.uname().machine, pid=os.getpid(), writable=False))
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    try:
        _socket.socket()
    except PermissionError:
        return
    raise OSError("the filter lets sockets through")
