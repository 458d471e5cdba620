"""How the scale of a group of values is chosen, and what a reader of another scale format makes of it.

A scale is a descale (value = code * scale). amax is taken over finite values, so that one infinity
saturates alone instead of pulling the whole group to zero, and a NaN stays one NaN.
"""

import torch

from equipoise.kernels.formats import Float8Format

__all__ = [
    "E8M0_FLOOR",
    "amax_scale",
    "finite_amax",
    "power_of_two_scale",
    "read_as_e8m0",
    "round_up_to_power_of_two",
]

# The smallest normal float32: amax / max_finite of a tiny group may underflow to 0, and a group of
# zeros has none. Either divides by this and reads back exactly 0, or the values that are left.
_SMALLEST_SCALE = 2.0**-126
E8M0_FLOOR = 1e-4  # of FlashMLA's quantizer (tests/quant.py, "FP8_AMAX_MARGIN"); becomes 2**-13


def finite_amax(x: torch.Tensor) -> torch.Tensor:
    """Largest finite magnitude over the last dimension, float32 [...]; 0 where nothing is finite."""
    magnitude = x.to(torch.float32).abs()
    return torch.where(magnitude < float("inf"), magnitude, 0.0).amax(dim=-1)  # NaN compares false


def amax_scale(x: torch.Tensor, fmt: Float8Format) -> torch.Tensor:
    """amax / max_finite over the last dimension, float32 [...], never 0: a group of zeros reads zeros."""
    return (finite_amax(x) / fmt.max_finite).clamp_min(_SMALLEST_SCALE)


def power_of_two_scale(x: torch.Tensor, fmt: Float8Format, *, floor: float = E8M0_FLOOR) -> torch.Tensor:
    """amax / max_finite, at least ``floor``, rounded up to a power of two: what E8M0 can hold.

    Rounding up leaves the largest value representable. The floor costs groups with an amax below
    448 * 2**-13 = 0.055 some of their precision.
    """
    return round_up_to_power_of_two((finite_amax(x) / fmt.max_finite).clamp_min(floor))


def round_up_to_power_of_two(x: torch.Tensor) -> torch.Tensor:
    """The smallest power of two >= x, for positive normal float32; exact, unlike log2 and ceil."""
    mantissa, exponent = torch.frexp(x.to(torch.float32))  # x = mantissa * 2**exponent, mantissa in [.5, 1)
    return torch.ldexp(torch.ones_like(mantissa), exponent - (mantissa == 0.5).to(exponent.dtype))


def read_as_e8m0(scale: torch.Tensor) -> torch.Tensor:
    """What hardware with 8-bit exponent scales makes of a float32 scale: the nearest power of two.

    A power of two is read exactly; any other value is off by up to a factor of 1.5. Ties go up.
    """
    mantissa, exponent = torch.frexp(scale.to(torch.float32))
    return torch.ldexp(torch.ones_like(mantissa), exponent - (mantissa < 0.75).to(exponent.dtype))
