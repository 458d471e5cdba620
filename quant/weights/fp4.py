"""E2M1 weights (values 0, .5, 1, 1.5, 2, 3, 4, 6): NVFP4 with two levels of scales, MXFP4 with powers of two.

Two codes a byte, the even column in the low nibble; bit 3 of a nibble is the sign. E2M1 has no NaN:
a group with a NaN gets a NaN scale.
"""

import numpy as np
import torch

from equipoise.kernels.formats import E4M3FN
from equipoise.quant.weights.fp8 import E8M0_BIAS, E8M0_NAN, decode_e4m3, e8m0_to_float32
from equipoise.quant.weights.int4 import pack_nibbles, unpack_nibbles
from equipoise.quant.weights.tiles import (
    EncodeCounts,
    Scratch,
    count_zeros,
    finite_amax,
    row_tiles,
    to_float32,
)

__all__ = [
    "E2M1_MAX",
    "e2m1_values",
    "mxfp4_decode",
    "mxfp4_encode",
    "nvfp4_decode",
    "nvfp4_encode",
    "nvfp4_global_scale",
]

E2M1_MAX = 6.0
CLIPPED_BY_HALF_A_STEP = 7.0  # the next value, were there one, would be 8
FLOAT32_MIN_NORMAL = 2.0**-126


def e2m1_values() -> torch.Tensor:
    """The float32 values of the 16 codes."""
    positive = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    return torch.cat([positive, -positive])


def _store(  # noqa: PLR0917
    tile: torch.Tensor,
    scaled: torch.Tensor,
    zeros: int,
    finite: bool,
    out: torch.Tensor,
    scratch: Scratch,
) -> EncodeCounts:
    """Round a tile of ``x / scale`` to E2M1, nearest-even, saturating, and pack it; overwrites ``scaled``."""
    shape = tuple(scaled.shape)
    nan = 0
    if not finite:
        nan = int(tile.isnan().sum())
        scaled.nan_to_num_(nan=0.0)
    sign = scratch.take("sign_bits", shape, torch.int32)
    torch.bitwise_right_shift(scaled.view(torch.int32), 28, out=sign).bitwise_and_(8)
    magnitude = scaled.abs_()
    saturated = 0
    if float(magnitude.max()) > CLIPPED_BY_HALF_A_STEP:
        saturated = int((magnitude > CLIPPED_BY_HALF_A_STEP).sum())
    magnitude.clamp_(max=E2M1_MAX)
    # Steps of .5, 1 and 2: the code is the least of three roundings, and ties go to the even code.
    code = torch.mul(magnitude, 2.0, out=scratch.take("code", shape, torch.float32)).round_()
    coarse = torch.round(magnitude, out=scratch.take("coarse", shape, torch.float32)).add_(2.0)
    torch.minimum(code, coarse, out=code)
    torch.minimum(code, magnitude.mul_(0.5).round_().add_(4.0), out=code)
    codes = scratch.take("codes", shape, torch.int8).copy_(code)
    flushed = codes.numel() - int(np.count_nonzero(codes.numpy())) - zeros - nan  # a NaN has code 0 here
    codes.bitwise_or_(scratch.take("signs", shape, torch.int8).copy_(sign))
    pack_nibbles(codes, out, scratch)
    return EncodeCounts(n=tile.numel(), saturated=saturated, flushed_to_zero=flushed, nan=nan)


def nvfp4_global_scale(amax: float) -> float:
    """``amax / (6 * 448)``: with it the largest block scale is E4M3's largest value. 1 for a zero tensor."""
    scale = np.float32(amax) / np.float32(E2M1_MAX * E4M3FN.max_finite)
    return float(max(scale, np.float32(FLOAT32_MIN_NORMAL))) if amax > 0 else 1.0


