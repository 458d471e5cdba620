"""E4M3 weights: one float32 scale for a 128x128 block or for a channel, or a power of two for 32 values.

A scale is a descale: stored = x / scale, read = stored * scale. Files that say ``weight_scale_inv`` mean
the same thing by it. Every encoder divides (the reciprocal of a scale rounds some values to the
neighbouring code), saturates on its own account and keeps NaN. The torch code below serves where
:mod:`equipoise.kernels.weight_formats` has no routine; the results are the same bits.
"""

import numpy as np
import torch

from equipoise.kernels import weight_formats
from equipoise.kernels.formats import E4M3FN
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

__all__ = [
    "E8M0_BIAS",
    "decode_e4m3",
    "e8m0_to_float32",
    "fp8_block_decode",
    "fp8_block_encode",
    "fp8_channel_decode",
    "fp8_channel_encode",
    "mxfp8_decode",
    "mxfp8_encode",
]

E4M3_MAX = E4M3FN.max_finite
FLOAT32_MIN_NORMAL = 2.0**-126
E8M0_BIAS = 127
E8M0_NAN = 255


def _scale_of(amax: torch.Tensor, largest_code: float) -> torch.Tensor:
    """``amax / largest_code``; 1 where amax is 0. Never subnormal, which some devices read as zero."""
    scale = (amax / largest_code).clamp_min(FLOAT32_MIN_NORMAL)
    return torch.where(amax > 0, scale, 1.0)


def _store(scaled: torch.Tensor, out: torch.Tensor, scratch: Scratch) -> int:
    """Saturate and cast a tile of ``x / scale``, in place; returns how many codes are +-0."""
    out.copy_(scaled.clamp_(-E4M3_MAX, E4M3_MAX))
    magnitude = scratch.take("magnitude_code", tuple(out.shape), torch.uint8)
    torch.bitwise_left_shift(out.view(torch.uint8), 1, out=magnitude)  # the sign goes
    return int(magnitude.numel() - np.count_nonzero(magnitude.numpy()))


def _counts(x: torch.Tensor, zeros: int, zero_codes: int, finite: bool) -> EncodeCounts:
    return EncodeCounts(
        n=x.numel(),
        saturated=0 if finite else int(x.isinf().sum()),
        flushed_to_zero=zero_codes - zeros,
        nan=0 if finite else int(x.isnan().sum()),
    )


