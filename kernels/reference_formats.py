"""Rounding to 8-bit floats in float64: slow, readable, and rounded once.

Written from the formats' definition (OCP 8-bit Floating Point Specification, OFP8, revision 1.0):
a normal number has ``mantissa_bits`` bits behind its leading one, below the smallest normal the
spacing stays that of the smallest normal. torch's casts of float64 go through float32 and round
twice; this one does not.
"""

import torch

from equipoise.kernels.formats import E4M3FN, E5M2, Float8Format

__all__ = ["nearest_float8", "sqnr_db"]

# Mantissa bits and the exponent of the smallest normal number.
_SHAPES = {E4M3FN.name: (3, -6), E5M2.name: (2, -14)}


def nearest_float8(x: torch.Tensor, fmt: Float8Format) -> torch.Tensor:
    """The nearest value of the format, ties to even, saturating, NaN kept; float64, same shape."""
    mantissa_bits, smallest_exponent = _SHAPES[fmt.name]
    x = x.to(torch.float64)
    _, exponent = torch.frexp(x)  # |x| = m * 2**exponent, m in [.5, 1)
    leading = (exponent - 1).clamp_min(smallest_exponent)
    spacing = torch.ldexp(torch.ones_like(x), leading - mantissa_bits)  # of the format around x
    rounded = (x / spacing).round() * spacing  # a power of two: exact; round() takes ties to even
    return torch.where(x.isinf(), x, rounded).clamp(-fmt.max_finite, fmt.max_finite)


def sqnr_db(exact: torch.Tensor, approximate: torch.Tensor) -> float:
    """Signal to quantization noise in dB, over all elements; infinite where they are equal."""
    exact, approximate = exact.to(torch.float64), approximate.to(torch.float64)
    noise = (exact - approximate).square().sum()
    return float(10.0 * torch.log10(exact.square().sum() / noise))
