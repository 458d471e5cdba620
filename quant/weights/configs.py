"""What config.json says of quantized weights, written as SGLang, compressed-tensors and modelopt read it.

Pure, no torch. Checked against sglang 0.5.23 (``layers/quantization/fp8.py``, ``compressed_tensors/``,
``modelopt_quant.py``), compressed-tensors 0.18 and transformers 5.19.
"""

import re
from collections.abc import Mapping
from typing import Any

from equipoise.quant.weights.families import text_config_of
from equipoise.quant.weights.selection import Selection

__all__ = [
    "HF_QUANT_CONFIG",
    "hf_quant_config",
    "quantization_config",
    "quantization_of",
    "with_quantization",
    "without_quantization",
]

HF_QUANT_CONFIG = "hf_quant_config.json"


def _kept_names(selection: Selection) -> list[str]:
    return sorted(selection.kept)


def _ignore_entries(selection: Selection) -> list[str]:
    """Names for rules that name few modules, patterns for those that keep whole groups."""
    entries: list[str] = []
    rules = {rule.pattern: rule for rule in selection.rules}
    for pattern, modules in selection.matched.items():
        rule = rules.get(pattern)
        entries.extend([pattern] if rule is not None and not rule.expand else sorted(modules))
    return list(dict.fromkeys(entries))


def _weights_args(**differing: Any) -> dict[str, Any]:
    """compressed-tensors' QuantizationArgs: symmetric, static, observed by min and max."""
    return {
        "actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "observer": "minmax",
        "observer_kwargs": {}, "symmetric": True, **differing,
    }  # fmt: skip


def _compressed_tensors(
    selection: Selection, form: str, weights: dict[str, Any], activations: dict[str, Any] | None
) -> dict[str, Any]:
    group = {
        "input_activations": activations,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": form,
        "ignore": _ignore_entries(selection),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def _modelopt_excluded(selection: Selection) -> list[str]:
    """Names, and for attention and MTP layers modelopt's globs, which also match what a server fuses."""
    entries: list[str] = []
    for module in _kept_names(selection):
        if found := re.match(r"^(.*\.self_attn)\.", module):
            entries.append(found[1] + "*")
        elif found := re.match(r"^(.*\.layers\.\d+)\.", module):
            layer = found[1]
            is_mtp = int(layer.rsplit(".", 1)[1]) >= selection.traits.num_layers
            entries.append(layer + "*" if is_mtp else module)
        else:
            entries.append(module)
    return list(dict.fromkeys(entries))


def quantization_config(format_name: str, selection: Selection) -> dict[str, Any]:
    """The ``quantization_config`` of config.json for converted weights."""
    if format_name == "fp8-block":
        return {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": _kept_names(selection),
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        }
    if format_name == "mxfp8":
        return {
            "activation_scheme": "dynamic",
            "modules_to_not_convert": _kept_names(selection),
            "quant_method": "mxfp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [1, 32],
        }
    if format_name == "fp8-channel":
        activations = _weights_args(type="float", num_bits=8, strategy="token", dynamic=True, observer=None)
        weights = _weights_args(type="float", num_bits=8, strategy="channel")
        return _compressed_tensors(selection, "float-quantized", weights, activations)
    if format_name == "int4-g32":
        weights = _weights_args(type="int", num_bits=4, strategy="group", group_size=32)
        return _compressed_tensors(selection, "pack-quantized", weights, None)
    if format_name == "mxfp4":
        weights = _weights_args(
            type="float", num_bits=4, strategy="group", group_size=32, scale_dtype="torch.uint8"
        )
        return _compressed_tensors(selection, "mxfp4-pack-quantized", weights, None)
    assert format_name == "nvfp4", format_name
    return {
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"},
            }
        },
        "group_size": 16,
        "ignore": _modelopt_excluded(selection),
        "producer": {"name": "equipoise"},
        "quant_algo": "W4A16_NVFP4",
        "quant_method": "modelopt",
    }


def hf_quant_config(format_name: str, selection: Selection) -> dict[str, Any] | None:
    """modelopt's own file beside config.json, for the format that has one.

    ``W4A16_NVFP4``: the weights are NVFP4; the static activation scales that W4A4 needs come from data,
    and a conversion has none.
    """
    if format_name != "nvfp4":
        return None
    return {
        "producer": {"name": "equipoise"},
        "quantization": {
            "exclude_modules": _modelopt_excluded(selection),
            "group_size": 16,
            "kv_cache_quant_algo": None,
            "quant_algo": "W4A16_NVFP4",
        },
    }


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A config's quantization (multimodal configs keep it inside ``text_config``), or None."""
    for holder in (config, text_config_of(config)):
        for key in ("quantization_config", "compression_config"):
            found = holder.get(key)
            if isinstance(found, Mapping):
                return found
    return None


def with_quantization(config: Mapping[str, Any], quantization: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config that says so, where the family keeps it."""
    out = dict(config)
    nested = out.get("text_config")
    if isinstance(nested, Mapping):
        # Kimi K2.5 says it in text_config, transformers reads the top level: both.
        out["text_config"] = {**nested, "quantization_config": dict(quantization)}
    out["quantization_config"] = dict(quantization)
    return out


def without_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config of plain weights in BF16."""
    drop = ("quantization_config", "compression_config")
    out = {k: v for k, v in config.items() if k not in drop}
    if isinstance(nested := out.get("text_config"), Mapping):
        out["text_config"] = {k: v for k, v in nested.items() if k not in drop}
    return out
