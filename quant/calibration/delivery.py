"""How KV scales reach SGLang 0.5.23, or why they do not: tensor names, config, JSON; pure.

The facts are those of ``equipoise.quant.explain``; its tests hold them against the installed package.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.evals.errors import CheckpointError
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.explain.families import FAMILIES
from equipoise.quant.geometry import Geometry

__all__ = ["Delivery", "attention_prefixes", "delivery_of", "quantization_config", "scale_json"]

KV_CACHE_SCHEME: Mapping[str, Any] = {
    "type": "float",
    "num_bits": 8,
    "strategy": "tensor",
    "symmetric": True,
    "dynamic": False,
    "observer": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """``k_suffix`` and ``v_suffix`` follow ``...layers.N.self_attn``.

    ``tensors_loaded``: whether SGLang takes scale tensors of this architecture to its attention;
    None for an architecture that is not known here. ``reads_json``: whether it takes
    --quantization-param-path. ``unit_only``: any scale but exactly 1 would be wrong.
    """

    architecture: str
    k_suffix: str
    v_suffix: str
    tensors_loaded: bool | None
    reads_json: bool
    unit_only: bool
    note: str


def delivery_of(geometry: Geometry) -> Delivery:
    """What SGLang's class for this architecture does with scales."""
    family = FAMILIES.get(geometry.architecture)
    names = family.names if family is not None else None
    if geometry.is_latent:
        k_suffix, v_suffix = ".attn_mqa.k_scale", ".attn_mqa.v_scale"
    elif names == "literal":
        k_suffix, v_suffix = ".attn.k_scale", ".attn.v_scale"
    else:
        k_suffix, v_suffix = ".k_proj.k_scale", ".v_proj.v_scale"
    if geometry.is_latent:
        note = (
            "MLA: the scale stays exactly 1. SGLang 0.5.23 writes this cache at scale 1 and multiplies by "
            "k_scale when it reads it, so any other scale would change what attention reads."
        )
    elif names is None:
        note = (
            f"{geometry.architecture} is not among the architectures known here: whether SGLang loads these "
            "scales shows in `equipoise quant explain` and in the server's log."
        )
    elif names == "none":
        note = (
            f"SGLang 0.5.23 never loads scale tensors of {geometry.architecture} (its attention gets no "
            "quantization config): that server runs at scale 1 whatever is written here."
        )
        if family is not None and family.reads_json:
            note += " It does read --quantization-param-path."
    else:
        note = "SGLang 0.5.23 loads these scale tensors and applies them on write and on read."
    return Delivery(
        architecture=geometry.architecture,
        k_suffix=k_suffix,
        v_suffix=v_suffix,
        tensors_loaded=None if names is None else names != "none",
        reads_json=family is not None and family.reads_json,
        unit_only=geometry.is_latent,
        note=note,
    )


_ATTENTION = re.compile(r"^(?P<prefix>.*\blayers\.)(?P<layer>\d{1,6})\.self_attn\.")


def attention_prefixes(checkpoint: Checkpoint, num_layers: int) -> tuple[str, ...]:
    """``...layers.N.self_attn`` for each layer, as the checkpoint's own tensors are named.

    Raises
    ------
    CheckpointError
        No prefix, or more than one, has attention tensors in all layers.
    """
    layers: dict[str, set[int]] = {}
    for name in checkpoint.tensors:
        if found := _ATTENTION.match(name):
            layers.setdefault(found["prefix"], set()).add(int(found["layer"]))
    wanted = set(range(num_layers))
    # MTP layers follow the model's own; a vision tower has layers too, but not as many.
    complete = [p for p, seen in layers.items() if wanted <= seen and not re.search(r"vis(ion|ual)|tower", p)]
    if len(complete) != 1:
        raise CheckpointError(
            f"{checkpoint.path}: {len(complete)} sets of {num_layers} attention layers are named "
            "...layers.N.self_attn, one is needed; this type of checkpoint cannot take scales here"
        )
    return tuple(f"{complete[0]}{i}.self_attn" for i in range(num_layers))


def quantization_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The whole config.json with an FP8 KV cache declared, so that KV dtype "auto" becomes FP8.

    compressed-tensors (and BF16, where it is new) gets ``kv_cache_scheme``; quant_method fp8 reads
    ``kv_cache_quant_algo`` instead; any other method is left as it is, and needs --kv-cache-dtype.
    """
    changed = dict(config)
    nested = config.get("text_config")
    section = changed
    if (
        "quantization_config" not in config
        and isinstance(nested, Mapping)
        and "quantization_config" in nested
    ):
        section = changed["text_config"] = dict(nested)
    declared = section.get("quantization_config")
    if declared is None:
        section["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": "dense",
            "quantization_status": "compressed",
            "config_groups": {},
            "ignore": [],
            "kv_cache_scheme": dict(KV_CACHE_SCHEME),
        }
        return changed
    method = declared.get("quant_method")
    if method == "compressed-tensors":
        section["quantization_config"] = {**declared, "kv_cache_scheme": dict(KV_CACHE_SCHEME)}
        return changed
    if method == "fp8":
        section["quantization_config"] = {**declared, "kv_cache_quant_algo": "FP8"}
        return changed
    return changed


def scale_json(model_type: str, scales: Sequence[tuple[float, float]], *, tp_size: int) -> dict[str, Any]:
    """The file of ``--quantization-param-path``: one number a layer, the larger of K's and V's.

    The larger one clips nothing that either would keep; what it costs is precision of small values.
    """
    layers = {str(i): max(k, v) for i, (k, v) in enumerate(scales)}
    return {
        "model_type": model_type,
        "kv_cache": {
            "dtype": "float8_e4m3fn",
            "scaling_factor": {str(rank): dict(layers) for rank in range(tp_size)},
        },
    }
