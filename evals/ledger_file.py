"""The ledger's file: lines that are only ever added, each bound to the one before.

A line is one JSON object in canonical form (ASCII, sorted keys) and carries ``previous``, the
``sha256`` of the line before it (64 zeros in the first), and ``sha256``, its own: the hash of its
canonical JSON without that key. So an edited line does not match itself, and a removed, added or
moved one does not match its neighbour. Lines cut off the end leave no trace in the file; the journals
of the runs know the line in which each was registered (`equipoise ledger verify` compares them).

A line counts once it is on disk (fsync). A process that dies while writing leaves an unfinished last
line: the next writer cuts it off. Its author had not been told that it was saved, so nothing depends
on it. Writers and readers hold the kernel's lock (``flock``) on the file, which ends with the process.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.evals.errors import LedgerError
from equipoise.evals.sample_json import canonical_json

__all__ = ["FIRST", "Line", "Lines", "append", "parse", "read", "writing"]

FIRST = "0" * 64  # what the first line has for the hash of the one before
MAX_LINE_BYTES = 64 << 10
MAX_FILE_BYTES = 64 << 20
LOCK_TIMEOUT_S = 30.0
_RESTORE = "restore the file from a copy; attempts must not be forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line: its number in the file (from 1), its hash, and what it says."""

    number: int
    sha256: str
    body: Mapping[str, Any]  # without previous and sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """All lines of a ledger. ``torn`` counts the bytes of an unfinished last line."""

    lines: tuple[Line, ...]
    torn: int = 0

    @property
    def head(self) -> str:
        return self.lines[-1].sha256 if self.lines else FIRST


def parse(raw: bytes, *, source: str) -> Lines:
    """Check and decode a ledger's bytes.

    Raises
    ------
    LedgerError
        Names ``source``, the first broken line and what is wrong with it.
    """
    *whole, tail = raw.split(b"\n")
    lines: list[Line] = []
    previous = FIRST
    for number, text in enumerate(whole, start=1):
        lines.append(_line(text, number, previous, source))
        previous = lines[-1].sha256
    torn = len(tail)
    if tail:
        # Whole but for its newline: nobody loses it by a repair.
        with contextlib.suppress(LedgerError):
            lines.append(_line(tail, len(whole) + 1, previous, source))
    return Lines(lines=tuple(lines), torn=torn)


def _line(text: bytes, number: int, previous: str, source: str) -> Line:
    def broken(why: str) -> LedgerError:
        return LedgerError(f"{source}: line {number} {why}; {_RESTORE}")

    if len(text) > MAX_LINE_BYTES:
        raise broken(f"has {len(text)} bytes, over the limit of {MAX_LINE_BYTES}")
    try:
        found = json.loads(text)
        canonical = canonical_json(found).encode("ascii")
    except (ValueError, RecursionError) as e:
        raise broken("is not JSON: it was damaged or edited") from e
    if not isinstance(found, dict):
        raise broken("is not a JSON object: it was damaged or edited")
    body = {k: v for k, v in found.items() if k != "sha256"}
    own = _sha256(body)
    if canonical != text or found.get("sha256") != own:
        raise broken("does not match its own hash: it was edited")
    if body.get("previous") != previous:
        before = f"line {number - 1}" if number > 1 else "the beginning of the file"
        raise broken(f"does not follow {before}: a line between them was removed, added or moved")
    return Line(number=number, sha256=own, body={k: v for k, v in body.items() if k != "previous"})


def _sha256(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(body).encode("ascii")).hexdigest()


def read(path: Path) -> Lines:
    """Every line of a ledger; none if there is no such file.

    Raises
    ------
    LedgerError
        Unreadable, too large, or a line is broken.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return Lines(lines=())
    except OSError as e:
        raise LedgerError(f"{path}: cannot read the ledger ({e.strerror}); give another --ledger") from e
    try:
        with _locked(fd, path, fcntl.LOCK_SH):
            return parse(_content(fd, path), source=str(path))
    finally:
        os.close(fd)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[tuple[int, Lines]]:
    """Hold the ledger alone, checked and mended, for `append`; made if there is none.

    Raises
    ------
    LedgerError
        It cannot be written, is held by another process for long, or a line is broken.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise LedgerError(f"{path}: cannot write the ledger ({e.strerror}); give another --ledger") from e
    try:
        with _locked(fd, path, fcntl.LOCK_EX):
            raw = _content(fd, path)
            found = parse(raw, source=str(path))
            if found.torn:
                _mend(fd, raw, found, path)
            yield fd, Lines(lines=found.lines)
    finally:
        os.close(fd)


def append(fd: int, lines: Lines, body: Mapping[str, Any], *, path: Path) -> Lines:
    """Add a line and wait until it is on disk; returns the lines with it.

    Raises
    ------
    LedgerError
        It is too long, or cannot be saved.
    """
    bound = dict(body) | {"previous": lines.head}
    own = _sha256(bound)
    text = canonical_json(bound | {"sha256": own}).encode("ascii") + b"\n"
    if len(text) > MAX_LINE_BYTES:
        raise LedgerError(f"{path}: a line of {len(text)} bytes is over the limit of {MAX_LINE_BYTES}")
    try:
        _write(fd, text)
        if len(lines.lines) == 0:
            _sync_directory(path.parent)
    except OSError as e:
        raise LedgerError(
            f"{path}: cannot save to the ledger ({e.strerror}); make room, or give another --ledger"
        ) from e
    line = Line(number=len(lines.lines) + 1, sha256=own, body=dict(body))
    return Lines(lines=(*lines.lines, line))


def _mend(fd: int, raw: bytes, found: Lines, path: Path) -> None:
    """End a last line that only lacks its newline; cut off one that is not whole."""
    try:
        if len(found.lines) > raw.count(b"\n"):
            _write(fd, b"\n")
        else:
            os.ftruncate(fd, len(raw) - found.torn)
            os.fsync(fd)
    except OSError as e:
        raise LedgerError(f"{path}: cannot mend the unfinished last line ({e.strerror})") from e


def _write(fd: int, text: bytes) -> None:
    while text:
        text = text[os.write(fd, text) :]
    os.fsync(fd)


def _content(fd: int, path: Path) -> bytes:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise LedgerError(f"{path}: not a regular file; give another --ledger")
    size = found.st_size
    if size > MAX_FILE_BYTES:
        raise LedgerError(
            f"{path}: {size} bytes are over the limit of {MAX_FILE_BYTES}; give another --ledger"
        )
    parts = []
    offset = 0
    while offset < size and (part := os.pread(fd, size - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


@contextlib.contextmanager
def _locked(fd: int, path: Path, how: int) -> Iterator[None]:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            break
        except BlockingIOError as e:
            if time.monotonic() > deadline:
                raise LedgerError(
                    f"{path}: another process holds the ledger for over {LOCK_TIMEOUT_S:.0f} s; "
                    "end it, then continue with --resume"
                ) from e
            time.sleep(0.01)
        except OSError as e:
            raise LedgerError(
                f"{path}: the ledger cannot be locked here ({e.strerror}); give --ledger on a local disk"
            ) from e
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
