"""Bytes of a model's weights, by component: from its geometry and a format, or from a checkpoint's headers.

From a geometry, matrices and their scales are counted; norm vectors, biases and the shape records of packed
formats, together below .01% of these models, are not. From headers everything is counted.
"""

import re
from dataclasses import dataclass
from typing import Literal

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.geometry import Geometry

__all__ = ["WEIGHT_FORMATS", "Component", "Split", "checkpoint_components", "weight_components"]

# How tensor parallelism divides a component: over all GPUs; over the GPUs that share a request's attention;
# likewise but by whole KV heads; or not at all.
Split = Literal["tp", "attention", "kv_heads", "none"]

WEIGHT_FORMATS = ("bf16", "fp8-block", "fp8-channel", "int4-g32", "nvfp4", "mxfp4", "mxfp8")

# Which matrices a format stores in itself. Kimi's INT4 release quantizes routed experts alone; the others,
# every linear layer except router, embeddings, lm_head and the indexer's weights_proj.
_QUANTIZED = {name: ("experts", "linear") for name in WEIGHT_FORMATS} | {"int4-g32": ("experts",), "bf16": ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part of the weights. ``loaded`` is False for MTP layers: only speculative decoding loads them."""

    name: str
    num_bytes: int
    split: Split
    loaded: bool = True
    quantized: bool = False

    def bytes_per_gpu(self, *, tp: int, attention_tp: int, kv_heads: int) -> int:
        """Bytes on one GPU, rounded up; 0 where it is not loaded."""
        if not self.loaded:
            return 0
        ways = {"tp": tp, "attention": attention_tp, "kv_heads": min(attention_tp, kv_heads), "none": 1}
        return -(-self.num_bytes // ways[self.split])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    component: str
    count: int
    rows: int
    columns: int
    split: Split
    kind: Literal["experts", "linear", "kept"]


def _matrix_bytes(rows: int, columns: int, weights: str) -> int:
    """Bytes of one matrix with its scales."""
    values, words = rows * columns, rows * -(-columns // 8)
    sizes = {
        "bf16": 2 * values,
        "fp8-block": values + 4 * -(-rows // 128) * -(-columns // 128),  # one fp32 scale for 128 x 128
        "fp8-channel": values + 2 * rows,  # one bf16 scale a row
        "int4-g32": 4 * words + 2 * rows * -(-columns // 32),  # int32 words, one bf16 scale for 32
        "nvfp4": rows * (-(-columns // 2) + -(-columns // 16)) + 4,  # one e4m3 scale for 16, one fp32 scale
        "mxfp4": rows * (-(-columns // 2) + -(-columns // 32)),  # one e8m0 scale for 32
        "mxfp8": rows * (columns + -(-columns // 32)),
    }
    return sizes[weights]


def _attention(g: Geometry, layers: int, index_layers: int, component: str) -> list[_Matrix]:
    def of(rows: int, columns: int, split: Split, *, count: int = layers, kept: bool = False) -> _Matrix:
        return _Matrix(
            component=component,
            count=count,
            rows=rows,
            columns=columns,
            split=split,
            kind="kept" if kept else "linear",
        )

    hidden, queries = g.hidden_size, g.heads * g.head_dim
    if not g.is_latent:
        return [
            of(queries, hidden, "attention"),
            of(g.kv_heads * g.head_dim, hidden, "kv_heads"),
            of(g.kv_heads * g.v_head_dim, hidden, "kv_heads"),
            of(hidden, g.heads * g.v_head_dim, "attention"),
        ]
    found = [
        of(g.kv_lora_rank + g.qk_rope_head_dim, hidden, "none"),
        of(g.heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank, "attention"),
        of(hidden, g.heads * g.v_head_dim, "attention"),
    ]
    if g.q_lora_rank:
        found += [of(g.q_lora_rank, hidden, "none"), of(queries, g.q_lora_rank, "attention")]
    else:
        found.append(of(queries, hidden, "attention"))
    if g.attention == "dsa":
        found += [
            of(g.index_heads * g.index_head_dim, g.q_lora_rank or hidden, "none", count=index_layers),
            of(g.index_head_dim, hidden, "none", count=index_layers),
            of(g.index_heads, hidden, "none", count=index_layers, kept=True),
        ]
    return found


def _mlp(
    component: str, count: int, hidden: int, size: int, kind: Literal["experts", "linear"]
) -> list[_Matrix]:
    shapes = ((2 * count, size, hidden), (count, hidden, size))  # gate and up; down
    return [
        _Matrix(component=component, count=n, rows=rows, columns=columns, split="tp", kind=kind)
        for n, rows, columns in shapes
        if n and size
    ]


def _matrices(g: Geometry) -> list[_Matrix]:
    def kept(
        component: str, rows: int, split: Split, *, count: int = 1, columns: int = g.hidden_size
    ) -> _Matrix:
        return _Matrix(component=component, count=count, rows=rows, columns=columns, split=split, kind="kept")

    hidden, mtp = g.hidden_size, g.num_mtp_layers
    found = [
        *_mlp("routed experts", g.moe_layers * g.experts, hidden, g.moe_intermediate_size, "experts"),
        *_mlp("shared experts", g.moe_layers, hidden, g.shared_intermediate_size, "linear"),
        *_mlp("dense MLP", g.dense_layers, hidden, g.intermediate_size, "linear"),
        *_attention(g, g.num_layers, len(g.index_layers), "attention"),
        kept("router", g.experts, "none", count=g.moe_layers),
        kept("embedding", g.vocab_size, "attention"),
    ]
    if not g.tie_word_embeddings:
        found.append(kept("lm_head", g.vocab_size, "tp"))
    if mtp:
        found += [
            *_mlp("MTP", mtp * g.experts, hidden, g.moe_intermediate_size, "experts"),
            *_mlp("MTP", mtp, hidden, g.shared_intermediate_size, "linear"),
            *_attention(g, mtp, mtp, "MTP"),
            kept("MTP", g.experts, "none", count=mtp),
            kept("MTP", hidden, "none", count=mtp, columns=2 * hidden),  # eh_proj
        ]
    return found


def weight_components(geometry: Geometry, weights: str | None = None) -> tuple[Component, ...]:
    """The parts of a model's weights in one format, the routed experts first.

    Parameters
    ----------
    weights : str or None
        One of `WEIGHT_FORMATS`; None is the format that the checkpoint ships in.

    Raises
    ------
    UsageError
        The format is unknown.
    """
    chosen = weights or geometry.weights
    if chosen not in WEIGHT_FORMATS:
        raise UsageError(
            f"{geometry.name}: the size of weights stored as {chosen!r} is not known here; give --weights "
            f"with one of {', '.join(WEIGHT_FORMATS)}, or the folder with the safetensors files"
        )
    sizes: dict[tuple[str, Split, bool], int] = {}
    for m in _matrices(geometry):
        quantized = m.kind in _QUANTIZED[chosen]
        size = m.count * _matrix_bytes(m.rows, m.columns, chosen if quantized else "bf16")
        key = (m.component, m.split, quantized)
        sizes[key] = sizes.get(key, 0) + size
    if geometry.vision_parameters:
        sizes["vision tower", "none", False] = 2 * geometry.vision_parameters
    return tuple(
        Component(name=name, num_bytes=size, split=split, loaded=name != "MTP", quantized=quantized)
        for (name, split, quantized), size in sizes.items()
        if size
    )


_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_NAMES: tuple[tuple[str, str, Split], ...] = (  # first match counts
    (
        r"(^|\.)(vision_tower|mm_projector|visual|vision_model|multi_modal_projector)\.",
        "vision tower",
        "none",
    ),
    (r"(^|\.)embed_tokens\.", "embedding", "attention"),
    (r"(^|\.)lm_head\.", "lm_head", "tp"),
    (r"\.mlp\.experts\.", "routed experts", "tp"),
    (r"\.mlp\.shared_expert_gate\.", "router", "none"),
    (r"\.mlp\.shared_experts?\.", "shared experts", "tp"),
    (r"\.mlp\.gate\.", "router", "none"),
    (r"\.mlp\.", "dense MLP", "tp"),
    (r"\.self_attn\.indexer\.", "attention", "none"),
    (r"\.self_attn\.(q_proj|q_b_proj|kv_b_proj|o_proj)\.", "attention", "attention"),
    (r"\.self_attn\.(k_proj|v_proj)\.", "attention", "kv_heads"),
    (r"\.self_attn\.(q_a_proj|kv_a_proj_with_mqa)\.", "attention", "none"),
)
_PATTERNS = tuple((re.compile(pattern), name, split) for pattern, name, split in _NAMES)


def checkpoint_components(checkpoint: Checkpoint, geometry: Geometry) -> tuple[Component, ...]:
    """The parts of a checkpoint's weights, from its shards' headers.

    Tensors whose name says nothing (norms, and what is not known here) are "other" and counted whole on
    every GPU.

    Raises
    ------
    CheckpointError
        The config's number of layers contradicts the tensors.
    """
    sizes: dict[tuple[str, Split, bool], int] = {}
    layers_seen = set()
    for name, tensor in checkpoint.tensors.items():
        loaded, (component, split) = True, _component_of(name)
        if (found := _LAYER.search(name)) and component != "vision tower":
            layer = int(found[1])
            layers_seen.add(layer)
            if layer >= geometry.num_layers:
                component, loaded = "MTP", False
        key = (component, split, loaded)
        sizes[key] = sizes.get(key, 0) + tensor.nbytes
    expected, mtp = geometry.num_layers, geometry.num_mtp_layers
    if missing := sorted(set(range(expected)) - layers_seen):
        raise CheckpointError(
            f"{checkpoint.path}: config.json says num_hidden_layers {expected}, but layer {missing[0]} has "
            "no tensors; config and weights are not of one model: download both again"
        )
    if max(layers_seen) >= expected + mtp:
        raise CheckpointError(
            f"{checkpoint.path}: config.json says {expected} layers and {mtp} MTP layers, but there are "
            f"tensors of layer {max(layers_seen)}; they are not of one model: download both again"
        )
    return tuple(
        Component(name=name, num_bytes=size, split=split, loaded=loaded)
        for (name, split, loaded), size in sizes.items()
        if size
    )


def _component_of(tensor: str) -> tuple[str, Split]:
    for pattern, name, split in _PATTERNS:
        if pattern.search(tensor):
            return name, split
    return "other", "none"
