"""Prompts for the embedded models, and models whose cached K and V are of another size.

Multiplying K and dividing Q by a power of two changes no logit, and neither does multiplying V and
dividing the output projection: not in float32, and not in the bfloat16 the weights are stored in.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from equipoise.quant.calibration.prompts import TokenSequences
from equipoise.tasks.embedded.sensitivity import CALIBRATION_SEED, generated_tasks
from equipoise.tasks.embedded.tokenizer import render
from equipoise.tasks.generated import draw_held_out

MODELS = Path(__file__).resolve().parents[3] / "tasks" / "embedded"


def sequences(items_per_task: int, *, first: int = 0, max_tokens: int = 160) -> TokenSequences:
    """Held-out conversations of every embedded task; other items for another ``first``."""
    found: list[tuple[int, ...]] = []
    for task in generated_tasks().values():
        draws = draw_held_out(task, first + items_per_task, CALIBRATION_SEED)[first:]
        found += [tuple(render(draw.turns)[0][:max_tokens]) for draw in draws]
    return TokenSequences(
        sequences=tuple(found), where=tuple(map(str, range(len(found)))), truncated=0, too_short=0
    )


def rescale(source: Path, out: Path, factors: Sequence[tuple[float, float]]) -> Path:
    """A checkpoint whose cached K and V are ``factors[layer]`` times those of ``source``.

    GLM-shaped models scale K after its norm; Llama-shaped ones have none, so their projections are scaled.
    """
    shutil.copytree(source, out)
    path = out / "model.safetensors"
    tensors = load_file(path)

    def multiply(name: str, factor: float) -> None:
        scaled = tensors[name].float() * factor
        tensors[name] = scaled.to(tensors[name].dtype)
        assert torch.equal(tensors[name].float(), scaled), "powers of two leave every mantissa as it is"

    for i, (k, v) in enumerate(factors):
        prefix = f"model.layers.{i}.self_attn"
        if f"{prefix}.k_norm.weight" in tensors:
            multiply(f"{prefix}.k_norm.weight", k)
            multiply(f"{prefix}.q_norm.weight", 1 / k)
        else:
            multiply(f"{prefix}.k_proj.weight", k)
            multiply(f"{prefix}.q_proj.weight", 1 / k)
        multiply(f"{prefix}.v_proj.weight", v)
        if f"{prefix}.v_proj.bias" in tensors:
            multiply(f"{prefix}.v_proj.bias", v)
        multiply(f"{prefix}.o_proj.weight", 1 / v)
    save_file(tensors, path, metadata={"format": "pt"})
    return out
