"""How a checkpoint stores its linear layers, from its config."""

from collections.abc import Mapping
from typing import Any

__all__ = ["stored_weights"]


def stored_weights(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """One of our names of weight formats, or "other".

    Multimodal checkpoints keep ``quantization_config`` in either place.
    """
    for owner in (config, text):
        quantization = owner.get("quantization_config") or owner.get("compression_config")
        if isinstance(quantization, Mapping):
            return _quantized(quantization)
    for owner in (text, config):
        dtype = owner.get("dtype") or owner.get("torch_dtype")
        if dtype is not None:
            return "bf16" if dtype in ("bfloat16", "float16") else "other"
    return "bf16"


def _quantized(config: Mapping[str, Any]) -> str:
    method = config.get("quant_method")
    if method == "compressed-tensors":
        return _compressed_tensors(config.get("config_groups"))
    if method == "fp8" and config.get("weight_block_size") == [128, 128]:
        return "fp8-block"
    if method in ("modelopt", "modelopt_fp4", None) and config.get("quant_algo") == "NVFP4":
        return "nvfp4"
    return "other"


def _compressed_tensors(groups: object) -> str:
    """One group of symmetric weights of a kind we know; mixed schemes are "other"."""
    if not isinstance(groups, Mapping) or len(groups) != 1:
        return "other"
    (group,) = groups.values()
    scheme = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(scheme, Mapping) or scheme.get("symmetric") is not True:
        return "other"
    match scheme.get("type"), scheme.get("num_bits"), scheme.get("strategy"), scheme.get("group_size"):
        case "int", 4, "group", 32:
            return "int4-g32"
        case "float", 8, "channel", _:
            return "fp8-channel"
        case "float", 8, "block", _:
            return "fp8-block"
    return "other"
