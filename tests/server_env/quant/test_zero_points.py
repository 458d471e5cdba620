"""INT4 with zero points, written by compressed-tensors, is decoded as compressed-tensors decodes it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from tiny_models import make_checkpoint

from equipoise.evals.errors import CheckpointError
from equipoise.quant.weights import schemes
from equipoise.quant.weights.convert import dequantize
from equipoise.quant.weights.verify import verify
from equipoise.quant.weights.zero_points import int4_zero_point_decode

GROUP = 32
PACKER = BaseCompressor.get_value_from_registry("pack-quantized")
WEIGHT = "model.layers.1.mlp.up_proj.weight"


def scheme_of(preset: str, **weights: Any) -> QuantizationScheme:
    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme.weights = scheme.weights.model_copy(update={"group_size": GROUP, **weights})
    return scheme


def packed(x: torch.Tensor, scheme: QuantizationScheme) -> dict[str, torch.Tensor]:
    groups = x.unflatten(1, (-1, GROUP))
    scale, zero_point = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights)
    state = {"weight": x, "weight_scale": scale, "weight_zero_point": zero_point.to(torch.int8)}
    return {k: v.detach().contiguous() for k, v in PACKER.compress(state, scheme).items()}


def written(source: Path, folder: Path, scheme: QuantizationScheme) -> Path:
    """Every projection of a Llama-type model, shifted so that its zero points are not 0."""
    out: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            parts = packed(tensor + 0.05, scheme)
            out |= {name.removesuffix("weight") + part: value for part, value in parts.items()}
        else:
            out[name] = tensor
    folder.mkdir()
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    declared = QuantizationConfig(
        config_groups={"group_0": scheme}, format="pack-quantized", ignore=["lm_head"],
        quantization_status="compressed",
    )  # fmt: skip
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = json.loads(declared.model_dump_json())
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture
def asymmetric(llama: Path, tmp_path: Path) -> Path:
    return written(llama, tmp_path / "theirs", scheme_of("W4A16_ASYM"))


def changed(folder: Path, part: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = WEIGHT.removesuffix("weight") + part
    value = change(tensors.pop(name)) if name in tensors else change(torch.empty(0))
    tensors |= {} if value is None else {name: value.contiguous()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("slab", [schemes.SLAB_ELEMENTS, 1])
def test_a_checkpoint_with_zero_points_is_decoded_as_they_do(asymmetric, tmp_path, slab, monkeypatch):
    monkeypatch.setattr(schemes, "SLAB_ELEMENTS", slab)  # 1: slabs of eight rows
    result = dequantize(asymmetric, tmp_path / "back", workers=1)
    assert (result.converted, result.dropped) == (21, ())
    stored, decoded = (load_file(p / "model.safetensors") for p in (asymmetric, tmp_path / "back"))
    scheme, zero_points = scheme_of("W4A16_ASYM"), []
    for name in (n for n in decoded if n.endswith("_proj.weight")):
        base = name.removesuffix("weight")
        state = {k.removeprefix(base): v for k, v in stored.items() if k.startswith(base)}
        theirs = PACKER.decompress(state, scheme)
        zero_points.append(theirs["weight_zero_point"].float())
        due = theirs["weight"].float()
        assert (decoded[name].float() - due).abs().max() <= due.abs().max() * 2.0**-8, name
    assert torch.cat([z.flatten() for z in zero_points]).std() > 0.5
    assert verify(asymmetric, tmp_path / "back", workers=1).passed


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 40])
def test_rows_that_do_not_fill_a_word_are_decoded_too(rows):
    x = torch.randn(rows, 2 * GROUP, generator=torch.Generator().manual_seed(rows)) + 0.3
    scheme = scheme_of("W4A16_ASYM")
    parts = packed(x, scheme)
    due = PACKER.decompress(parts, scheme)["weight"]
    got = int4_zero_point_decode(
        parts["weight_packed"], parts["weight_scale"], parts["weight_zero_point"], out=torch.empty_like(x)
    )
    assert torch.allclose(got, due.float(), rtol=2.0**-22, atol=0.0)


def test_columns_reordered_while_calibrating_alone_are_stored_in_place(llama, tmp_path):
    plain, ordered = (
        written(llama, tmp_path / str(o), scheme_of("W4A16_ASYM", actorder=o)) for o in (None, "weight")
    )
    for folder in (plain, ordered):
        dequantize(folder, folder.with_suffix(".back"), workers=1)
    one, other = (load_file(f.with_suffix(".back") / "model.safetensors") for f in (plain, ordered))
    assert all(torch.equal(one[name], other[name]) for name in one)


BAD = {
    "missing": ("weight_zero_point", lambda z: None, "weight_zero_point is missing"),
    "another shape": ("weight_zero_point", lambda z: z[:-1], r"weight_zero_point should be \[32, 4\]"),
    "unpacked": (
        "weight_zero_point",
        lambda z: z.to(torch.int8),
        "weight_zero_point is I8, where I32 is due",
    ),
    "reordered columns": (
        "weight_g_idx",
        lambda _: torch.zeros(128, dtype=torch.int32),
        "weight_g_idx .* belongs to no weight",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_zero_points_that_do_not_fit_are_refused(asymmetric, tmp_path, case):
    part, change, said = BAD[case]
    changed(asymmetric, part, change)
    with pytest.raises(CheckpointError, match=said):
        dequantize(asymmetric, tmp_path / "back", workers=1)
    assert not (tmp_path / "back.partial").exists()


def declare(folder: Path, **weights: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"] |= weights
    (folder / "config.json").write_text(json.dumps(config))


def test_zero_points_under_a_symmetric_config_must_be_zero(asymmetric, llama, tmp_path):
    declare(asymmetric, symmetric=True)
    with pytest.raises(CheckpointError, match=r"weight_zero_point is not zero.*declares symmetric"):
        dequantize(asymmetric, tmp_path / "back", workers=1)
    for i, zero in enumerate((0x88888888 - 2**32, 0)):
        plain = written(llama, tmp_path / f"symmetric{i}", scheme_of("W4A16"))
        changed(plain, "weight_zero_point", lambda _, z=zero: torch.full((32, 4), z, dtype=torch.int32))
        result = dequantize(plain, tmp_path / f"back{i}", workers=1)
        assert result.dropped == (WEIGHT.removesuffix("weight") + "weight_zero_point",)


def test_columns_in_the_order_of_activations_are_refused(asymmetric, tmp_path):
    declare(asymmetric, actorder="group")
    with pytest.raises(CheckpointError, match="reordered by activation, which cannot be read here"):
        dequantize(asymmetric, tmp_path / "back", workers=1)
