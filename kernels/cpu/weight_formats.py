"""Calls of ``fp8_weights.c`` and ``int4_weights.c``; `equipoise.kernels.weight_formats` checks the tensors.

ctypes lets other Python threads run during a call.
"""

import ctypes
from functools import cache

import torch

from equipoise.kernels.cpu.compiled import load
from equipoise.kernels.reference_weights import Counts

__all__ = ["compiled_fp8_decode", "compiled_fp8_encode", "compiled_int4_decode", "compiled_int4_encode"]

_SIZE, _POINTER, _PATTERN = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint16
_ThreeCounts = ctypes.c_uint64 * 3


@cache
def _fp8() -> ctypes.CDLL:
    library = load("fp8_weights").library
    assert library is not None
    given = [_POINTER, _SIZE, _SIZE, _SIZE, _SIZE, _SIZE]  # data, rows, columns, stride, block
    library.fp8_encode.argtypes = [*given, _POINTER, _SIZE, _POINTER, _ThreeCounts]
    library.fp8_decode_bf16.argtypes = [*given, _POINTER, _PATTERN, _POINTER, _SIZE]
    library.fp8_decode_float32.argtypes = [*given, _POINTER, _POINTER, _SIZE]
    for function in (library.fp8_encode, library.fp8_decode_bf16, library.fp8_decode_float32):
        function.restype = None
    return library


@cache
def _int4() -> ctypes.CDLL:
    library = load("int4_weights").library
    assert library is not None
    given = [_POINTER, _SIZE, _SIZE, _SIZE, _SIZE]  # data, rows, columns, stride, group
    library.int4_encode.argtypes = [*given, _POINTER, _SIZE, _POINTER, _ThreeCounts]
    library.int4_decode_bf16.argtypes = [*given, _POINTER, _PATTERN, _POINTER, _SIZE]
    library.int4_decode_float32.argtypes = [*given, _POINTER, _POINTER, _SIZE]
    for function in (library.int4_encode, library.int4_decode_bf16, library.int4_decode_float32):
        function.restype = None
    return library


@cache
def _nan_pattern() -> int:
    """What torch writes for a NaN that it rounds to bfloat16; it depends on the processor."""
    return int(torch.full((64,), torch.nan).to(torch.bfloat16).view(torch.int16)[0]) & 0xFFFF


def compiled_fp8_encode(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, *, block: tuple[int, int]
) -> Counts:
    """See `equipoise.kernels.weight_formats.fp8_encode`."""
    counts = _ThreeCounts()
    given = (x.data_ptr(), *x.shape, x.stride(0), *block)
    _fp8().fp8_encode(*given, codes.data_ptr(), codes.stride(0), scales.data_ptr(), counts)
    return Counts(*counts)


def compiled_fp8_decode(
    codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, *, block: tuple[int, int]
) -> None:
    """See `equipoise.kernels.weight_formats.fp8_decode`."""
    given = (codes.data_ptr(), *codes.shape, codes.stride(0), *block, scales.data_ptr())
    if out.dtype == torch.bfloat16:
        _fp8().fp8_decode_bf16(*given, _nan_pattern(), out.data_ptr(), out.stride(0))
    else:
        _fp8().fp8_decode_float32(*given, out.data_ptr(), out.stride(0))


def compiled_int4_encode(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, *, group: int
) -> Counts:
    """See `equipoise.kernels.weight_formats.int4_encode`."""
    counts = _ThreeCounts()
    given = (x.data_ptr(), *x.shape, x.stride(0), group)
    _int4().int4_encode(*given, packed.data_ptr(), 4 * packed.stride(0), scales.data_ptr(), counts)
    return Counts(*counts)


def compiled_int4_decode(packed: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """See `equipoise.kernels.weight_formats.int4_decode`."""
    group = out.shape[1] // scales.shape[1]
    given = (packed.data_ptr(), *out.shape, 4 * packed.stride(0), group, scales.data_ptr())
    if out.dtype == torch.bfloat16:
        _int4().int4_decode_bf16(*given, _nan_pattern(), out.data_ptr(), out.stride(0))
    else:
        _int4().int4_decode_float32(*given, out.data_ptr(), out.stride(0))
