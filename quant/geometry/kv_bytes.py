"""Bytes that one token takes in the KV cache, by layout and kind of layer.

Layouts, as SGLang allocates them (``sglang/srt/model_executor/pool_configurator.py``, 0.5.23):

=============  =============================================================================
bf16           two bytes a value
fp8_flat       one byte a value, one scale a tensor (GQA, or MLA's 576 values)
fp8_per_head   one byte a value, one scale a head (GQA); scales are constants, not cached
ds656          MLA: latent in fp8 with one fp32 scale for each 128, RoPE key in bf16
=============  =============================================================================

The indexer of DSA caches its key in fp8 with one fp32 scale for each 128 values, whatever the layout.
"""

from dataclasses import dataclass

from equipoise.evals.errors import UsageError
from equipoise.quant.geometry.model import Geometry

__all__ = [
    "KV_LAYOUTS",
    "LayerBytes",
    "kv_bytes_per_token",
    "kv_bytes_per_token_per_gpu",
    "kv_layer_bytes",
    "kv_layout_for",
    "kv_layouts_of",
]

KV_LAYOUTS = ("bf16", "fp8_flat", "fp8_per_head", "ds656")
_SCALE_GROUP = 128  # values that share a scale in ds656 and in the indexer's cache
_SCALE_BYTES = 4
_FP8 = ("fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """What one token costs in each of ``layers`` layers."""

    kind: str  # "K and V", "latent and RoPE key", "indexer key"
    layers: int
    bytes_per_token: int  # in one layer

    @property
    def total(self) -> int:
        return self.layers * self.bytes_per_token


def kv_layouts_of(geometry: Geometry) -> tuple[str, ...]:
    """The layouts that a model's attention can have."""
    return ("bf16", "fp8_flat", "ds656") if geometry.is_latent else ("bf16", "fp8_flat", "fp8_per_head")


def kv_layout_for(geometry: Geometry, kv_cache_dtype: str, *, sm_major: int = 9) -> str:
    """The layout that SGLang 0.5.23 uses for a KV dtype on NVIDIA GPUs, with its default backends.

    DSA in fp8 is the one case that differs by GPU: FlashMLA's ds656 on Hopper, TensorRT-LLM's flat rows on
    Blackwell (``arg_groups/overrides.py`` and ``calculate_mla_kv_cache_dim`` of
    ``mem_cache/kv_cache_configurator.py``).

    Parameters
    ----------
    sm_major : int
        Compute capability: 9 is Hopper, 10 Blackwell.

    Raises
    ------
    UsageError
        A dtype that is not one of bf16, bfloat16, fp8_e4m3, fp8_e5m2; fp8_e5m2 for DSA.
    """
    if kv_cache_dtype in ("bf16", "bfloat16"):
        return "bf16"
    if kv_cache_dtype not in _FP8:
        raise UsageError(f"KV dtype {kv_cache_dtype!r} is not known here; choose bf16, {' or '.join(_FP8)}")
    if geometry.attention != "dsa":
        return "fp8_flat"
    if kv_cache_dtype != "fp8_e4m3":
        raise UsageError(
            f"SGLang refuses KV dtype {kv_cache_dtype} for {geometry.name} (DSA); choose bf16 or fp8_e4m3"
        )
    return "fp8_flat" if sm_major >= 10 else "ds656"


def kv_layer_bytes(geometry: Geometry, layout: str, *, kv_heads: int | None = None) -> tuple[LayerBytes, ...]:
    """Bytes of one token, for each kind of layer.

    Parameters
    ----------
    kv_heads : int or None
        KV heads that are stored; None is all of them. GQA only.

    Raises
    ------
    UsageError
        A layout that does not exist, or that this attention cannot have.
    """
    if layout not in kv_layouts_of(geometry):
        known = ", ".join(kv_layouts_of(geometry))
        raise UsageError(
            f"layout {layout!r} does not fit {geometry.name} ({geometry.attention}); choose one of {known}"
        )
    if not geometry.is_latent:
        stored = geometry.kv_heads if kv_heads is None else kv_heads
        values = stored * (geometry.head_dim + geometry.v_head_dim)
        width = 2 if layout == "bf16" else 1
        return (LayerBytes(kind="K and V", layers=geometry.num_layers, bytes_per_token=values * width),)
    latent, rope = geometry.kv_lora_rank, geometry.qk_rope_head_dim
    if layout == "ds656":
        if latent % _SCALE_GROUP:
            raise UsageError(
                f"layout ds656 scales {_SCALE_GROUP} values together, and {geometry.name} has kv_lora_rank "
                f"{latent}; choose bf16 or fp8_flat"
            )
        size = latent + latent // _SCALE_GROUP * _SCALE_BYTES + 2 * rope
    else:
        size = (latent + rope) * (2 if layout == "bf16" else 1)
    rows = [LayerBytes(kind="latent and RoPE key", layers=geometry.num_layers, bytes_per_token=size)]
    if geometry.attention == "dsa":
        index = geometry.index_head_dim + geometry.index_head_dim // _SCALE_GROUP * _SCALE_BYTES
        rows.append(LayerBytes(kind="indexer key", layers=len(geometry.index_layers), bytes_per_token=index))
    return tuple(rows)


def kv_bytes_per_token(geometry: Geometry, layout: str) -> int:
    """Bytes of one token over all layers, stored once (for GQA: on all GPUs together).

    Raises
    ------
    UsageError
        See `kv_layer_bytes`.
    """
    return sum(row.total for row in kv_layer_bytes(geometry, layout))


def kv_bytes_per_token_per_gpu(geometry: Geometry, layout: str, attention_tp: int) -> int:
    """Bytes of one token on each of ``attention_tp`` GPUs that share its attention.

    MLA and DSA: every GPU stores the whole. GQA: kv_heads / attention_tp heads, at least one (then heads
    are replicated).

    Raises
    ------
    UsageError
        ``attention_tp`` and the KV heads do not divide each other; see also `kv_layer_bytes`.
    """
    if geometry.is_latent:
        return kv_bytes_per_token(geometry, layout)
    heads = geometry.kv_heads
    if heads % attention_tp and attention_tp % heads:
        raise UsageError(
            f"{geometry.name} has {heads} KV heads, which {attention_tp} GPUs cannot share evenly; choose a "
            f"tensor-parallel size that divides {heads} or is a multiple of it"
        )
    stored = max(1, heads // attention_tp)
    return sum(row.total for row in kv_layer_bytes(geometry, layout, kv_heads=stored))