def nvfp4_encode(
    x: torch.Tensor,
    global_scale: float,
    *,
    group: int = 16,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> tuple[torch.Tensor, torch.Tensor, EncodeCounts]:
    """NVFP4: E2M1 with an E4M3 scale for 16 values, times one float32 scale for the tensor.

    Parameters
    ----------
    x : Tensor
        [rows, columns] bfloat16, float16 or float32; columns a multiple of ``group``.
    global_scale : float
        A descale, from :func:`nvfp4_global_scale`. Projections that a server merges (gate and up; q, k and v)
        must share one.

    Returns
    -------
    packed, scales, counts
        uint8 [rows, columns / 2] and float8_e4m3fn [rows, columns / group]. Codes are computed with the
        product of the two scales as stored.
    """
    rows, columns = x.shape
    packed = torch.empty(rows, columns // 2, dtype=torch.uint8) if out is None else out
    scales = (
        torch.empty(rows, columns // group, dtype=torch.float8_e4m3fn) if scale_out is None else scale_out
    )
    scratch = scratch or Scratch()
    counts = EncodeCounts()
    for top, bottom in row_tiles(rows, columns):
        tile = x[top:bottom]
        values = to_float32(tile, scratch)
        zeros = count_zeros(values, scratch)
        groups = values.view(bottom - top, columns // group, group)
        amax, finite = finite_amax(groups, scratch)
        wanted = (amax / E2M1_MAX / global_scale).clamp_(E4M3FN.min_subnormal, E4M3FN.max_finite)
        stored = torch.where(amax > 0, wanted, 1.0).to(torch.float8_e4m3fn)
        scale = decode_e4m3(stored, torch.empty(stored.shape, dtype=torch.float32), scratch)
        groups.div_((scale * global_scale)[..., None])
        if not finite:
            stored.view(torch.uint8)[groups.isnan().any(-1)] = 0x7F
        scales[top:bottom] = stored
        counts += _store(tile, values, zeros, finite, packed[top:bottom], scratch)
    return packed, scales, counts


def mxfp4_encode(
    x: torch.Tensor,
    *,
    group: int = 32,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> tuple[torch.Tensor, torch.Tensor, EncodeCounts]:
    """MXFP4: E2M1 with one E8M0 scale for 32 values of a row.

    The scale is 2**(floor(log2 amax) - 2), a power higher where amax / scale would be 7 or more
    (compressed-tensors' rule; 0.15 dB better than the plain floor on Gaussian weights).

    Returns
    -------
    packed, scales, counts
        uint8 [rows, columns / 2] and uint8 [rows, columns / group]: exponent + 127.
    """
    rows, columns = x.shape
    packed = torch.empty(rows, columns // 2, dtype=torch.uint8) if out is None else out
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
        power = torch.where(mantissa >= 0.875, exponent - 2, exponent - 3)
        biased = torch.where(amax > 0, power + E8M0_BIAS, E8M0_BIAS).clamp_(0, E8M0_NAN - 1).to(torch.uint8)
        groups.div_(e8m0_to_float32(biased)[..., None])
        if not finite:
            biased.masked_fill_(groups.isnan().any(-1), E8M0_NAN)
        scales[top:bottom] = biased
        counts += _store(tile, values, zeros, finite, packed[top:bottom], scratch)
    return packed, scales, counts


def _decode(packed: torch.Tensor, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """E2M1 codes to float32 ``out``, not yet scaled.

    As with E4M3: shifted into place a code is a bfloat16 with a bias off by 126.
    """
    codes = unpack_nibbles(packed, scratch)
    shape = tuple(out.shape)
    bits = scratch.take("decoded_bits", shape, torch.int16).copy_(codes)
    sign = torch.bitwise_left_shift(bits, 12, out=scratch.take("sign", shape, torch.int16)).bitwise_and_(
        -0x8000
    )
    bits.bitwise_and_(7).bitwise_left_shift_(6).bitwise_or_(sign)
    return out.copy_(bits.view(torch.bfloat16)).mul_(2.0**126)


def nvfp4_decode(
    packed: torch.Tensor,
    scales: torch.Tensor,
    global_scale: float,
    *,
    out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """Float32 [rows, columns]: ``code * (scale * global_scale)``."""
    scratch = scratch or Scratch()
    rows, columns, groups = packed.shape[0], packed.shape[1] * 2, scales.shape[1]
    values = torch.empty(rows, columns, dtype=torch.float32) if out is None else out
    for top, bottom in row_tiles(rows, columns):
        tile = _decode(packed[top:bottom], values[top:bottom], scratch)
        stored = scales[top:bottom]
        factors = decode_e4m3(stored, torch.empty(stored.shape, dtype=torch.float32), scratch).mul_(
            global_scale
        )
        tile.view(bottom - top, groups, columns // groups).mul_(factors[..., None])
    return values


def mxfp4_decode(
    packed: torch.Tensor,
    scales: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """Float32 [rows, columns]: ``code * 2**(scale - 127)``."""
    scratch = scratch or Scratch()
    rows, columns, groups = packed.shape[0], packed.shape[1] * 2, scales.shape[1]
    values = torch.empty(rows, columns, dtype=torch.float32) if out is None else out
    for top, bottom in row_tiles(rows, columns):
        tile = _decode(packed[top:bottom], values[top:bottom], scratch)
        factors = e8m0_to_float32(scales[top:bottom])[..., None]
        tile.view(bottom - top, groups, columns // groups).mul_(factors)
    return values
