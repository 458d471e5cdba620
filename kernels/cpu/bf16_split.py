"""Calls of ``bf16_split.c``; checked arguments come from `equipoise.kernels.bf16_split`."""

import ctypes
from functools import cache

import numpy as np
from numpy.typing import NDArray

from equipoise.kernels import bf16_split as contract
from equipoise.kernels.cpu.compiled import load

__all__ = ["compiled_count_escapes", "compiled_join", "compiled_split"]

Bytes = NDArray[np.uint8]
Values = NDArray[np.uint16]

_SIZE, _POINTER = ctypes.c_size_t, ctypes.c_void_p


@cache
def _library() -> ctypes.CDLL:
    library = load("bf16_split").library
    assert library is not None
    library.bf16_split.restype = library.bf16_join.restype = library.bf16_count_escapes.restype = _SIZE
    library.bf16_count_escapes.argtypes = [_POINTER, _SIZE]
    library.bf16_split.argtypes = [_POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _POINTER, _POINTER]
    library.bf16_join.argtypes = [_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _POINTER, _SIZE, _POINTER]
    return library


def compiled_count_escapes(pairs: Bytes) -> int:
    """See `equipoise.kernels.bf16_split.count_escapes`."""
    return int(_library().bf16_count_escapes(pairs.ctypes.data, pairs.size))


def compiled_split(values: Values, bases: Bytes) -> "contract.Split":
    """See `equipoise.kernels.bf16_split.split`."""
    count = values.size
    pairs = np.empty((count + 1) // 2, np.uint8)
    rest, escapes = np.empty(count, np.uint8), np.empty(count, np.uint8)
    found = _library().bf16_split(
        values.ctypes.data, count, bases.ctypes.data, count // max(1, bases.size), pairs.ctypes.data,
        rest.ctypes.data, escapes.ctypes.data,
    )  # fmt: skip
    return contract.Split(pairs=pairs, escapes=escapes[:found], rest=rest)


def compiled_join(parts: "contract.Split", bases: Bytes, out: Values) -> bool:
    """See `equipoise.kernels.bf16_split.join`."""
    asked = _library().bf16_join(
        parts.pairs.ctypes.data, parts.rest.ctypes.data, parts.escapes.ctypes.data, parts.escapes.size,
        out.size, bases.ctypes.data, out.size // max(1, bases.size), out.ctypes.data,
    )  # fmt: skip
    return bool(asked == parts.escapes.size)
