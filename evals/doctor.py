"""What this machine can run, and the remedy for what it cannot.

Read-only: nothing is installed, started or written.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

__all__ = ["Check", "examine"]

SERVER_GB = 3.0  # resident memory of one CPU server (three processes)
PLAN_SERVERS = 4  # of the embedded plan, one model at a time
_PROBE = (
    "import importlib.metadata as m, json; "
    "print(json.dumps({n: m.version(n) for n in ('sglang', 'torch', 'transformers')}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at. ``ok`` None means: works, with a limit worth knowing."""

    what: str
    ok: bool | None
    found: str
    remedy: str = ""


def examine(server_python: Path | None, server_python_error: str = "") -> Sequence[Check]:
    """All checks, cheapest first.

    Parameters
    ----------
    server_python : Path or None
        The interpreter that would run SGLang; None with ``server_python_error`` if there is none.
    """
    return [
        _python(),
        _core(),
        _memory(),
        _gpu(),
        _sglang(server_python, server_python_error),
        _kernels_package(),
        _data(),
    ]


def _python() -> Check:
    return Check(what="Python", ok=True, found=sys.version.split()[0])


def _core() -> Check:
    try:
        found = ", ".join(f"{p} {version(p)}" for p in ("numpy", "scipy", "aiohttp", "datasets"))
    except PackageNotFoundError as e:
        return Check(what="core packages", ok=False, found=f"{e.name} is missing", remedy="make setup")
    return Check(what="core packages", ok=True, found=found)


def _memory() -> Check:
    total, free = (x / 2**30 for x in (psutil.virtual_memory().total, psutil.virtual_memory().available))
    found = f"{psutil.cpu_count()} cores, {free:.0f} of {total:.0f} GiB free"
    fit = int(free / SERVER_GB)
    if fit >= PLAN_SERVERS:
        return Check(what="cores and memory", ok=True, found=found)
    if fit >= 1:
        note = f"{fit} CPU servers fit at once; arms then run one after another (--servers one-by-one)"
        return Check(what="cores and memory", ok=None, found=found, remedy=note)
    return Check(what="cores and memory", ok=False, found=found, remedy=f"free {SERVER_GB:.0f} GiB")


def _gpu() -> Check:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        note = "the CPU route measures the error of the stored cache, not a GPU kernel's arithmetic"
        return Check(what="NVIDIA GPU", ok=None, found="none", remedy=note)
    try:
        query = [smi, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        out = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (subprocess.SubprocessError, OSError) as e:
        return Check(what="NVIDIA GPU", ok=False, found=f"nvidia-smi fails: {e}", remedy="check the driver")
    return Check(what="NVIDIA GPU", ok=True, found="; ".join(out.splitlines()))


def _sglang(python: Path | None, error: str) -> Check:
    if python is None:
        return Check(what="SGLang server", ok=False, found=error, remedy="make setup")
    try:
        done = subprocess.run(
            [python, "-P", "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True
        )
    except (subprocess.SubprocessError, OSError) as e:
        tail = (getattr(e, "stderr", "") or str(e)).strip().splitlines()[-1:]
        found = f"{python} cannot import its packages: {' '.join(tail)}"
        return Check(what="SGLang server", ok=False, found=found, remedy="make setup")
    return Check(what="SGLang server", ok=True, found=done.stdout.strip().strip("{}").replace('"', ""))


def _kernels_package() -> Check:
    """A bare ``kernels`` on sys.path that is ours would break SGLang's import of Hugging Face's."""
    shadow = [p for p in sys.path if p and (Path(p) / "kernels" / "formats.py").exists()]
    if shadow:
        remedy = f"take {shadow[0]} off PYTHONPATH (or start Python with -P)"
        return Check(what="import paths", ok=False, found="the checkout itself is on sys.path", remedy=remedy)
    return Check(
        what="import paths", ok=True, found="equipoise's folders are importable under equipoise only"
    )


def _data() -> Check:
    directory = os.environ.get("EQUIPOISE_DATA")
    if not directory:
        note = "tasks with real data need the hub, or EQUIPOISE_DATA=DIR for offline use"
        return Check(what="offline data", ok=None, found="EQUIPOISE_DATA is not set", remedy=note)
    if not Path(directory).is_dir():
        remedy = "point EQUIPOISE_DATA at a directory"
        return Check(what="offline data", ok=False, found=f"{directory} is not a directory", remedy=remedy)
    return Check(what="offline data", ok=True, found=directory)
