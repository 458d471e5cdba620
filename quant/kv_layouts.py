"""The KV-cache layouts by name: what they fit, and what a GPU server of SGLang offers instead.

No torch here: the layouts themselves (``quant/layouts``) need it. On the CPU server ``--kv-layout NAME``
selects one; on a GPU SGLang decides, from dtype, architecture and attention backend.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from equipoise.quant.checkpoint import MAX_CONFIG_BYTES, read_json

__all__ = [
    "HEAD_AMAX_FILE",
    "KV_LAYOUT_KINDS",
    "CacheAttention",
    "KVLayoutKind",
    "cache_attention_of",
    "misfit",
    "unservable",
]

CacheAttention = Literal["gqa", "mla"]

HEAD_AMAX_FILE = "kv_head_amax.json"  # beside a checkpoint: the calibration of fp8_per_head


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayoutKind:
    """One layout. ``on_gpu`` says what SGLang offers on a GPU; it completes "On a GPU ..."."""

    name: str
    attention: CacheAttention
    description: str
    on_gpu: str
    instead: str  # the variants to take for the other kind of attention
    calibrated: bool = False  # needs HEAD_AMAX_FILE


_KINDS = (
    KVLayoutKind(
        name="fp8_per_head",
        attention="gqa",
        description="FP8 E4M3, one calibrated scale for each KV head",
        on_gpu="SGLang has one k_scale and one v_scale a layer, not a head: fp8_e4m3 is the nearest it has",
        instead="fp8_e4m3, fp8_ds656 or fp8_ds656_pow2",
        calibrated=True,
    ),
    KVLayoutKind(
        name="fp8_per_token_head",
        attention="gqa",
        description="FP8 E4M3, a scale for each token and KV head, stored beside its codes",
        on_gpu="SGLang has no such cache: fp8_e4m3 is the nearest it has",
        instead="fp8_e4m3, fp8_ds656 or fp8_ds656_pow2",
    ),
    KVLayoutKind(
        name="ds656",
        attention="mla",
        description="latent in FP8 E4M3 with an fp32 scale for each 128 values, RoPE key in BF16 (656 bytes)",
        on_gpu="SGLang stores this layout by itself for DSA models (GLM-5, DeepSeek-V3.2) with "
        "--kv-cache-dtype fp8_e4m3 (variant fp8_e4m3) and FlashMLA backends, and for no other model",
        instead="fp8_e4m3, fp8_per_head or fp8_per_token_head",
    ),
    KVLayoutKind(
        name="ds656_pow2",
        attention="mla",
        description="as ds656, scales rounded up to powers of two (what Blackwell's E8M0 can hold)",
        on_gpu="SGLang 0.5.23 writes fp32 scales that are not rounded (variant fp8_e4m3 on a DSA model)",
        instead="fp8_e4m3, fp8_per_head or fp8_per_token_head",
    ),
)
KV_LAYOUT_KINDS: dict[str, KVLayoutKind] = {kind.name: kind for kind in _KINDS}


def cache_attention_of(config: Mapping[str, Any]) -> CacheAttention:
    """Whether a model caches a latent (MLA, DSA) or K and V, from its config.json."""
    text = config.get("text_config")
    fields = text if isinstance(text, Mapping) else config
    return "mla" if fields.get("kv_lora_rank") else "gqa"


def misfit(layout: str, attention: CacheAttention) -> str:
    """Why a layout cannot hold the cache of such attention, with the remedy; empty where it can."""
    kind = KV_LAYOUT_KINDS[layout]
    if kind.attention == attention:
        return ""
    stored = {
        "gqa": "K and V for each KV head (GQA)",
        "mla": "one latent and one RoPE key for all heads (MLA)",
    }
    return (
        f"layout {layout} holds {stored[kind.attention]}, and this model caches {stored[attention]}: "
        f"choose {kind.instead}"
    )


def unservable(layout: str, model_path: str) -> str:
    """Why the CPU server would refuse this layout for a checkpoint directory; empty where it would not.

    Raises
    ------
    CheckpointError
        Its config.json cannot be read.
    """
    folder = Path(model_path)
    if not folder.is_dir():
        return ""  # a hub id: the server sees it first
    attention = cache_attention_of(read_json(folder / "config.json", max_bytes=MAX_CONFIG_BYTES))
    if reason := misfit(layout, attention):
        return reason
    if KV_LAYOUT_KINDS[layout].calibrated and not (folder / HEAD_AMAX_FILE).is_file():
        return (
            f"layout {layout} needs {HEAD_AMAX_FILE} in {folder}, the calibrated amax of every KV head: "
            "write it, or choose fp8_per_token_head, which needs no calibration"
        )
    return ""
