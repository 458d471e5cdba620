"""quant lossless stat: entropies, limits, and what a model saves."""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from equipoise.evals.cli import app
from equipoise.evals.errors import CheckpointError
from equipoise.quant.geometry import find_builtin
from equipoise.quant.lossless import encode_tensor, write_lossless
from equipoise.quant.lossless.entropy import entropy_bits, entropy_of_counts
from equipoise.quant.lossless.savings import SCALE_RATIO, WEIGHT_RATIO, predict_saving
from equipoise.quant.lossless.stat import lossless_stat, tensor_kind

GLM = Path(str(files("equipoise.tasks") / "embedded" / "glm_tiny"))


def test_entropy_of_known_sources():
    assert entropy_bits(np.zeros(9, np.int64)) == 0
    assert entropy_bits(np.arange(256)) == 8
    assert entropy_of_counts(np.array([1, 1, 2])) == pytest.approx(1.5)
    assert entropy_of_counts(np.zeros(4, np.int64)) == 0


def test_kinds_differ_in_more_than_numbers():
    assert tensor_kind("model.layers.3.mlp.experts.17.up_proj.weight") == (
        "model.layers.*.mlp.experts.*.up_proj.weight"
    )
    assert tensor_kind("conv1.weight") == "conv1.weight"


def test_prediction_of_all_blocks_is_what_the_file_stores(tmp_path):
    write_lossless(GLM / "model.safetensors", tmp_path / "lossless")
    everything = {"tensors_per_kind": None, "blocks_per_tensor": None}
    plain = lossless_stat(GLM, **everything)
    stored = lossless_stat(tmp_path / "lossless", **everything)
    assert plain.stored_saved_share is None
    assert {k.kind: (k.nbytes, k.exponent_bits, k.predicted) for k in plain.kinds} == {
        k.kind: (k.nbytes, k.exponent_bits, k.predicted) for k in stored.kinds
    }
    for kind in stored.kinds:
        if kind.predicted is not None:
            assert kind.predicted == pytest.approx(kind.stored, abs=1e-3)
    assert plain.predicted_saved_share == pytest.approx(stored.stored_saved_share, abs=1e-3)
    assert plain.total_bytes == sum(k.nbytes for k in stored.kinds)


def test_a_sample_predicts_what_all_of_it_gives():
    sample, everything = lossless_stat(GLM), lossless_stat(GLM, tensors_per_kind=None, blocks_per_tensor=None)
    assert sum(k.sampled_bytes for k in sample.kinds) < everything.bf16_bytes
    assert sample.predicted_saved_share == pytest.approx(everything.predicted_saved_share, abs=0.005)
    assert everything.predicted_saved_share == pytest.approx(0.33, abs=0.01)


def test_weights_and_scales_compress_as_the_predictions_for_models_say():
    """The constants, on their stated source: Gaussian weights, and the scales of groups of 32 of them."""
    rng = np.random.default_rng(0)
    row_scales = 0.02 * np.exp(0.35 * rng.standard_normal((512, 1)))
    weights = (rng.standard_normal((512, 7168)) * row_scales).astype(np.float32)
    scales = np.abs(weights.reshape(512, -1, 32)).max(axis=2) / np.float32(7)

    def ratio(x):
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)
        return encode_tensor(bits).nbytes / bits.nbytes

    assert ratio(weights) == pytest.approx(WEIGHT_RATIO, abs=0.003)
    assert ratio(scales) == pytest.approx(SCALE_RATIO, abs=0.01)


@pytest.mark.parametrize(
    ("model", "weights_gb", "scales_gb", "low", "high"),
    [
        ("glm-4.6", 713.6, 0, 0.33, 0.34),  # BF16: a third
        ("kimi-k2.6", 24.2, 63.4, 0.06, 0.07),  # INT4 experts: little
        ("kimi-k2", 5.0, 0, 0.001, 0.002),  # FP8: next to nothing
    ],
)
def test_a_third_of_a_bf16_model_and_little_of_a_quantized_one(model, weights_gb, scales_gb, low, high):
    saving = predict_saving(find_builtin(model))
    assert saving.bf16_weight_bytes / 1e9 == pytest.approx(weights_gb, abs=0.05)
    assert saving.bf16_scale_bytes / 1e9 == pytest.approx(scales_gb, abs=0.05)
    assert low < saving.saved_share < high


def test_weights_alone_save_little_over_a_per_cent_of_kimi():
    saving = predict_saving(find_builtin("kimi-k2.6"))
    assert saving.saved_weight_bytes / saving.total_bytes == pytest.approx(0.0136, abs=0.0005)


def run(*arguments):
    return CliRunner().invoke(app.main, ["quant", "lossless", "stat", *arguments])


def test_the_command_tells_of_files_and_of_models(tmp_path):
    result = run("embedded:glm_tiny", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["predicted_saved_share"] == pytest.approx(0.33, abs=0.01)
    assert {"exponent_bits", "limit", "predicted", "stored"} <= found["kinds"][0].keys()
    write_lossless(GLM / "model.safetensors", tmp_path / "lossless.safetensors")
    assert "These files are lossless ones" in run(str(tmp_path / "lossless.safetensors")).stdout
    assert "save about 33.5% of the checkpoint" in run("glm-4.6").stdout
    assert json.loads(run("kimi-k2.6", "--json").stdout)["saved_share"] < 0.07


def test_the_command_refuses_what_is_neither(tmp_path):
    assert run("no-such-model").exit_code == 2
    (tmp_path / "broken.safetensors").write_bytes(b"\1" * 50)
    result = run(str(tmp_path / "broken.safetensors"))
    assert result.exit_code == CheckpointError.exit_code and "broken.safetensors" in result.stderr
