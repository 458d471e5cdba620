"""Widen a small MLA model to Kimi's real attention geometry without changing its function.

===================  =====  ====
size                 small  real
===================  =====  ====
kv_lora_rank          128    512
qk_rope_head_dim       32     64
qk_nope_head_dim       32    128
v_head_dim             64    128
===================  =====  ====

So the cache entry has the real 512 + 64 layout. New rows and columns are zero, with three corrections:

* ``kv_a_layernorm`` takes the root mean square over 512 values of which 384 are zero: its weight
  shrinks by sqrt(small / real) (the epsilon is of no weight beside the variance).
* A rotary pair i of the small model turns at theta**(-2 i / 32); pair 2 i of the real model turns
  at the same frequency, so pairs are spread out, not appended.
* Attention divides by sqrt(qk_head_dim): queries grow by sqrt(real / small).
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.tasks.embedded.architecture import Shape

__all__ = ["REAL_SIZES", "narrow", "widen"]

REAL_SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


def _rope_rows(small: int, real: int) -> Tensor:
    """Row of the real rotary block for each row of the small one (interleaved pairs)."""
    rows = torch.arange(small)
    return 2 * ((real // small) * (rows // 2)) + rows % 2


def widen(state: Mapping[str, Tensor], small: Shape) -> tuple[dict[str, Tensor], Shape]:
    """The same model at ``REAL_SIZES``.

    Parameters
    ----------
    state : Mapping[str, Tensor]
        State dict of a Kimi-shaped ``FastModel`` of shape ``small``.
    small : Shape
        Its shape; every real size must be at least, and the rotary size a multiple of, the small one.

    Returns
    -------
    tuple[dict[str, Tensor], Shape]
        The wider state dict and its shape.
    """
    real = replace(small, **REAL_SIZES)  # type: ignore[arg-type]
    heads, hidden = small.num_heads, small.hidden_size
    rope = _rope_rows(small.qk_rope_head_dim, real.qk_rope_head_dim)
    wide: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith("q_proj.weight"):
            old = tensor.view(heads, small.qk_head_dim, hidden)
            new = tensor.new_zeros(heads, real.qk_head_dim, hidden)
            new[:, : small.qk_nope_head_dim] = old[:, : small.qk_nope_head_dim]
            new[:, real.qk_nope_head_dim + rope] = old[:, small.qk_nope_head_dim :]
            new = new.flatten(0, 1) * (real.qk_head_dim / small.qk_head_dim) ** 0.5
        elif name.endswith("kv_a_proj_with_mqa.weight"):
            new = tensor.new_zeros(real.kv_lora_rank + real.qk_rope_head_dim, hidden)
            new[: small.kv_lora_rank] = tensor[: small.kv_lora_rank]
            new[real.kv_lora_rank + rope] = tensor[small.kv_lora_rank :]
        elif name.endswith("kv_a_layernorm.weight"):
            new = tensor.new_ones(real.kv_lora_rank)  # ones: these entries only ever see zeros
            new[: small.kv_lora_rank] = tensor * (small.kv_lora_rank / real.kv_lora_rank) ** 0.5
        elif name.endswith("kv_b_proj.weight"):
            old = tensor.view(heads, small.qk_nope_head_dim + small.v_head_dim, small.kv_lora_rank)
            new = tensor.new_zeros(heads, real.qk_nope_head_dim + real.v_head_dim, real.kv_lora_rank)
            values = slice(real.qk_nope_head_dim, real.qk_nope_head_dim + small.v_head_dim)
            new[:, : small.qk_nope_head_dim, : small.kv_lora_rank] = old[:, : small.qk_nope_head_dim]
            new[:, values, : small.kv_lora_rank] = old[:, small.qk_nope_head_dim :]
            new = new.flatten(0, 1)
        elif name.endswith("o_proj.weight"):
            new = tensor.new_zeros(hidden, heads, real.v_head_dim)
            new[:, :, : small.v_head_dim] = tensor.view(hidden, heads, small.v_head_dim)
            new = new.flatten(1, 2)
        else:
            new = tensor.clone()
        wide[name] = new
    return wide, real


def narrow(state: Mapping[str, Tensor], small: Shape) -> dict[str, Tensor]:
    """Undo ``widen``: the state dict of shape ``small`` that a wider one was made from (float32)."""
    real = replace(small, **REAL_SIZES)  # type: ignore[arg-type]
    heads, hidden = small.num_heads, small.hidden_size
    rope = _rope_rows(small.qk_rope_head_dim, real.qk_rope_head_dim)
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith("q_proj.weight"):
            old = tensor.view(heads, real.qk_head_dim, hidden)
            parts = [old[:, : small.qk_nope_head_dim], old[:, real.qk_nope_head_dim + rope]]
            new = torch.cat(parts, 1).flatten(0, 1) / (real.qk_head_dim / small.qk_head_dim) ** 0.5
        elif name.endswith("kv_a_proj_with_mqa.weight"):
            new = torch.cat([tensor[: small.kv_lora_rank], tensor[real.kv_lora_rank + rope]])
        elif name.endswith("kv_a_layernorm.weight"):
            new = tensor[: small.kv_lora_rank] / (small.kv_lora_rank / real.kv_lora_rank) ** 0.5
        elif name.endswith("kv_b_proj.weight"):
            old = tensor.view(heads, real.qk_nope_head_dim + real.v_head_dim, real.kv_lora_rank)
            values = slice(real.qk_nope_head_dim, real.qk_nope_head_dim + small.v_head_dim)
            new = torch.cat([old[:, : small.qk_nope_head_dim], old[:, values]], 1)
            new = new[..., : small.kv_lora_rank].flatten(0, 1)
        elif name.endswith("o_proj.weight"):
            new = tensor.view(hidden, heads, real.v_head_dim)[:, :, : small.v_head_dim].flatten(1, 2)
        else:
            new = tensor
        found[name] = new.clone()
    return found
