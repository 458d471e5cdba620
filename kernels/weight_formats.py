"""BF16 weights to FP8 or INT4 and back, in one pass over memory, by C routines for this processor.

A function answers None or False, having done nothing, where there is no routine (``backend()`` says why) or
its tensors are not what a routine takes: the caller then computes with torch. The results are those of
`reference_weights` bit for bit; this is tried before a routine is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from equipoise.kernels.cpu.compiled import load
from equipoise.kernels.reference_weights import (
    Counts,
    fp8_decode_reference,
    fp8_encode_reference,
    int4_decode_reference,
    int4_encode_reference,
)

__all__ = ["Counts", "backend", "fp8_decode", "fp8_encode", "int4_decode", "int4_encode"]

_DECODED = (torch.float32, torch.bfloat16)


def fp8_encode(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, *, block: tuple[int, int]
) -> Counts | None:
    """Fill ``codes`` and ``scales``.

    Parameters
    ----------
    x : Tensor
        bfloat16 [rows, columns] with contiguous rows.
    codes : Tensor
        float8_e4m3fn [rows, columns] with contiguous rows.
    scales : Tensor
        float32 [ceil(rows / block), ceil(columns / block)], contiguous: amax / 448, or 1.
    block : (int, int)
    """
    grid = (-(-x.shape[0] // block[0]), -(-x.shape[1] // block[1]))
    suited = (
        _is(x, torch.bfloat16, x.shape)
        and _is(codes, torch.float8_e4m3fn, x.shape)
        and _is(scales, torch.float32, grid)
        and scales.is_contiguous()
    )
    return routine.fp8_encode(x, codes, scales, block=block) if suited and (routine := _routine()) else None


def fp8_decode(
    codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, *, block: tuple[int, int]
) -> bool:
    """Fill ``out`` with ``code * scale`` in float32, rounded once more if it is bfloat16.

    Parameters
    ----------
    codes, scales : Tensor
        As :func:`fp8_encode` fills them.
    out : Tensor
        float32 or bfloat16 [rows, columns] with contiguous rows.
    """
    grid = (-(-codes.shape[0] // block[0]), -(-codes.shape[1] // block[1]))
    suited = (
        _is(codes, torch.float8_e4m3fn, codes.shape)
        and _is(scales, torch.float32, grid)
        and scales.is_contiguous()
        and out.dtype in _DECODED
        and _is(out, out.dtype, codes.shape)
    )
    if not suited or (routine := _routine()) is None:
        return False
    routine.fp8_decode(codes, scales, out, block=block)
    return True


def int4_encode(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, *, group: int) -> Counts | None:
    """Fill ``packed`` and ``scales``.

    Parameters
    ----------
    x : Tensor
        bfloat16 [rows, columns] with contiguous rows; ``group``, a multiple of 8, divides columns.
    packed : Tensor
        int32 [rows, columns / 8] with contiguous rows; the first of eight codes is lowest.
    scales : Tensor
        bfloat16 [rows, columns / group], contiguous.
    """
    rows, columns = x.shape
    suited = (
        group % 8 == 0
        and columns % group == 0
        and _is(x, torch.bfloat16, x.shape)
        and _is(packed, torch.int32, (rows, columns // 8))
        and _is(scales, torch.bfloat16, (rows, columns // group))
        and scales.is_contiguous()
    )
    return routine.int4_encode(x, packed, scales, group=group) if suited and (routine := _routine()) else None


def int4_decode(packed: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> bool:
    """Fill ``out`` with ``code * scale`` in float32, rounded once more if it is bfloat16.

    Parameters
    ----------
    packed : Tensor
        int32 [rows, ceil(columns / 8)] with contiguous rows.
    scales : Tensor
        bfloat16, float16 or float32 [rows, groups]; groups divide columns.
    out : Tensor
        float32 or bfloat16 [rows, columns] with contiguous rows.
    """
    rows, columns = out.shape
    groups = scales.shape[-1]
    suited = (
        out.dtype in _DECODED
        and _is(out, out.dtype, out.shape)
        and _is(packed, torch.int32, (rows, -(-columns // 8)))
        and _is(scales, scales.dtype, (rows, groups))
        and columns % groups == 0
    )
    if not suited or (routine := _routine()) is None:
        return False
    routine.int4_decode(packed, scales.to(torch.float32).contiguous(), out)
    return True


def backend() -> str:
    """What the functions use, and why."""
    return _choose().backend


def _is(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Of this kind, with values, on the CPU, and each row in one piece, none over another."""
    return (
        tensor.dtype == dtype
        and tensor.ndim == 2
        and tuple(tensor.shape) == tuple(shape)
        and tensor.numel() > 0
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and (tensor.stride(1) == 1 or tensor.shape[1] == 1)
        and (tensor.stride(0) >= tensor.shape[1] or tensor.shape[0] == 1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Routine:
    fp8_encode: Callable[..., Counts]
    fp8_decode: Callable[..., None]
    int4_encode: Callable[..., Counts]
    int4_decode: Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    routine: _Routine | None
    backend: str


def _routine() -> _Routine | None:
    return _choose().routine


@cache
def _choose() -> _Choice:
    from equipoise.kernels.cpu import weight_formats as compiled

    for name in ("fp8_weights", "int4_weights"):
        if (loaded := load(name)).library is None:
            return _Choice(routine=None, backend=f"torch ({loaded.how})")
    routine = _Routine(
        fp8_encode=compiled.compiled_fp8_encode,
        fp8_decode=compiled.compiled_fp8_decode,
        int4_encode=compiled.compiled_int4_encode,
        int4_decode=compiled.compiled_int4_decode,
    )
    if (wrong := _what_differs(routine)) is not None:
        return _Choice(routine=None, backend=f"torch ({loaded.how}: {wrong} is wrong)")
    return _Choice(routine=routine, backend=f"compiled ({loaded.how})")


def _what_differs(routine: _Routine) -> str | None:
    """The first function whose bits are not those of the reference on some 200,000 values."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(256, 256)
    random = torch.randn(150, 992, generator=torch.Generator().manual_seed(0))
    for x in (every, (random * torch.logspace(-42, 37, 150)[:, None]).to(torch.bfloat16)):
        for block in ((128, 128), (1, x.shape[1])):
            codes, scales, counts = fp8_encode_reference(x, block=block)
            got, got_scales = torch.empty_like(codes), torch.empty_like(scales)
            same = routine.fp8_encode(x, got, got_scales, block=block) == counts
            if not (same and _equal(got, codes) and _equal(got_scales, scales)):
                return "fp8_encode"
            for dtype in _DECODED:
                read = torch.empty(x.shape, dtype=dtype)
                routine.fp8_decode(codes, scales, read, block=block)
                if not _equal(read, fp8_decode_reference(codes, scales, block=block, dtype=dtype)):
                    return "fp8_decode"
        packed, scales, counts = int4_encode_reference(x, group=32)
        got, got_scales = torch.empty_like(packed), torch.empty_like(scales)
        same = routine.int4_encode(x, got, got_scales, group=32) == counts
        if not (same and _equal(got, packed) and _equal(got_scales, scales)):
            return "int4_encode"
        for dtype in _DECODED:
            read = torch.empty(x.shape, dtype=dtype)
            routine.int4_decode(packed, scales.to(torch.float32), read)
            if not _equal(read, int4_decode_reference(packed, scales, columns=x.shape[1], dtype=dtype)):
                return "int4_decode"
    return None


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))
