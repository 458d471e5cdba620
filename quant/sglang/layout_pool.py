"""A layout's bytes in place of SGLang's own KV buffers.

The pool keeps its slots, pages and prefix tree; only what a slot holds changes. Its buffers become
rows of bytes, one a slot: K's and V's (GQA), or one for both (MLA). Nothing but our attention
backend reads or writes them on a CPU.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch

from equipoise.kernels.formats import E4M3FN
from equipoise.quant.kv_layouts import HEAD_AMAX_FILE, KV_LAYOUT_KINDS, misfit
from equipoise.quant.layouts import CacheShape, KVLayout, make_layout
from equipoise.quant.layouts.rows import row_bytes
from equipoise.quant.sglang.attention import KVRows

__all__ = ["LayoutPool", "load_head_scales"]

HeadScales = list[tuple[list[float], list[float]]]  # [layer] (of K, of V)


def load_head_scales(model_path: str, *, num_layers: int, kv_heads: int) -> HeadScales:
    """Scales amax / 448 from ``kv_head_amax.json``: ``{"layers": [{"k": [3.1, ...], "v": [...]}, ...]}``.

    Raises
    ------
    ValueError
        Missing or malformed file; names the path and what it must hold.
    """
    path = Path(model_path) / HEAD_AMAX_FILE
    wanted = f'{{"layers": [{{"k": [{kv_heads} amax], "v": [{kv_heads} amax]}}, ...]}}'
    try:
        layers = json.loads(path.read_text(encoding="utf-8"))["layers"]
        amax = [tuple([float(a) for a in layer[part]] for part in ("k", "v")) for layer in layers]
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing: fp8_per_head needs the calibrated amax of every KV head, as {wanted}; "
            "fp8_per_token_head needs no calibration"
        ) from None
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"{path} is malformed ({e!r}); it must read {wanted}") from e
    if len(amax) != num_layers or any(len(heads) != kv_heads for layer in amax for heads in layer):
        raise ValueError(
            f"{path} is not of this model ({num_layers} layers of {kv_heads} KV heads): {wanted}"
        )
    if not all(0 < a < math.inf for layer in amax for heads in layer for a in heads):
        raise ValueError(f"{path}: every amax must be positive and finite")
    return [([a / E4M3FN.max_finite for a in k], [a / E4M3FN.max_finite for a in v]) for k, v in amax]


class LayoutPool:
    """Writes and reads one layout in SGLang's pool, whose buffers it replaces.

    Parameters
    ----------
    name : str
        A key of ``KV_LAYOUT_KINDS``.
    pool : object
        SGLang's MHATokenToKVPool or MLATokenToKVPool, before anything is in it.

    Raises
    ------
    ValueError
        The layout cannot hold this cache, or its calibration is missing.
    """

    def __init__(self, name: str, pool: Any, *, mla: bool, model_path: str, num_layers: int) -> None:
        if reason := misfit(name, "mla" if mla else "gqa"):
            raise ValueError(f"--kv-layout {name}: {reason}")
        self.pool, self.mla, self.name = pool, mla, name
        if mla:
            shape = CacheShape.mla(kv_lora_rank=pool.kv_lora_rank, qk_rope_head_dim=pool.qk_rope_head_dim)
        else:
            shape = CacheShape.gqa(kv_heads=pool.head_num, head_dim=pool.head_dim, v_head_dim=pool.v_head_dim)
        self.shape = shape
        self.layouts: list[KVLayout] = []
        if KV_LAYOUT_KINDS[name].calibrated:
            scales = load_head_scales(model_path, num_layers=num_layers, kv_heads=pool.head_num)
            for k, v in scales[pool.start_layer : pool.start_layer + pool.layer_num]:
                self.layouts.append(make_layout(name, shape, first_scales=k, second_scales=v))
        else:
            self.layouts = [make_layout(name, shape)] * pool.layer_num
        self._replace_buffers()

    def _replace_buffers(self) -> None:
        pool = self.pool
        slots = (pool.kv_buffer if self.mla else pool.k_buffer)[0].shape[0]
        widths = [row_bytes(fields) for fields in self.layouts[0].buffers]
        self.buffers = [
            [torch.zeros(slots, width, dtype=torch.uint8) for width in widths] for _ in self.layouts
        ]
        # In the pool too, so that its size is told truly and its own buffers are freed.
        if self.mla:
            pool.kv_buffer = [rows[0] for rows in self.buffers]
        else:
            pool.k_buffer = [rows[0] for rows in self.buffers]
            pool.v_buffer = [rows[1] for rows in self.buffers]

    def describe(self) -> str:
        """What the server's log says."""
        layout, slots = self.layouts[0], self.buffers[0][0].shape[0]
        return (
            f"KV LAYOUT {layout.name}: {layout.bytes_per_layer} bytes a token and layer, "
            f"{slots} slots, {len(self.layouts)} layers"
        )

    def write(self, layer_id: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Encode tokens into their slots; for MLA ``k`` is [..., latent + rope] and ``v`` is not read."""
        layer = layer_id - self.pool.start_layer
        tokens = slots.numel()
        if self.mla:
            row = k.reshape(tokens, -1)
            first, second = row.split([*self.shape.first, *self.shape.second], dim=1)
        else:
            first, second = k.reshape(tokens, *self.shape.first), v.reshape(tokens, *self.shape.second)
        written = self.layouts[layer].write_rows(first, second)
        for buffer, rows in zip(self.buffers[layer], written, strict=True):
            buffer.index_copy_(0, slots.long(), rows)

    def read(self, layer_id: int, slots: torch.Tensor) -> KVRows:
        """Keys and values of slots of any shape, float32 [*slots.shape, kv_heads, dim]."""
        layer = layer_id - self.pool.start_layer
        index = slots.reshape(-1)
        rows = [buffer.index_select(0, index) for buffer in self.buffers[layer]]
        first, second = self.layouts[layer].read_rows(rows)
        if self.mla:
            k = torch.cat([first, second], dim=1).view(*slots.shape, 1, -1)
            return KVRows(k=k, v=k[..., : self.shape.first[0]])
        return KVRows(
            k=first.view(*slots.shape, *self.shape.first), v=second.view(*slots.shape, *self.shape.second)
        )
