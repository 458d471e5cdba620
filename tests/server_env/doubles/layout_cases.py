"""Shapes, values and layouts that the layout tests share."""

import pytest
import torch

from equipoise.quant.layouts import CacheShape, make_layout

MLA = CacheShape.mla()
GQA = CacheShape.gqa(kv_heads=4, head_dim=32, v_head_dim=24)
TINY_MLA = CacheShape.mla(kv_lora_rank=64, qk_rope_head_dim=32)
HEAD_SCALES = {"first_scales": [0.01, 0.02, 0.5, 1.0], "second_scales": [0.03, 0.01, 0.25, 2.0]}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tokens(shape: CacheShape, n: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(n, *shape.first, seed=seed), normal(n, *shape.second, seed=seed + 1)


def cases() -> list:
    found = [("bf16", MLA, {}), ("bf16", GQA, {}), ("fp8_flat", MLA, {}), ("fp8_flat", GQA, {})]
    found += [("fp8_per_head", GQA, HEAD_SCALES), ("fp8_per_token_head", GQA, {})]
    found += [(name, shape, {}) for name in ("ds656", "ds656_pow2") for shape in (MLA, TINY_MLA)]
    return [
        pytest.param(make_layout(name, shape, **kw), id=f"{name}-{shape.first[0]}")
        for name, shape, kw in found
    ]


LAYOUTS = pytest.mark.parametrize("layout", cases())
