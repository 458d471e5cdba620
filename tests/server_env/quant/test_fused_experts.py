"""All experts in one tensor: transformers holds them so in memory, and writes them so on request alone."""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from equipoise.evals.errors import CheckpointError
from equipoise.quant.weights.convert import convert

EMBEDDED = Path(str(files("equipoise.tasks") / "embedded"))
MODELS = pytest.mark.parametrize("model", ["kimi_tiny", "glm_tiny"])
EXPERT = "model.layers.1.mlp.experts.0.gate_proj.weight"


def saved(model: str, folder: Path, **options: object) -> Path:
    """By transformers, with the config and the router's dtype of the original."""
    loaded = AutoModelForCausalLM.from_pretrained(EMBEDDED / model, dtype=torch.bfloat16)
    loaded.save_pretrained(folder, **options)
    shutil.copy(EMBEDDED / model / "config.json", folder)
    return folder


def split_experts(source: Path, folder: Path) -> Path:
    """What the refusal tells to do."""
    shutil.copytree(source, folder)
    out: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        base, _, leaf = name.rpartition(".")
        if not base.endswith(".mlp.experts"):
            out[name] = tensor
            continue
        leaves = ["gate_proj", "up_proj"] if leaf == "gate_up_proj" else [leaf]
        for i, expert in enumerate(tensor):
            rows = expert.chunk(len(leaves))
            out |= {f"{base}.{i}.{k}.weight": v.contiguous() for k, v in zip(leaves, rows, strict=True)}
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@MODELS
def test_transformers_writes_one_tensor_for_each_expert(model, tmp_path):
    tensors = load_file(saved(model, tmp_path / "saved") / "model.safetensors")
    assert EXPERT in tensors and all(t.dim() < 3 for t in tensors.values())
    convert(tmp_path / "saved", tmp_path / "made", format_name="fp8-block", workers=1)


@MODELS
def test_experts_in_one_tensor_are_refused_and_the_remedy_that_is_named_works(model, tmp_path):
    fused = saved(model, tmp_path / "fused", save_original_format=False)
    with pytest.raises(CheckpointError, match=r"holds all experts in one tensor.*or split it"):
        convert(fused, tmp_path / "made", format_name="fp8-block", workers=1)
    assert not (tmp_path / "made.partial").exists()
    back = load_file(split_experts(fused, tmp_path / "split") / "model.safetensors")
    for name, tensor in load_file(EMBEDDED / model / "model.safetensors").items():
        assert torch.equal(back[name].to(tensor.dtype), tensor), name
    convert(tmp_path / "split", tmp_path / "made", format_name="fp8-block", workers=1)


def test_sglang_loads_experts_of_these_models_one_by_one():
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

    read = [
        name
        for _, name, *_ in FusedMoE.make_expert_params_mapping(
            ckpt_gate_proj_name="gate_proj",
            ckpt_down_proj_name="down_proj",
            ckpt_up_proj_name="up_proj",
            num_experts=2,
        )
    ]
    assert any(name in EXPERT for name in read)
    for fused in ("gate_up_proj", "down_proj"):
        assert not any(name in f"model.layers.1.mlp.experts.{fused}" for name in read)
