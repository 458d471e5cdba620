"""Weights to E4M3 or INT4 and back in plain torch: slow and readable, what the C routines must equal."""

from itertools import product
from typing import NamedTuple

import torch

__all__ = [
    "Counts",
    "fp8_decode_reference",
    "fp8_encode_reference",
    "int4_decode_reference",
    "int4_encode_reference",
]

_MIN_NORMAL = 2.0**-126  # of float32 and bfloat16


class Counts(NamedTuple):
    """What became of the values: infinities that were clipped, nonzero that became zero, NaN."""

    saturated: int
    flushed_to_zero: int
    nan: int


def _amax(values: torch.Tensor) -> torch.Tensor:
    return values.abs().nan_to_num(nan=0.0, posinf=0.0).amax()


def fp8_encode_reference(
    x: torch.Tensor, *, block: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, Counts]:
    """E4M3 [rows, columns] of ``x``, float32 scales, one a block (the last ones may be smaller), and counts.

    A scale is amax / 448 over the finite values, 1 where there is none but zeros.
    """
    values = x.to(torch.float32)
    (rows, columns), (height, width) = x.shape, block
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // height), -(-columns // width))
    for i, j in product(range(scales.shape[0]), range(scales.shape[1])):
        at = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
        amax = _amax(values[at])
        scales[i, j] = (amax / 448.0).clamp_min(_MIN_NORMAL) if amax > 0 else 1.0
        codes[at] = (values[at] / scales[i, j]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return codes, scales, _count(values, codes.to(torch.float32) == 0)


def _count(values: torch.Tensor, became_zero: torch.Tensor) -> Counts:
    flushed = became_zero & (values != 0) & ~values.isnan()
    return Counts(int(values.isinf().sum()), int(flushed.sum()), int(values.isnan().sum()))


def fp8_decode_reference(
    codes: torch.Tensor, scales: torch.Tensor, *, block: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """``code * scale`` in float32, then rounded to ``dtype``; codes of NaN, of either sign, are torch.nan."""
    rows, columns = codes.shape
    values = codes.to(torch.float32)
    spread = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:rows, :columns]
    return (torch.where(values.isnan(), torch.nan, values) * spread).to(dtype)


def int4_encode_reference(x: torch.Tensor, *, group: int) -> tuple[torch.Tensor, torch.Tensor, Counts]:
    """Packed int32 [rows, columns / 8], eight codes + 8 each, the first lowest; bfloat16 scales; and counts.

    A scale is amax / 7.5 over a group's finite values, rounded to bfloat16 before it is used; 1 where there
    is none but zeros. It is stored as NaN where the group has a NaN.
    """
    rows, columns = x.shape
    values = x.to(torch.float32)
    groups = values.view(rows, columns // group, group)
    amax = groups.abs().nan_to_num(nan=0.0, posinf=0.0).amax(-1)
    scales = torch.where(amax > 0, (amax / 7.5).clamp_min(_MIN_NORMAL), 1.0).to(torch.bfloat16)
    codes = (groups / scales.to(torch.float32)[..., None]).round().clamp(-8.0, 7.0).nan_to_num(nan=0.0)
    scales = torch.where(groups.isnan().any(-1), torch.nan, scales)
    nibbles = (codes + 8).to(torch.int64).view(rows, columns // 8, 8)
    packed = (nibbles << torch.arange(0, 32, 4)).sum(-1).to(torch.int32)
    return packed, scales, _count(values, codes.view(rows, columns) == 0)


def int4_decode_reference(
    packed: torch.Tensor, scales: torch.Tensor, *, columns: int, dtype: torch.dtype
) -> torch.Tensor:
    """``code * scale`` in float32, then rounded to ``dtype``; a group is columns / scales' columns."""
    nibbles = packed[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32) & 15
    codes = nibbles.view(packed.shape[0], -1)[:, :columns].to(torch.float32) - 8
    spread = scales.to(torch.float32).repeat_interleave(columns // scales.shape[1], 1)
    return (codes * spread).to(dtype)
