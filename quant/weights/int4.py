"""Packed INT4 with one bfloat16 scale for 32 values, as Kimi K2-Thinking, K2.5 and K2.6 ship it.

compressed-tensors calls it ``pack-quantized``: eight codes in an int32, the first in the lowest nibble,
each stored as code + 8. Codes run from -8 to 7; the scale is amax / 7.5. The torch code below serves where
:mod:`equipoise.kernels.weight_formats` has no routine; the results are the same bits.
"""

import numpy as np
import torch

from equipoise.kernels import weight_formats
from equipoise.quant.weights.tiles import (
    EncodeCounts,
    Scratch,
    count_zeros,
    counted,
    finite_amax,
    float32_tile,
    row_tiles,
    to_float32,
)

__all__ = ["int4_decode", "int4_encode", "pack_nibbles", "unpack_nibbles"]

BFLOAT16_MIN_NORMAL = 2.0**-126


def int4_encode(
    x: torch.Tensor,
    *,
    group: int = 32,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> tuple[torch.Tensor, torch.Tensor, EncodeCounts]:
    """Symmetric INT4 by groups along a row.

    An integer cannot say NaN: a group with a NaN gets a NaN scale, so that all of it reads as NaN.

    Parameters
    ----------
    x : Tensor
        [rows, columns] bfloat16, float16 or float32; columns a multiple of ``group``, of 8 at least.
    out : Tensor or None
        int32 [rows, columns / 8] to fill.
    scale_out : Tensor or None
        bfloat16 [rows, columns / group] to fill.

    Returns
    -------
    packed, scales, counts
        Codes are computed with the scale as it is stored, rounded to bfloat16.
    """
    rows, columns = x.shape
    packed = torch.empty(rows, columns // 8, dtype=torch.int32) if out is None else out
    scales = torch.empty(rows, columns // group, dtype=torch.bfloat16) if scale_out is None else scale_out
    if (done := weight_formats.int4_encode(x, packed, scales, group=group)) is not None:
        return packed, scales, counted(x, done)
    scratch = scratch or Scratch()
    counts = EncodeCounts()
    for top, bottom in row_tiles(rows, columns):
        tile = x[top:bottom]
        shape = (bottom - top, columns)
        values = to_float32(tile, scratch)
        zeros = count_zeros(values, scratch)
        groups = values.view(bottom - top, columns // group, group)
        amax, finite = finite_amax(groups, scratch)
        scale = (amax / 7.5).clamp_min(BFLOAT16_MIN_NORMAL)
        stored = torch.where(amax > 0, scale, 1.0).to(torch.bfloat16)
        groups.div_(stored.to(torch.float32)[..., None])
        nan = saturated = 0
        if not finite:
            nan = int(tile.isnan().sum())
            saturated = int(tile.isinf().sum())
            stored = torch.where(groups.isnan().any(-1), torch.nan, stored)
            values.nan_to_num_(nan=0.0)
        scales[top:bottom] = stored
        codes = scratch.take("codes", shape, torch.int8).copy_(values.round_().clamp_(-8.0, 7.0))
        flushed = codes.numel() - int(np.count_nonzero(codes.numpy())) - zeros - nan  # a NaN has code 0 here
        pack_nibbles(codes.add_(8), packed[top:bottom], scratch)
        counts += EncodeCounts(n=tile.numel(), saturated=saturated, flushed_to_zero=flushed, nan=nan)
    return packed, scales, counts


def pack_nibbles(nibbles: torch.Tensor, out: torch.Tensor, scratch: Scratch) -> None:
    """Pairs of bytes 0..15 [rows, columns] into ``out``'s bytes, the even column in the low nibble.

    On a little-endian machine (the only kind safetensors is written on) four such bytes are the int32 of
    compressed-tensors, first value lowest.
    """
    pairs = nibbles.view(torch.int16)  # low byte: even column
    shifted = torch.bitwise_right_shift(
        pairs, 4, out=scratch.take("shifted", tuple(pairs.shape), torch.int16)
    )
    out.view(torch.uint8).copy_(shifted.bitwise_or_(pairs).bitwise_and_(0xFF))


def unpack_nibbles(packed: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """The inverse of :func:`pack_nibbles`: int8 [rows, 2 * bytes] in a scratch buffer."""
    as_bytes = packed.view(torch.uint8)
    shape = tuple(as_bytes.shape)
    pairs = scratch.take("pairs", shape, torch.int16).copy_(as_bytes)
    high = torch.bitwise_left_shift(pairs, 4, out=scratch.take("high", shape, torch.int16)).bitwise_and_(
        0x0F00
    )
    return pairs.bitwise_and_(0x000F).bitwise_or_(high).view(torch.int8)


def int4_decode(
    packed: torch.Tensor,
    scales: torch.Tensor,
    *,
    columns: int,
    out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """Float32 [rows, columns]: ``(nibble - 8) * scale``; rounded again if ``out`` is bfloat16.

    Parameters
    ----------
    packed : Tensor
        int32 [rows, ceil(columns / 8)]; nibbles beyond ``columns`` are padding.
    scales : Tensor
        bfloat16, float16 or float32 [rows, groups]; a group is columns / groups values.
    """
    scratch = scratch or Scratch()
    rows, groups = scales.shape
    values = torch.empty(rows, columns, dtype=torch.float32) if out is None else out
    if weight_formats.int4_decode(packed, scales, values):
        return values
    for top, bottom in row_tiles(rows, columns):
        codes = unpack_nibbles(packed[top:bottom], scratch)
        target = values[top:bottom]
        tile = float32_tile(target, scratch).copy_(codes[:, :columns]).sub_(8.0)
        factors = scales[top:bottom].to(torch.float32)[..., None]
        tile.view(bottom - top, groups, columns // groups).mul_(factors)
        if tile.dtype != target.dtype:
            target.copy_(tile)
    return values
