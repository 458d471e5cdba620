"""Planted faults do exactly what they say, and refuse to guess their calibration."""

import json

import pytest
import torch

from equipoise.quant.sglang.kv_controls import KV_CONTROLS, build_control, load_amax

GQA_PARTS = ("k", "v")
POSITIONS = torch.arange(8)


def write_amax(folder, layers):
    (folder / "kv_amax.json").write_text(json.dumps({"layers": layers}))


def test_int4_tensor_uses_the_layers_own_calibrated_amax(tmp_path):
    write_amax(tmp_path, [{"k": 7.0, "v": 1.0}, {"k": 14.0, "v": 1.0}])
    control = build_control("int4-tensor", model_path=str(tmp_path), parts=GQA_PARTS, num_layers=2)
    x = torch.tensor([[0.4, 0.6, 3.2, 9.2]])
    assert control(0, "k", x, POSITIONS[: len(x)]).tolist() == [[0.0, 1.0, 3.0, 7.0]]
    assert control(1, "k", x, POSITIONS[: len(x)]).tolist() == [[0.0, 0.0, 4.0, 10.0]]


def test_int4_token_takes_one_amax_a_token_over_all_heads():
    control = build_control("int4-token", model_path="/nowhere", parts=GQA_PARTS, num_layers=1)
    x = torch.tensor([[[7.0, 0.6], [0.4, -3.2]], [[0.07, 0.006], [0.004, -0.032]]])  # [tokens, heads, dim]
    expected = torch.tensor([[[7.0, 1.0], [0.0, -3.0]], [[0.07, 0.01], [0.0, -0.03]]])
    torch.testing.assert_close(control(0, "k", x, POSITIONS[: len(x)]), expected)


def test_clip2_clips_at_half_the_amax_and_is_otherwise_e4m3(tmp_path):
    write_amax(tmp_path, [{"latent": 8.0, "rope": 2.0}])
    control = build_control("clip2", model_path=str(tmp_path), parts=("latent", "rope"), num_layers=1)
    x = torch.tensor([[8.0, -5.0, 4.0, 1.0, -0.25]])
    assert control(0, "latent", x, POSITIONS[: len(x)]).tolist() == [[4.0, -4.0, 4.0, 1.0, -0.25]]
    assert control(0, "rope", x, POSITIONS[: len(x)])[0, :2].tolist() == [1.0, -1.0]


def test_drift_is_8_bits_at_first_and_coarser_with_every_token_after_that():
    control = build_control("drift", model_path="/nowhere", parts=GQA_PARTS, num_layers=1)
    token = torch.tensor([[1.0, 0.3], [-0.51, 0.04]])  # [heads, dim], amax 1
    positions = torch.tensor([0, 63, 96, 192, 240, 100_000])
    stored = control(0, "k", token.repeat(6, 1, 1), positions)
    worst = 2**-1.5
    for row, step in zip(stored, [1 / 128, 1 / 128, 1 / 64, 1 / 8, worst, worst], strict=True):
        torch.testing.assert_close(row, (token / step).round() * step)


def test_drift_takes_each_token_at_its_own_position_and_scale():
    control = build_control("drift", model_path="/nowhere", parts=("latent", "rope"), num_layers=1)
    x = torch.tensor([[8.0, 2.4], [8.0, 2.4], [0.0, 0.0]])
    stored = control(0, "latent", x, torch.tensor([192, 0, 192]))
    assert stored.tolist() == [[8.0, 2.0], [8.0, 2.375], [0.0, 0.0]]


@pytest.mark.parametrize("name", [n for n, kind in KV_CONTROLS.items() if kind.needs_amax])
def test_a_missing_amax_file_is_named_with_what_it_must_hold(name, tmp_path):
    with pytest.raises(ValueError, match=r'kv_amax\.json is missing.*"latent": amax'):
        build_control(name, model_path=str(tmp_path), parts=("latent", "rope"), num_layers=1)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([{"k": 1.0}], "malformed"),
        ([{"k": 1.0, "v": 1.0}], "has 1 layers, the model has 2"),
        ([{"k": 1.0, "v": 1.0}, {"k": 1.0, "v": 0.0}], r"see layers \[1\]"),
        ([{"k": 1.0, "v": 1.0}, {"k": float("nan"), "v": 1.0}], r"see layers \[1\]"),
    ],
)
def test_a_wrong_amax_file_is_refused(layers, message, tmp_path):
    write_amax(tmp_path, layers)
    with pytest.raises(ValueError, match=message):
        load_amax(str(tmp_path), parts=GQA_PARTS, num_layers=2)
