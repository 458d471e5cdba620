"""Scales and figures from a histogram are those of the values themselves, kept whole."""

import math

import numpy as np
import pytest
import torch

from equipoise.kernels.formats import E4M3FN, count_cast, fake_quantize_float8
from equipoise.kernels.reference_formats import sqnr_db
from equipoise.quant.calibration.choose import amax_scales, choose_scales, mse_scale
from equipoise.quant.calibration.fidelity import compare_stored, stored_at_scale
from equipoise.quant.calibration.histogram import MAGNITUDES, MagnitudeHistogram


def values(tokens: int, groups: int = 1, dim: int = 64, *, rms: float = 1.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(tokens, groups, dim, generator=generator) * rms).to(torch.bfloat16).float()


def histogram(*batches: torch.Tensor) -> MagnitudeHistogram:
    found = MagnitudeHistogram(batches[0].shape[1])
    for x in batches:
        found.add(x)
    return found


def test_every_finite_magnitude_of_bfloat16_has_its_counter() -> None:
    bits = torch.arange(0x8000, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    assert torch.equal(MAGNITUDES, bits[bits.isfinite()])
    assert (MAGNITUDES.diff() > 0).all()
    found = histogram(MAGNITUDES.view(1, 1, -1))
    assert (found.counts == 1).all()


def test_batches_and_groups_are_counted_like_the_values_together() -> None:
    batches = [values(7, 3, rms=r, seed=i) for i, r in enumerate((0.1, 20.0, 1.0))]
    whole = torch.cat(batches)
    found = histogram(*batches)
    for group in range(3):
        expected = torch.tensor([(whole[:, group].abs() == m).sum() for m in MAGNITUDES[:100]])
        assert torch.equal(found.counts[group, :100], expected)
        assert found.amax()[group] == whole[:, group].abs().max().item()
    assert found.n.tolist() == [17 * 64 + 4 * 64] * 3
    assert torch.equal(found.pooled().counts[0], found.counts.sum(0))


def test_amax_is_the_true_largest_value_and_not_a_mean_over_batches() -> None:
    quiet, loud = values(100, rms=0.01), values(100, rms=0.01, seed=1)
    loud[50, 0, 3] = 96.0
    (scale,) = amax_scales(histogram(*([quiet] * 99), loud))
    assert scale == pytest.approx(96 / 448, rel=1e-6)
    running_mean = (99 * quiet.abs().max() + 96.0) / 100 / 448
    assert scale > 50 * running_mean


@pytest.mark.parametrize("p", [50.0, 90.0, 99.0, 99.9, 99.99, 100.0])
def test_percentiles_are_those_of_all_values(p: float) -> None:
    x = values(300, 2, rms=3.0)
    found = histogram(x[:100], x[100:]).percentiles([p])
    for group in range(2):
        expected = np.percentile(x[:, group].abs().numpy(), p, method="inverted_cdf")
        assert found[group] == [expected]


@pytest.mark.parametrize("rms", [0.002, 0.01, 1.0, 150.0, 3000.0])
@pytest.mark.parametrize("scale", [1.0, 0.003, 7.3])
def test_figures_at_a_scale_are_those_of_casting_every_value(rms: float, scale: float) -> None:
    x = values(500, rms=rms)
    got = stored_at_scale(histogram(x), 0, scale)
    expected = compare_stored(
        x, fake_quantize_float8(x, E4M3FN, scale=scale), count_cast(x, E4M3FN, scale=scale)
    )
    for name in ("n", "saturated", "flushed_to_zero"):
        assert getattr(got, name) == getattr(expected, name), name
    for name in ("signal", "noise", "product", "stored"):
        assert getattr(got, name) == pytest.approx(getattr(expected, name), rel=1e-12), name
    assert got.sqnr_db == pytest.approx(float(sqnr_db(x, fake_quantize_float8(x, E4M3FN, scale=scale))))
    cosine = torch.nn.functional.cosine_similarity(
        x.double().flatten(), fake_quantize_float8(x, E4M3FN, scale=scale).double().flatten(), dim=0
    )
    assert got.cosine == pytest.approx(cosine.item(), abs=1e-12)


# Published for Gaussian values: flat between RMS .1 and 10, and what scale 1 costs outside.
@pytest.mark.parametrize(
    ("rms", "db"), [(0.1, 31.5), (1.0, 31.5), (10.0, 31.5), (0.01, 25.0), (0.002, 11.0), (150.0, 29.5)]
)
def test_sqnr_at_scale_one_is_the_published_one(rms: float, db: float) -> None:
    assert stored_at_scale(histogram(values(4000, rms=rms)), 0, 1.0).sqnr_db == pytest.approx(db, abs=0.5)


@pytest.mark.parametrize("rms", [0.002, 0.01, 150.0, 3000.0])
def test_a_calibrated_scale_brings_back_what_scale_one_loses(rms: float) -> None:
    found = histogram(values(4000, rms=rms))
    assert stored_at_scale(found, 0, mse_scale(found, 0)).sqnr_db > 31.4
    assert stored_at_scale(found, 0, amax_scales(found)[0]).sqnr_db > 31.2


def test_clipping_at_the_999th_permille_costs_what_is_published() -> None:
    found = histogram(values(4000, rms=1.0))
    (p999,) = choose_scales("percentile", found, histogram(values(1)), percentile=99.9)
    loss = stored_at_scale(found, 0, amax_scales(found)[0]).sqnr_db - stored_at_scale(found, 0, p999).sqnr_db
    assert loss == pytest.approx(0.7, abs=0.3)
    # Values equal to the percentile (BF16 has few near it) are stored, those above it saturate.
    assert 0.0005 < stored_at_scale(found, 0, p999).saturated_share < 0.001


def test_scales_are_never_clamped_to_one_from_below() -> None:
    found = histogram(values(1000, rms=1e-4))
    assert amax_scales(found)[0] < 2e-6
    assert mse_scale(found, 0) < 1e-5
    clamped = stored_at_scale(found, 0, 1.0)
    assert clamped.flushed_share > 0.99
    assert stored_at_scale(found, 0, amax_scales(found)[0]).sqnr_db > 31.0


@pytest.mark.parametrize("rms", [0.002, 0.3, 1.0, 7.0, 500.0])
def test_the_least_error_scale_is_no_worse_than_one_nor_than_amax(rms: float) -> None:
    x = values(2000, rms=rms, seed=5)
    x[0, 0, 0] = 40 * rms  # an outlier that is worth clipping, or not
    found = histogram(x)
    best = stored_at_scale(found, 0, mse_scale(found, 0)).noise
    assert best <= stored_at_scale(found, 0, 1.0).noise * (1 + 1e-5)
    assert best <= stored_at_scale(found, 0, amax_scales(found)[0]).noise * (1 + 1e-5)


def test_values_that_scale_one_stores_exactly_keep_it() -> None:
    exact = torch.tensor([0.5, 1.0, 1.125, 448.0, 0.0, -2.0]).view(1, 1, -1)
    assert mse_scale(histogram(exact), 0) == 1.0


def test_few_sinks_are_not_clipped_for_being_few() -> None:
    rest, sinks = values(10_000), values(4, seed=1)
    sinks[0, 0, :8] = 300.0
    together = histogram(rest, sinks)
    (pooled,) = choose_scales("percentile", together, MagnitudeHistogram(1), percentile=99.9)
    (apart,) = choose_scales("percentile", histogram(rest), histogram(sinks), percentile=99.9)
    assert pooled < 5 / 448  # all sinks saturate
    assert apart == pytest.approx(300 / 448, rel=1e-6)


def test_rows_of_zeros_are_counted_apart() -> None:
    x = values(100, 2)
    padded = torch.cat([x, torch.zeros(900, 2, 64)])
    padded[950, 1, 0] = 5.0  # a row with one value is no row of zeros
    found, alone = histogram(padded), histogram(x)
    assert (found.rows, found.zero_rows) == (2000, 1799)
    assert found.percentiles([50.0])[0] == alone.percentiles([50.0])[0]
    assert found.amax()[0] == alone.amax()[0]
    nothing = histogram(torch.zeros(10, 1, 64))
    assert amax_scales(nothing) == [1.0] and mse_scale(nothing, 0) == 1.0
    assert choose_scales("percentile", nothing, nothing, percentile=99.0) == [1.0]
    assert math.isnan(nothing.percentiles([50.0])[0][0])
    assert math.isnan(stored_at_scale(nothing, 0, 1.0).sqnr_db)


def test_infinities_and_nan_are_counted_and_in_no_figure() -> None:
    x = values(10)
    clean = x.clone()
    x[0, 0, 0], x[1, 0, 0] = math.inf, math.nan
    clean[0, 0, 0] = clean[1, 0, 0] = 0.0
    found = histogram(x)
    assert found.non_finite == 2
    assert found.amax() == histogram(clean).amax()
