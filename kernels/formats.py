"""Number formats of the KV cache: explicit 8-bit float casts and N-bit integer fake quantization.

Every cast here saturates, keeps NaN and can be counted. torch's own cast is never trusted with a
value out of range: before 2.12 it turned |x| > 464 into NaN, since then it saturates, and e5m2
still overflows to infinity. A scale is a descale: stored = x / scale, read = stored * scale; it is
one number, or a tensor that broadcasts to the values. How scales are chosen is in scales.py.
"""

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch

__all__ = [
    "E4M3FN",
    "E5M2",
    "FLOAT8_FORMATS",
    "CastCounts",
    "Float8Format",
    "cast_float8",
    "count_cast",
    "decode_table",
    "fake_quantize_float8",
    "fake_quantize_int",
    "format_of",
    "read_float8",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Format:
    """An 8-bit float. ``max_finite`` and ``min_subnormal`` are exact values of the format."""

    name: str
    dtype: torch.dtype
    max_finite: float
    min_subnormal: float


E4M3FN = Float8Format(
    name="fp8_e4m3", dtype=torch.float8_e4m3fn, max_finite=448.0, min_subnormal=2.0**-9
)  # OCP OFP8: no infinities, one NaN a sign
E5M2 = Float8Format(name="fp8_e5m2", dtype=torch.float8_e5m2, max_finite=57344.0, min_subnormal=2.0**-16)

# By the name SGLang gives them in --kv-cache-dtype.
FLOAT8_FORMATS: dict[str, Float8Format] = {f.name: f for f in (E4M3FN, E5M2)}
_BY_DTYPE: dict[torch.dtype, Float8Format] = {f.dtype: f for f in FLOAT8_FORMATS.values()}

# amax / (amax / max_finite) may come out one float32 step above max_finite: rounding, not saturation.
_AT_THE_LIMIT = 1 + 2.0**-22

Scale: TypeAlias = float | torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CastCounts:
    """What a cast did to ``n`` values (NaN inputs are in ``nan`` alone)."""

    n: int
    saturated: int  # |x / scale| above the largest finite value, infinities included
    flushed_to_zero: int  # nonzero, became zero
    nan: int

    def __add__(self, other: "CastCounts") -> "CastCounts":
        return CastCounts(
            n=self.n + other.n,
            saturated=self.saturated + other.saturated,
            flushed_to_zero=self.flushed_to_zero + other.flushed_to_zero,
            nan=self.nan + other.nan,
        )


def format_of(dtype: torch.dtype) -> Float8Format | None:
    """The format of an fp8 dtype; None for any other dtype."""
    return _BY_DTYPE.get(dtype)


def _scaled_float32(x: torch.Tensor, scale: Scale) -> torch.Tensor:
    if x.dtype == torch.float64:
        raise TypeError("float64 would round twice on its way to 8 bits; cast it to float32 yourself")
    if isinstance(scale, torch.Tensor):
        if scale.dtype != torch.float32:
            raise TypeError(f"a tensor of scales must be float32, not {scale.dtype}")
        if not bool(((scale > 0.0) & (scale < float("inf"))).all()):
            raise ValueError("every scale must be positive and finite")
        return x.to(torch.float32) / scale
    if not scale > 0.0 or scale == float("inf"):
        raise ValueError(f"a scale must be positive and finite, not {scale}")
    # Divide: multiplying by 1 / scale rounds some values to the neighbouring code.
    return x.to(torch.float32) if scale == 1.0 else x.to(torch.float32) / scale


def cast_float8(x: torch.Tensor, fmt: Float8Format, *, scale: Scale = 1.0) -> torch.Tensor:
    """Cast ``x / scale`` to 8 bits: nearest-even, saturating, NaN kept.

    Parameters
    ----------
    x : Tensor
        float32, bfloat16 or float16, any shape.
    fmt : Float8Format
    scale : float or Tensor
        Descale, positive and finite; a tensor is float32 and broadcasts to ``x``.

    Returns
    -------
    Tensor
        Same shape, dtype ``fmt.dtype``.

    Raises
    ------
    TypeError
        For float64 input, or scales that are not float32.
    ValueError
        For a scale that is not positive and finite.
    """
    # clamp passes NaN through.
    return _scaled_float32(x, scale).clamp(-fmt.max_finite, fmt.max_finite).to(fmt.dtype)


def count_cast(x: torch.Tensor, fmt: Float8Format, *, scale: Scale = 1.0) -> CastCounts:
    """Count what :func:`cast_float8` does to ``x`` with the same arguments."""
    scaled = _scaled_float32(x, scale)
    stored = read_float8(cast_float8(x, fmt, scale=scale))
    return CastCounts(
        n=scaled.numel(),
        saturated=int((scaled.abs() > fmt.max_finite * _AT_THE_LIMIT).sum()),
        # x, not x / scale: the division itself can underflow.
        flushed_to_zero=int(((stored == 0) & (x != 0)).sum()),
        nan=int(scaled.isnan().sum()),
    )


@cache
def decode_table(dtype: torch.dtype) -> torch.Tensor:
    """The float32 values of all 256 codes of an fp8 dtype; shape [256]."""
    return torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float32)


def read_float8(codes: torch.Tensor, *, scale: Scale = 1.0) -> torch.Tensor:
    """Read fp8 values as ``float32(code) * scale``; exact up to that one multiplication.

    Goes through the table of 256 values: on CPU this is four times as fast as torch's scalar cast.
    """
    table = decode_table(codes.dtype)
    per_value = isinstance(scale, torch.Tensor)
    if not per_value and scale != 1.0:
        table = table * scale
    index = codes.contiguous().view(torch.uint8).flatten().to(torch.int32)
    values = table.index_select(0, index).view(codes.shape)
    return values * scale if per_value else values


def fake_quantize_float8(x: torch.Tensor, fmt: Float8Format, *, scale: Scale = 1.0) -> torch.Tensor:
    """What a reader gets back after an 8-bit write: ``read(cast(x / scale)) * scale`` in float32."""
    return read_float8(cast_float8(x, fmt, scale=scale), scale=scale)


def fake_quantize_int(x: torch.Tensor, *, bits: int, amax: torch.Tensor | float) -> torch.Tensor:
    """Symmetric signed integer quantization and back, in float32.

    The grid has ``2**bits - 1`` levels in [-amax, amax] (for 4 bits -7..7 times amax / 7; the
    lowest code is left unused so that the grid is symmetric). Values beyond amax clip; NaN stays
    NaN; where amax is 0 the result is 0.

    Parameters
    ----------
    x : Tensor
        Any floating dtype.
    bits : int
        2 to 8.
    amax : Tensor or float
        Largest magnitude, broadcastable to ``x``.
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"bits must be 2 to 8, not {bits}")
    q_max = 2 ** (bits - 1) - 1
    step = torch.as_tensor(amax, dtype=torch.float32) / q_max
    # A step of 1 where amax is 0 avoids 0 / 0; the clamp to +-0 below then gives 0.
    safe_step = torch.where(step > 0, step, torch.ones_like(step))
    limit = torch.where(step > 0, float(q_max), 0.0)
    levels = (x.to(torch.float32) / safe_step).round()
    return torch.minimum(torch.maximum(levels, -limit), limit) * safe_step
