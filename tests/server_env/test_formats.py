"""Casts and fake quantization against tables written out from the formats' definitions."""

import itertools
import math

import pytest
import torch

from equipoise.kernels.formats import (
    E4M3FN,
    E5M2,
    FLOAT8_FORMATS,
    cast_float8,
    count_cast,
    decode_table,
    fake_quantize_float8,
    fake_quantize_int,
    read_float8,
)

FORMATS = list(FLOAT8_FORMATS.values())
BITS = {"fp8_e4m3": (4, 3, 7), "fp8_e5m2": (5, 2, 15)}  # exponent bits, mantissa bits, bias


def value_of(code: int, name: str) -> float:
    """The value of a code, from the OCP OFP8 definition and not from torch."""
    exponent_bits, mantissa_bits, bias = BITS[name]
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    top = (1 << exponent_bits) - 1
    if name == "fp8_e4m3" and exponent == top and mantissa == 7:
        return math.nan
    if name == "fp8_e5m2" and exponent == top:
        return sign * math.inf if mantissa == 0 else math.nan
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


def nearest_even(x: float, name: str) -> float:
    """Brute force: the nearest finite value, ties to the even code, saturating."""
    finite = {c: value_of(c, name) for c in range(128) if math.isfinite(value_of(c, name))}
    magnitude = min(abs(x), max(finite.values()))
    code = min(finite, key=lambda c: (abs(finite[c] - magnitude), c & 1))
    return math.copysign(finite[code], x)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_all_256_codes_decode_to_their_definition(fmt):
    table = decode_table(fmt.dtype)
    expected = torch.tensor([value_of(c, fmt.name) for c in range(256)])
    assert torch.equal(table.isnan(), expected.isnan())
    assert torch.equal(table.nan_to_num(nan=0.0), expected.nan_to_num(nan=0.0))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_all_finite_codes_survive_a_round_trip(fmt):
    codes = torch.arange(256, dtype=torch.uint8)
    values = decode_table(fmt.dtype)
    finite = values.isfinite()
    assert torch.equal(cast_float8(values, fmt).view(torch.uint8)[finite], codes[finite])
    assert torch.equal(read_float8(codes.view(fmt.dtype))[finite], values[finite])


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_cast_rounds_to_nearest_even_over_the_whole_range(fmt):
    values = sorted(v for c in range(128) if math.isfinite(v := value_of(c, fmt.name)))
    midpoints = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    around = [math.nextafter(m, side) for m in midpoints for side in (0.0, math.inf)]
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(2000, generator=generator) * 10 ** torch.empty(2000).uniform_(
        -5, 5, generator=generator
    )
    x = torch.cat([torch.tensor(midpoints + around), torch.tensor(values), spread])
    x = torch.cat([x, -x])
    got = read_float8(cast_float8(x, fmt))
    assert got.tolist() == [nearest_even(v, fmt.name) for v in x.tolist()]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_cast_saturates_instead_of_overflowing_and_keeps_nan(fmt):
    x = torch.tensor([fmt.max_finite * 1.0625, 1e30, math.inf, -math.inf, -1e38, math.nan])
    got = read_float8(cast_float8(x, fmt))
    assert got[:5].tolist() == [fmt.max_finite] * 3 + [-fmt.max_finite] * 2
    assert got[5].isnan()


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_half_the_smallest_subnormal_becomes_zero_and_anything_above_does_not(fmt):
    half = torch.tensor(fmt.min_subnormal / 2)
    above = torch.nextafter(half, torch.tensor(1.0))
    assert read_float8(cast_float8(torch.stack([half, above]), fmt)).tolist() == [0.0, fmt.min_subnormal]


def test_counts_name_each_fate_of_a_value():
    x = torch.tensor([1.0, 449.0, -math.inf, 2.0**-10, -(2.0**-11), 0.0, math.nan, 448.0])
    counts = count_cast(x, E4M3FN)
    assert (counts.n, counts.saturated, counts.flushed_to_zero, counts.nan) == (8, 2, 2, 1)


def test_a_scale_divides_on_write_and_multiplies_on_read():
    x = torch.tensor([0.5, -3.0, 100.0])
    stored = cast_float8(x, E4M3FN, scale=0.125)
    assert read_float8(stored).tolist() == [4.0, -24.0, 448.0]  # 800 saturates
    assert read_float8(stored, scale=0.125).tolist() == [0.5, -3.0, 56.0]
    assert fake_quantize_float8(x, E4M3FN, scale=0.125).tolist() == [0.5, -3.0, 56.0]


def test_cast_divides_by_the_scale_rather_than_multiplying_by_its_reciprocal():
    generator = torch.Generator().manual_seed(1)
    scale = 0.0317
    # Midpoints between codes, times the scale: where one rounding more changes the code.
    table = decode_table(E4M3FN.dtype)[8:126]
    x = ((table[:-1] + table[1:]) / 2 * scale).repeat(50)
    x = x * (1 + torch.randint(-2, 3, x.shape, generator=generator) * 2.0**-24)
    reciprocal = cast_float8(x * (1 / torch.tensor(scale)), E4M3FN)
    exact = cast_float8(x.double().div(torch.tensor(scale).double()).float(), E4M3FN)
    ours = cast_float8(x, E4M3FN, scale=scale)
    assert not torch.equal(reciprocal.view(torch.uint8), exact.view(torch.uint8))
    assert torch.equal(ours.view(torch.uint8), exact.view(torch.uint8))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_scale_is_refused(scale):
    with pytest.raises(ValueError, match="positive and finite"):
        cast_float8(torch.ones(1), E5M2, scale=scale)


def test_float64_is_refused_because_it_would_round_twice():
    with pytest.raises(TypeError, match="round twice"):
        cast_float8(torch.ones(1, dtype=torch.float64), E4M3FN)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_inputs_are_cast_by_value(dtype):
    x = torch.tensor([0.3, -5.5, 300.0], dtype=dtype)
    assert torch.equal(
        cast_float8(x, E4M3FN).view(torch.uint8), cast_float8(x.float(), E4M3FN).view(torch.uint8)
    )


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_integer_grid_has_all_its_symmetric_levels_and_no_other(bits):
    q_max = 2 ** (bits - 1) - 1
    amax = 3.5
    x = torch.linspace(-2 * amax, 2 * amax, 20001)
    got = fake_quantize_int(x, bits=bits, amax=amax)
    levels = torch.arange(-q_max, q_max + 1) * torch.tensor(amax / q_max)
    assert torch.equal(got.unique(), levels)
    inside = x.abs() <= amax
    assert (got - x)[inside].abs().max() <= amax / q_max / 2 * (1 + 1e-5)
    assert torch.equal(got[x > amax].unique(), levels[-1:])


def test_integer_quantization_keeps_nan_and_takes_zero_amax_and_amax_per_row():
    x = torch.tensor([[math.nan, 1.0], [5.0, -5.0], [0.0, 0.0]])
    got = fake_quantize_int(x, bits=4, amax=torch.tensor([[7.0], [0.0], [0.0]]))
    assert got[0, 0].isnan()
    assert got[0, 1] == 1.0
    assert got[1:].abs().sum() == 0.0


@pytest.mark.parametrize("bits", [1, 9])
def test_bit_widths_outside_2_to_8_are_refused(bits):
    with pytest.raises(ValueError, match="2 to 8"):
        fake_quantize_int(torch.ones(1), bits=bits, amax=1.0)
