"""The tests of LiveCodeBench's rows: JSON, or JSON as text in a pickle, deflated, in base64.

A pickle is a program. This one only ever says one text, so its bytes are read as what they are: anything
else than one string between the opening and closing marks is refused, and nothing is unpickled.
"""

import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any

__all__ = ["ContestTest", "read_tests"]

MAX_UNPACKED_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestTest:
    """Input and expected output: of a program, or a function's arguments and result as JSON."""

    given: str
    expected: str


def read_tests(*packed: str) -> list[ContestTest]:
    """The tests of some fields of a row.

    Raises
    ------
    ValueError
        A field is in no known form, or larger than 512 MiB.
    """
    return [test for field in packed for test in _read(field)]


def _read(field: str) -> list[ContestTest]:
    try:
        listed: Any = json.loads(field)
    except ValueError:
        listed = json.loads(_text_of_pickle(_inflated(base64.b64decode(field, validate=True))))
    if not isinstance(listed, list):
        raise ValueError("tests must be a list")
    return [ContestTest(given=str(t["input"]), expected=str(t["output"])) for t in listed]


def _inflated(data: bytes) -> bytes:
    try:
        unpacker = zlib.decompressobj()
        found = unpacker.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error as e:
        raise ValueError(f"tests are not deflated ({e})") from e
    if not unpacker.eof:
        raise ValueError(f"tests are cut off, or more than {MAX_UNPACKED_BYTES} bytes")
    return found


def _text_of_pickle(data: bytes) -> str:
    """The string of a pickle that holds one string and nothing else (protocol 2 and later)."""
    refused = ValueError("tests are a pickle of something else than one text, which is not read")
    if data[:1] != b"\x80":
        raise refused
    at, text = 2, None
    while at < len(data):
        mark = data[at : at + 1]
        at += 1
        if mark == b"." and text is not None and at == len(data):
            return text
        if mark in _LENGTH_BYTES and text is None:
            width = _LENGTH_BYTES[mark]
            size = int.from_bytes(data[at : at + width], "little")
            at += width
            if at + size > len(data):
                raise refused
            text = data[at : at + size].decode("utf-8", "surrogatepass")
            at += size
        elif mark in _SKIPPED:
            at += _SKIPPED[mark]
        else:
            raise refused
    raise refused


#: a string's mark -> bytes of its length
_LENGTH_BYTES = {b"\x8c": 1, b"X": 4, b"\x8d": 8}
#: marks that only frame or remember -> bytes that follow
_SKIPPED = {b"\x95": 8, b"\x94": 0, b"q": 1, b"r": 4}
