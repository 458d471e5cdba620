"""Scales and float64 rounding against torch where torch is right, and where it is not."""

import math

import pytest
import torch

from equipoise.kernels.formats import E4M3FN, E5M2, FLOAT8_FORMATS, cast_float8, count_cast, read_float8
from equipoise.kernels.reference_formats import nearest_float8, sqnr_db
from equipoise.kernels.scales import (
    amax_scale,
    finite_amax,
    power_of_two_scale,
    read_as_e8m0,
    round_up_to_power_of_two,
)

FORMATS = list(FLOAT8_FORMATS.values())


def spread(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator) * 2 ** torch.empty(n).uniform_(-20, 20, generator=generator)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_the_float64_reference_agrees_with_the_cast_on_every_float32(fmt):
    # A float32 is rounded once either way.
    x = torch.cat([spread(20000), torch.tensor([0.0, math.inf, -math.inf, math.nan, 2.0**-10, 3 * 2.0**-10])])
    got, expected = read_float8(cast_float8(x, fmt)).double(), nearest_float8(x, fmt)
    torch.testing.assert_close(got, expected, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize(
    ("x", "once", "twice"),
    [
        (1.0625 + 2.0**-40, 1.125, 1.0),  # just above the midpoint of 1 and 1.125; float32 says: the midpoint
        (1.1875 - 2.0**-40, 1.125, 1.25),
        (-(17 + 2.0**-30), -18.0, -16.0),
        (2.0**-10 + 2.0**-50, 2.0**-9, 0.0),  # just above half the smallest subnormal
    ],
)
def test_float64_through_float32_rounds_twice_and_the_reference_does_not(x, once, twice):
    value = torch.tensor([x], dtype=torch.float64)
    assert nearest_float8(value, E4M3FN).item() == once
    assert read_float8(cast_float8(value.float(), E4M3FN)).item() == twice
    assert value.to(torch.float8_e4m3fn).float().item() == twice  # so does torch's own cast


def test_torchs_own_cast_is_not_one_to_rely_on_out_of_range():
    """What it does with 1e4 and infinity depends on its version and on the format; ours does not."""
    x = torch.tensor([1e6, math.inf])
    assert x.to(torch.float8_e5m2).float().tolist() == [math.inf, math.inf]
    assert read_float8(cast_float8(x, E5M2)).tolist() == [57344.0, 57344.0]
    assert read_float8(cast_float8(x, E4M3FN)).tolist() == [448.0, 448.0]


def test_scales_that_broadcast_do_to_each_group_what_one_scale_does():
    x = torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(1))
    scale = torch.tensor([0.5, 0.01, 2.0, 0.003])[None, :, None]
    codes = cast_float8(x, E4M3FN, scale=scale)
    counts = count_cast(x, E4M3FN, scale=scale)
    total = None
    for h, s in enumerate(scale.flatten().tolist()):
        own = cast_float8(x[:, h], E4M3FN, scale=s)
        assert torch.equal(codes[:, h].view(torch.uint8), own.view(torch.uint8))
        assert torch.equal(read_float8(codes, scale=scale)[:, h], read_float8(own, scale=s))
        one = count_cast(x[:, h], E4M3FN, scale=s)
        total = one if total is None else total + one
    assert counts == total
    assert counts.saturated > 0


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_one_impossible_scale_among_many_is_refused(bad):
    with pytest.raises(ValueError, match="every scale must be positive and finite"):
        cast_float8(torch.ones(2), E4M3FN, scale=torch.tensor([1.0, bad]))
    with pytest.raises(TypeError, match="must be float32"):
        cast_float8(torch.ones(2), E4M3FN, scale=torch.ones(2, dtype=torch.bfloat16))


def test_amax_is_over_finite_values_and_a_group_without_any_has_a_scale():
    x = torch.tensor(
        [[1.0, -3.5, 2.0], [math.inf, 7.0, math.nan], [math.nan, -math.inf, 0.0], [0.0, 0.0, 0.0]]
    )
    assert finite_amax(x).tolist() == [3.5, 7.0, 0.0, 0.0]
    assert amax_scale(x, E4M3FN)[:2].tolist() == [3.5 / 448, 7.0 / 448]
    assert (amax_scale(x, E4M3FN)[2:] > 0).all()
    assert amax_scale(torch.tensor([[1e-44]]), E4M3FN) > 0  # amax / 448 underflows


def test_rounding_up_to_a_power_of_two_is_exact_where_log2_is_not():
    exact = 2.0 ** torch.arange(-100.0, 100.0)
    assert torch.equal(round_up_to_power_of_two(exact), exact)
    above = torch.nextafter(exact, torch.tensor(math.inf))
    assert torch.equal(round_up_to_power_of_two(above), 2 * exact)
    below = torch.nextafter(exact, torch.tensor(0.0))
    assert torch.equal(round_up_to_power_of_two(below), exact)
    by_logarithm = torch.exp2(above.log2().ceil())
    assert not torch.equal(by_logarithm, 2 * exact)


def test_power_of_two_scales_never_clip_and_have_the_floor_of_flashmla():
    x = (
        torch.randn(500, 128, generator=torch.Generator().manual_seed(0))
        * torch.logspace(-6, 6, 500)[:, None]
    )
    scale = power_of_two_scale(x, E4M3FN)
    mantissa, _ = torch.frexp(scale)
    assert (mantissa == 0.5).all()
    assert count_cast(x, E4M3FN, scale=scale.unsqueeze(-1)).saturated == 0
    assert scale.min() == 2.0**-13  # 1e-4, rounded up
    # The published expression, where the logarithm's rounding does not matter.
    published = torch.pow(2, torch.clamp_min(x.abs().amax(-1) / 448.0, 1e-4).log2().ceil())
    assert torch.equal(scale, published)


def test_reading_a_scale_as_e8m0_keeps_powers_of_two_and_rounds_the_rest_to_the_nearest():
    exact = 2.0 ** torch.arange(-100.0, 100.0)
    assert torch.equal(read_as_e8m0(exact), exact)
    x = spread(5000).abs()
    assert torch.equal(read_as_e8m0(x), x.to(torch.float8_e8m0fnu).float())
    assert read_as_e8m0(torch.tensor([1.49, 1.51])).tolist() == [1.0, 2.0]


def test_sqnr_is_that_of_its_definition():
    x = torch.tensor([3.0, -4.0])
    assert sqnr_db(x, x + torch.tensor([0.3, 0.4])) == pytest.approx(20.0, abs=1e-5)
    assert sqnr_db(x, x) == math.inf
