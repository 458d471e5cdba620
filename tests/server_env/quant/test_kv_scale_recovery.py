"""A calibrated scale recovers what scale 1 loses, and harms nothing where scale 1 is right.

The model is the embedded GLM-shaped one. Its K and V, multiplied by powers of two that change no
logit, leave E4M3's range. Seen, in nats of KL from the unquantized cache on prompts that were not
XX"""

import pytest
import torch
from calibration_cases import MODELS, rescale, sequences

from equipoise.quant.calibration.cache import bf16_stores, last_hidden_states, store_of
from equipoise.quant.calibration.calibrate import calibrate
from equipoise.quant.calibration.divergence import divergences
from equipoise.quant.calibration.model import CalibrationModel, load_model
from equipoise.quant.calibration.report import CalibrationReport
from equipoise.quant.calibration.settings import METHODS, Settings
from equipoise.quant.layouts import make_layout

FACTORS = [(512.0, 2.0**-12), (256.0, 2.0**-12), (512.0, 2.0**-13)]
DATA = sequences(1)


@pytest.fixture(scope="module")
def plain() -> CalibrationModel:
    return load_model(MODELS / "glm_tiny")


@pytest.fixture(scope="module")
def rescaled(tmp_path_factory: pytest.TempPathFactory) -> CalibrationModel:
    return load_model(rescale(MODELS / "glm_tiny", tmp_path_factory.mktemp("m") / "rescaled", FACTORS))


def calibrated(model: CalibrationModel, **settings: object) -> CalibrationReport:
    return calibrate(model, DATA, Settings(kl_prompts=6, **settings))


@torch.no_grad()
def test_rescaling_changes_no_answer(plain: CalibrationModel, rescaled: CalibrationModel) -> None:
    for ids in DATA.sequences[:4]:
        a, b = (last_hidden_states(m, ids, bf16_stores(m)) for m in (plain, rescaled))
        assert (a - b).abs().max() < 1e-5 * a.abs().max()


@pytest.mark.parametrize("method", METHODS)
def test_calibration_recovers_a_model_that_scale_one_breaks(
    method: str, plain: CalibrationModel, rescaled: CalibrationModel
) -> None:
    broken, sound = calibrated(rescaled, method=method), calibrated(plain, method=method)
    print(
        f"{method}: rescaled {broken.at_unit_scale.kl_nats:.3f} at scale 1, {broken.calibrated.kl_nats:.4f} "
        f"calibrated; plain {sound.at_unit_scale.kl_nats:.4f} at scale 1, {sound.calibrated.kl_nats:.4f}"
    )
    # FP8 is as good on the rescaled model as it ever was, and calibrating the sound one does no harm.
    assert broken.at_unit_scale.kl_nats > 5.0
    assert broken.calibrated.kl_nats == pytest.approx(sound.calibrated.kl_nats, rel=1e-3)
    assert sound.calibrated.kl_nats < 1.25 * sound.at_unit_scale.kl_nats
    for layer, same, (k, v) in zip(broken.layers, sound.layers, FACTORS, strict=True):
        assert layer.parts["k"].rest.at_unit_scale.saturated_share > 0.09
        assert layer.parts["v"].rest.at_unit_scale.flushed_share > 0.99
        assert layer.attention_error < 0.07 < 0.99 < layer.attention_error_at_unit_scale
        for part, factor in (("k", k), ("v", v)):
            found, plain_part = layer.parts[part], same.parts[part]
            # A power of two moves the best scale, and nothing else.
            assert found.scales[0] == pytest.approx(factor * plain_part.scales[0], rel=1e-4)
            assert found.rest.stored.sqnr_db > 30.9
            assert plain_part.rest.stored.sqnr_db > plain_part.rest.at_unit_scale.sqnr_db - 0.6


