"""Frames of JSON between processes, and Python values as JSON that is safe to read from hostile code.

A frame is a length (4 bytes, big-endian) and UTF-8 JSON. Values are rebuilt from a fixed list of types, so
that reading one runs no code of its sender: no pickle, no ``__eq__``, ``__reduce__`` or subclass of theirs.
"""

import collections
import datetime
import decimal
import fractions
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Ref", "WireError", "decode", "encode", "exception_of", "read_frame", "write_frame"]

MAX_FRAME_BYTES = 64 << 20
MAX_ITERATED = 1_000_000  # elements read from an iterator
MAX_DEPTH = 200


class WireError(Exception):
    """The other side sent something that is no frame, or no value."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A value that stays where it is: only its number travels."""

    number: int


def read_frame(fd: int, *, limit: int = MAX_FRAME_BYTES) -> Any:
    """The next frame of a descriptor; None at its end.

    Raises
    ------
    WireError
        The frame is too long, cut off, or no JSON.
    """
    head = _read(fd, 4)
    if not head:
        return None
    size = int.from_bytes(head, "big")
    if len(head) < 4 or size > limit:
        raise WireError(f"a frame of {size} bytes, at most {limit} are read")
    body = _read(fd, size)
    if len(body) < size:
        raise WireError("a frame was cut off")
    try:
        return json.loads(body)
    except (ValueError, RecursionError, MemoryError) as e:
        raise WireError(f"a frame is not JSON ({type(e).__name__})") from e


def write_frame(fd: int, value: Any, *, limit: int = MAX_FRAME_BYTES) -> None:
    """Send one JSON value.

    Raises
    ------
    WireError
        It is longer than ``limit``.
    """
    body = json.dumps(value).encode()
    if len(body) > limit:
        raise WireError(f"a value of {len(body)} bytes, at most {limit} are sent")
    data = memoryview(len(body).to_bytes(4, "big") + body)
    while data:
        data = data[os.write(fd, data) :]


def _read(fd: int, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = os.read(fd, min(size - len(found), 1 << 20))
        if not part:
            break
        found += part
    return bytes(found)


def encode(value: Any, keep: Callable[[Any], int] | None = None, depth: int = 0) -> Any:
    """A value as JSON. Subclasses become their base, iterators what they yield.

    Parameters
    ----------
    keep : callable or None
        Stores a value of any other type and returns its number; None: such a value raises.

    Raises
    ------
    WireError
        Nested too deeply, an iterator that does not end, or a value of a type that cannot travel.
    """
    if depth > MAX_DEPTH:
        raise WireError(f"nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    name, inner = _parts(value, keep)
    if name == "dict":
        inner = [[encode(k, keep, depth + 1), encode(v, keep, depth + 1)] for k, v in inner]
    elif isinstance(inner, list):
        inner = [encode(v, keep, depth + 1) for v in inner]
    return inner if name in ("list", "plain") else {"t": name, "v": inner}


def _parts(value: Any, keep: Callable[[Any], int] | None) -> tuple[str, Any]:
    """A value's type by name, and its text, its elements in a list, or (``plain``) itself."""
    if isinstance(value, int):
        plain = int.__int__(value)
        return ("plain", plain) if -(1 << 53) < plain < 1 << 53 else ("int", hex(plain))
    for base, name, parts in _PARTS:
        if isinstance(value, base):
            found = parts(value)
            return name, found if isinstance(found, str | float | int) else list(found)
    if hasattr(value, "__next__"):
        taken = list(itertools.islice(value, MAX_ITERATED + 1))
        if len(taken) > MAX_ITERATED:
            raise WireError(f"an iterator of more than {MAX_ITERATED} elements")
        return "iterator", taken
    if keep is None:
        raise WireError(f"a value of type {type(value).__name__} cannot be sent")
    return "ref", keep(value)


def decode(value: Any, resolve: Callable[[int], Any] = Ref) -> Any:
    """The value that ``encode`` made JSON of; references become what ``resolve`` says.

    Raises
    ------
    WireError
        It is not what ``encode`` gives.
    """
    try:
        return _decode(value, resolve)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as e:
        raise WireError(f"not a value ({type(e).__name__})") from e


def _decode(value: Any, resolve: Callable[[int], Any]) -> Any:
    if isinstance(value, list):
        return [_decode(v, resolve) for v in value]
    if not isinstance(value, dict):
        return value
    name, inner = value["t"], value["v"]
    if name == "dict":
        return {_decode(k, resolve): _decode(v, resolve) for k, v in inner}
    if name in _FROM_LIST:
        return _FROM_LIST[name]([_decode(v, resolve) for v in inner])
    return resolve(int(inner)) if name == "ref" else _FROM_TEXT[name](inner)


def _range(value: range) -> list[int]:
    return [value.start, value.stop, value.step]


def _complex(value: complex) -> list[float]:
    return [value.real, value.imag]


#: type, name, and its text or elements: by the methods of the type itself, never of a subclass
_PARTS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (str, "plain", str.__str__),
    (float, "plain", float.__float__),
    (Ref, "ref", lambda v: v.number),
    (list, "list", list.__iter__),
    (tuple, "tuple", tuple.__iter__),
    (dict, "dict", dict.items),
    (set, "set", set.__iter__),
    (frozenset, "frozenset", frozenset.__iter__),
    (bytes, "bytes", bytes.hex),
    (bytearray, "bytearray", bytearray.hex),
    (complex, "complex", _complex),
    (range, "range", _range),
    (collections.deque, "deque", collections.deque.__iter__),
    (type({}.keys()), "keys", iter),
    (type({}.values()), "list", iter),
    (fractions.Fraction, "fraction", str),
    (decimal.Decimal, "decimal", str),
    (datetime.datetime, "datetime", datetime.datetime.isoformat),
    (datetime.date, "date", datetime.date.isoformat),
)

_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "int": lambda v: int(v, 16),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "fraction": fractions.Fraction,
    "decimal": decimal.Decimal,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
}

_FROM_LIST: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "complex": lambda v: complex(*v),
    "range": lambda v: range(*v),
    "deque": collections.deque,
    "iterator": iter,
    "keys": lambda v: dict.fromkeys(v).keys(),
}

_EXCEPTIONS = (
    *(
        ArithmeticError,
        AssertionError,
        AttributeError,
        EOFError,
        Exception,
        ImportError,
        IndexError,
        KeyError,
    ),
    *(LookupError, MemoryError, NameError, NotImplementedError, OSError, OverflowError, RecursionError),
    *(RuntimeError, StopIteration, TypeError, ValueError, ZeroDivisionError),
)
_BY_NAME: dict[str, type[Exception]] = {e.__name__: e for e in _EXCEPTIONS}


def exception_of(name: str, message: str) -> Exception:
    """A builtin exception by its name; a RuntimeError that says the type where it is none of these."""
    found = _BY_NAME.get(name)
    return RuntimeError(f"{name}: {message}") if found is None else found(message)