def fp8_block_encode(
    x: torch.Tensor,
    *,
    block: tuple[int, int] = (128, 128),
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> tuple[torch.Tensor, torch.Tensor, EncodeCounts]:
    """E4M3 with one float32 scale a block, as DeepSeek's and GLM-5's FP8 releases store it.

    Parameters
    ----------
    x : Tensor
        [rows, columns] bfloat16, float16 or float32. The last blocks may be smaller.
    block : (int, int)
        Rows and columns of a block.
    out : Tensor or None
        float8_e4m3fn [rows, columns] to fill.
    scale_out : Tensor or None
        float32 [ceil(rows / block), ceil(columns / block)] to fill.

    Returns
    -------
    codes, scales, counts
        ``scales`` is amax / 448 over the block's finite values; 1 for an all-zero block.
    """
    rows, columns = x.shape
    block_rows, block_columns = block
    grid = (-(-rows // block_rows), -(-columns // block_columns))
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn) if out is None else out
    scales = torch.empty(grid, dtype=torch.float32) if scale_out is None else scale_out
    if (done := weight_formats.fp8_encode(x, codes, scales, block=block)) is not None:
        return codes, scales, counted(x, done)
    scratch = scratch or Scratch()
    whole = columns // block_columns * block_columns
    counts = EncodeCounts()
    for band in range(grid[0]):
        top, bottom = band * block_rows, min(rows, (band + 1) * block_rows)
        tile, stored = x[top:bottom], codes[top:bottom]
        column_amax, finite = _column_amax(tile, scratch)
        amax = column_amax.new_zeros(grid[1])
        amax[: whole // block_columns] = column_amax[:whole].view(-1, block_columns).amax(1)
        if whole < columns:
            amax[-1] = column_amax[whole:].max()
        scale = _scale_of(amax, E4M3_MAX)
        scales[band] = scale
        values = to_float32(tile, scratch)
        zeros = count_zeros(values, scratch)
        if whole == columns:
            values.view(bottom - top, -1, block_columns).div_(scale[None, :, None])
        else:
            values.div_(scale.repeat_interleave(block_columns)[:columns])
        counts += _counts(tile, zeros, _store(values, stored, scratch), finite)
    return codes, scales, counts


def _column_amax(tile: torch.Tensor, scratch: Scratch) -> tuple[torch.Tensor, bool]:
    """The largest finite magnitude in each column as float32 [columns], and whether all values are finite."""
    if tile.dtype == torch.bfloat16:
        # Without the sign bit, bfloat16 patterns order as integers do: five times as fast as floats.
        bits = scratch.take("bits", tuple(tile.shape), torch.int16)
        torch.bitwise_and(tile.view(torch.int16), 0x7FFF, out=bits)
        largest = bits.amax(0)
        if int(largest.max()) < 0x7F80:
            return largest.view(torch.bfloat16).to(torch.float32), True
        bits.masked_fill_(bits >= 0x7F80, 0)
        return bits.amax(0).view(torch.bfloat16).to(torch.float32), False
    values = to_float32(tile, scratch, "amax_input")
    return finite_amax(values.t(), scratch)


def fp8_channel_encode(
    x: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> tuple[torch.Tensor, torch.Tensor, EncodeCounts]:
    """E4M3 with one float32 scale a row; shapes as :func:`fp8_block_encode`, scales [rows, 1]."""
    rows, columns = x.shape
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn) if out is None else out
    scales = torch.empty(rows, 1, dtype=torch.float32) if scale_out is None else scale_out
    if (done := weight_formats.fp8_encode(x, codes, scales, block=(1, max(1, columns)))) is not None:
        return codes, scales, counted(x, done)
    scratch = scratch or Scratch()
    counts = EncodeCounts()
    for top, bottom in row_tiles(rows, columns):
        tile = x[top:bottom]
        values = to_float32(tile, scratch)
        zeros = count_zeros(values, scratch)
        amax, finite = finite_amax(values, scratch)
        scale = _scale_of(amax, E4M3_MAX)[:, None]
        scales[top:bottom] = scale
        zero_codes = _store(values.div_(scale), codes[top:bottom], scratch)
        counts += _counts(tile, zeros, zero_codes, finite)
    return codes, scales, counts


def mxfp8_encode(
    x: torch.Tensor,
    *,
    group: int = 32,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> tuple[torch.Tensor, torch.Tensor, EncodeCounts]:
    """MXFP8: E4M3 with one E8M0 scale for 32 values of a row.

    The scale is the smallest power of two that keeps the group within +-448, so nothing saturates but
    infinities. (The floor rule of the OCP MX specification clips up to an eighth of the peak and costs
    0.8 dB on Gaussian weights.)

    Returns
    -------
    codes, scales, counts
        ``scales`` uint8 [rows, columns / group]: exponent + 127.
    """
    rows, columns = x.shape
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn) if out is None else out
    scales = torch.empty(rows, columns // group, dtype=torch.uint8) if scale_out is None else scale_out
    scratch = scratch or Scratch()
    counts = EncodeCounts()
    for top, bottom in row_tiles(rows, columns):
        tile = x[top:bottom]
        values = to_float32(tile, scratch)
        zeros = count_zeros(values, scratch)
        groups = values.view(bottom - top, columns // group, group)
        amax, finite = finite_amax(groups, scratch)
        mantissa, exponent = torch.frexp(amax)  # amax = mantissa * 2**exponent, mantissa in [.5, 1)
        # 448 = .875 * 2**9.
        power = torch.where(mantissa > 0.875, exponent - 8, exponent - 9)
        biased = torch.where(amax > 0, power + E8M0_BIAS, E8M0_BIAS).clamp_(0, E8M0_NAN - 1).to(torch.uint8)
        scales[top:bottom] = biased
        groups.div_(e8m0_to_float32(biased)[..., None])
        counts += _counts(tile, zeros, _store(values, codes[top:bottom], scratch), finite)
    return codes, scales, counts


def e8m0_to_float32(biased: torch.Tensor) -> torch.Tensor:
    """``2**(biased - 127)`` as float32, exactly (2**-127 is subnormal); 255 is NaN."""
    biased = biased.view(torch.uint8)
    bits = biased.to(torch.int32) << 23
    bits = torch.where(biased == 0, 1 << 22, bits)
    bits = torch.where(biased == E8M0_NAN, 0x7FC00000, bits)
    return bits.view(torch.float32)


def decode_e4m3(codes: torch.Tensor, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """E4M3 codes to float32 ``out`` of the same shape; exact, NaN kept.

    Shifted into place, a code is a bfloat16 whose exponent bias is off by 120: one multiplication by
    2**120 mends it, subnormals too. Six times as fast as torch's cast.
    """
    shape = tuple(codes.shape)
    sign = scratch.take("sign", shape, torch.int16).copy_(codes.view(torch.int8))
    bits = torch.bitwise_left_shift(sign, 4, out=scratch.take("decoded_bits", shape, torch.int16))
    bits.bitwise_and_(0x07F0)
    has_nan = bits.numel() > 0 and int(bits.max()) == 0x07F0
    sign.bitwise_left_shift_(8).bitwise_and_(-0x8000)
    bits.bitwise_or_(sign)
    out.copy_(bits.view(torch.bfloat16)).mul_(2.0**120)
    if has_nan:
        out.masked_fill_(out.abs() > E4M3_MAX, torch.nan)  # 0x7F and 0xFF decode to +-480 up to here
    return out


def _output(codes: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return torch.empty(codes.shape, dtype=torch.float32) if out is None else out


def fp8_block_decode(
    codes: torch.Tensor,
    scales: torch.Tensor,
    *,
    block: tuple[int, int] = (128, 128),
    out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """Float32 [rows, columns] of E4M3 in blocks, ``code * scale``; rounded again if ``out`` is bfloat16."""
    values, scratch = _output(codes, out), scratch or Scratch()
    rows, columns = codes.shape
    scales = scales.to(torch.float32).contiguous()
    if weight_formats.fp8_decode(codes, scales, values, block=block):
        return values
    for band in range(scales.shape[0]):
        top, bottom = band * block[0], min(rows, (band + 1) * block[0])
        row = scales[band].repeat_interleave(block[1])[:columns]
        for start, end in row_tiles(bottom - top, columns):
            target = values[top + start : top + end]
            tile = float32_tile(target, scratch)
            decode_e4m3(codes[top + start : top + end], tile, scratch).mul_(row)
            if tile.dtype != target.dtype:
                target.copy_(tile)
    return values


def fp8_channel_decode(
    codes: torch.Tensor,
    scales: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """As :func:`fp8_block_decode`; ``scales`` [rows, 1], [rows] or one value for the whole tensor."""
    values, scratch = _output(codes, out), scratch or Scratch()
    rows, columns = codes.shape
    column = scales.to(torch.float32).reshape(-1, 1).contiguous()
    block = (rows if column.shape[0] == 1 else 1, columns)
    if codes.numel() and weight_formats.fp8_decode(codes, column, values, block=block):
        return values
    for top, bottom in row_tiles(rows, columns):
        target = values[top:bottom]
        tile = decode_e4m3(codes[top:bottom], float32_tile(target, scratch), scratch)
        tile.mul_(column if column.shape[0] == 1 else column[top:bottom])
        if tile.dtype != target.dtype:
            target.copy_(tile)
    return values


def mxfp8_decode(
    codes: torch.Tensor,
    scales: torch.Tensor,
    *,
    group: int = 32,
    out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """Float32 [rows, columns] of E4M3 with E8M0 scales uint8 [rows, columns / group]."""
    values, scratch = _output(codes, out), scratch or Scratch()
    columns = codes.shape[1]
    for top, bottom in row_tiles(*codes.shape):
        tile = decode_e4m3(codes[top:bottom], values[top:bottom], scratch)
        factors = e8m0_to_float32(scales[top:bottom])[..., None]
        tile.view(bottom - top, columns // group, group).mul_(factors)
    return values