@torch.no_grad()
def test_scales_hold_on_prompts_that_were_not_calibrated_on(rescaled: CalibrationModel) -> None:
    report = calibrated(rescaled, method="amax")
    stores = [
        store_of(
            make_layout(
                "fp8_flat",
                rescaled.shape,
                first_scales=layer.parts["k"].scales,
                second_scales=layer.parts["v"].scales,
            )
        )
        for layer in report.layers
    ]
    unit = store_of(make_layout("fp8_flat", rescaled.shape))
    fresh, at_one = divergences(rescaled, sequences(1, first=1), [stores, [unit] * 3])
    assert fresh.mean_nats < 1.5 * report.calibrated.kl_nats
    assert at_one.mean_nats > 50 * fresh.mean_nats


@pytest.mark.parametrize("granularity", ["head", "token-tile"])
def test_finer_scales_recover_it_as_well(granularity: str, rescaled: CalibrationModel) -> None:
    report = calibrated(rescaled, granularity=granularity)
    assert report.calibrated.kl_nats < 0.05 * report.at_unit_scale.kl_nats
    for layer in report.layers:
        for part in layer.parts.values():
            assert len(part.scales) == (2 if granularity == "head" else 0)
            assert part.rest.stored.sqnr_db > 31.0


def test_a_plan_keeps_the_layer_that_no_clipping_spares(plain: CalibrationModel) -> None:
    """Every scale is the 80th percentile, so a fifth of the values clip in every layer."""
    settings = {"method": "percentile", "percentile": 80.0}
    clipped = calibrated(plain, **settings, kl_budget_nats=1e9)
    assert clipped.plan is not None
    assert clipped.plan.bf16_layers == ()
    budget = 0.5 * clipped.calibrated.kl_nats
    again = calibrated(plain, **settings, kl_budget_nats=budget)
    plan = again.plan
    assert plan is not None
    assert again.ranking[0] in plan.bf16_layers
    assert 0 < plan.measured_nats <= budget < again.calibrated.kl_nats
    # 2 KV heads of 64 values, K and V: a byte each in FP8.
    assert plan.bytes_all_quantized == 3 * 256 < plan.bytes_per_token < plan.bytes_all_bf16 == 3 * 512
    # Measured apart from the plan's own search.
    kept = set(plan.bf16_layers)
    stores = [
        bf16_stores(plain)[0]
        if i in kept
        else store_of(
            make_layout(
                "fp8_flat",
                plain.shape,
                first_scales=layer.parts["k"].scales,
                second_scales=layer.parts["v"].scales,
            )
        )
        for i, layer in enumerate(again.layers)
    ]
    (measured,) = divergences(plain, DATA, [stores])
    assert plan.measured_nats == pytest.approx(measured.mean_nats)


def test_the_report_ranks_layers_by_their_own_divergence(plain: CalibrationModel) -> None:
    report = calibrated(plain, method="amax")
    own = [layer.kl_nats for layer in report.layers]
    assert [own[i] for i in report.ranking] == sorted(own, reverse=True)
    assert 0.3 * sum(own) < report.calibrated.kl_nats < 3 * sum(own)


def test_an_mla_cache_keeps_scale_one_whatever_the_method() -> None:
    report = calibrate(load_model(MODELS / "kimi_tiny"), sequences(1), Settings(method="mse", kl_prompts=2))
    for layer in report.layers:
        assert set(layer.parts) == {"latent", "rope"}
        for part in layer.parts.values():
            assert part.scales == (1.0,)
            assert 0 < part.method_scales[0] < 0.1  # what it would be, if the server could use it
    assert report.calibrated == report.at_unit_scale


def test_the_tiled_layout_keeps_the_rope_key_of_mla_exact() -> None:
    model = load_model(MODELS / "kimi_tiny")
    report = calibrate(model, sequences(1), Settings(granularity="token-tile", kl_prompts=4))
    assert report.layout == "ds656"
    for layer in report.layers:
        assert layer.parts["rope"].rest.stored.sqnr_db == float("inf")
        assert layer.parts["latent"].rest.stored.sqnr_db > 31.0
    assert report.calibrated.kl_nats < 0.7 * report.at_unit_scale.kl_nats
