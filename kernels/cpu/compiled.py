"""C sources beside this file, compiled when they are first needed and kept for the next time.

Optional by design: without a C compiler, or with ``EQUIPOISE_COMPILE=0``, callers use numpy and can say why.
The cache is ``$EQUIPOISE_CACHE``, else ``$XDG_CACHE_HOME/equipoise`` or ``~/.cache/equipoise``, of this user
alone; its names carry the source, the compiler and the processor, so that a changed one is compiled anew.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Compiled", "load"]

FLAGS = ("-O3", "-march=native", "-std=c11", "-shared", "-fPIC")
_TIMEOUT_S = 120
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A library, or None and the reason why there is none."""

    library: ctypes.CDLL | None
    how: str  # "gcc -O3 ...", or the reason


@cache
def load(name: str) -> Compiled:
    """The library of ``<name>.c``; never raises."""
    if os.environ.get("EQUIPOISE_COMPILE", "1") == "0":
        return Compiled(library=None, how="EQUIPOISE_COMPILE=0")
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        return Compiled(library=None, how="no C compiler")
    source = _HERE / f"{name}.c"
    try:
        version = subprocess.run(
            [compiler, "--version"], capture_output=True, check=True, timeout=_TIMEOUT_S
        ).stdout
        key = hashlib.sha256(
            b"\0".join([source.read_bytes(), version, " ".join(FLAGS).encode(), _processor()])
        )
        library = _cache_folder() / f"{name}-{key.hexdigest()[:24]}.so"
        if not library.exists():
            _compile(compiler, source, library)
        return Compiled(library=ctypes.CDLL(str(library)), how=f"{Path(compiler).name} {' '.join(FLAGS[:2])}")
    except subprocess.CalledProcessError as e:
        return Compiled(library=None, how=f"{compiler} failed: {e.stderr.decode(errors='replace')[:500]}")
    except (OSError, subprocess.TimeoutExpired) as e:
        return Compiled(library=None, how=f"{compiler}: {e}")


def _compile(compiler: str, source: Path, library: Path) -> None:
    descriptor, temporary = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(descriptor)
    try:
        command = [compiler, *FLAGS, "-o", temporary, str(source)]
        subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S)
        os.replace(temporary, library)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _processor() -> bytes:
    """What -march=native depends on; a home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
        return b"\n".join(line for line in lines if line.startswith((b"flags", b"Features")))[:8192]
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}".encode()


def _cache_folder() -> Path:
    """A folder that nobody else can write to: what lies there is loaded into this process."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(os.environ.get("EQUIPOISE_CACHE") or Path(base) / "equipoise")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        private = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if private and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return _own_folder()


@cache
def _own_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="equipoise-"))
