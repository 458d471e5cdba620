"""Reading files that may be hostile or broken: sizes are bounded, errors name the file and the line.

JSON and CSV text only; nothing is unpickled or evaluated. NaN and Infinity are let through as floats,
since tools write them; whoever reads a score refuses or counts them.
"""

import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from equipoise.evals.errors import UsageError

__all__ = [
    "MAX_LINE_BYTES",
    "MAX_ROWS",
    "decode",
    "iter_json_lines",
    "iter_lines",
    "json_object",
    "parse_json",
    "read_json",
    "read_member",
]

MAX_LINE_BYTES = 64 << 20
MAX_ROWS = 5_000_000
MAX_JSON_BYTES = 1 << 30  # of a file that is one JSON document
MAX_MEMBER_BYTES = 256 << 20  # of one unpacked member of a zip file
_ZSTANDARD = 93  # zip compression method that the standard library of Python 3.11 cannot read
_CHUNK_BYTES = 1 << 20


def iter_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, from 1.

    Raises
    ------
    UsageError
        Cannot be read, a line longer than `MAX_LINE_BYTES`, or more than `MAX_ROWS` lines.
    """
    try:
        with path.open("rb") as f:
            number = 0
            while line := f.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise UsageError(
                        f"{path}:{number}: a line of more than {MAX_LINE_BYTES >> 20} MiB; "
                        "check that this is a file of one result a line"
                    )
                if number > MAX_ROWS:
                    raise UsageError(f"{path}: more than {MAX_ROWS:,} lines; split the file by task")
                yield number, line
    except OSError as e:
        raise UsageError(f"{path} cannot be read ({e.strerror}); check the path") from e


def iter_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with "file:line" for messages; blank lines are skipped."""
    for number, line in iter_lines(path):
        if line.strip():
            where = f"{path}:{number}"
            yield where, json_object(parse_json(line, where), where)


def read_json(path: Path) -> Any:
    """A file that is one JSON document of at most `MAX_JSON_BYTES`."""
    try:
        with path.open("rb") as f:
            data = f.read(MAX_JSON_BYTES + 1)
    except OSError as e:
        raise UsageError(f"{path} cannot be read ({e.strerror}); check the path") from e
    if len(data) > MAX_JSON_BYTES:
        raise UsageError(f"{path} is larger than {MAX_JSON_BYTES >> 30} GiB; split it, or use one row a line")
    return parse_json(data, str(path))


def parse_json(data: bytes, where: str) -> Any:
    """JSON text as Python values; ``where`` is for the message."""
    try:
        return json.loads(decode(data, where))
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{where} is not valid JSON ({e}); the file may be cut short: write it again") from e


def json_object(value: Any, where: str) -> dict[str, Any]:
    """``value`` if it is a JSON object."""
    if not isinstance(value, dict):
        raise UsageError(
            f"{where} is {type(value).__name__}, not a JSON object; check the format (--input-format)"
        )
    return value


def decode(data: bytes, where: str) -> str:
    """UTF-8, with or without a byte-order mark."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as e:
        raise UsageError(f"{where} is not UTF-8 text (byte {e.start}); convert it to UTF-8") from e


def read_member(archive: zipfile.ZipFile, name: str, path: Path) -> Any:
    """One JSON member of a zip file, unpacked to at most `MAX_MEMBER_BYTES`, its checksum verified."""
    info = archive.getinfo(name)
    where = f"{path}, member {name}"
    try:
        unpack = _unpack_zstandard if info.compress_type == _ZSTANDARD else _unpack
        data = unpack(archive, info)
    except (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as e:
        raise UsageError(f"{where} cannot be unpacked ({e}); the file is damaged: copy it again") from e
    if len(data) > MAX_MEMBER_BYTES:
        raise UsageError(
            f"{where} unpacks to more than {MAX_MEMBER_BYTES >> 20} MiB; write the log without events"
        )
    if zlib.crc32(data) != info.CRC:
        raise UsageError(f"{where} does not match its checksum; the file is damaged: copy it again")
    return parse_json(data, where)


def _unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with archive.open(info) as f:
        return f.read(MAX_MEMBER_BYTES + 1)


def _unpack_zstandard(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.compress_size > MAX_MEMBER_BYTES:
        raise zipfile.BadZipFile("its packed size is beyond the limit")
    file: IO[bytes] | None = archive.fp
    assert file is not None, "the archive is open"
    file.seek(info.header_offset)
    header = file.read(30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("no local header")
    file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)
    packed = file.read(info.compress_size)
    unpacked = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        while len(unpacked) <= MAX_MEMBER_BYTES and (chunk := stream.read(_CHUNK_BYTES)):
            unpacked += chunk
    return bytes(unpacked)
