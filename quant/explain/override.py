"""``--json-model-override-args``, laid over config.json as SGLang lays it.

``get_config`` of ``utils/hf_transformers/config.py`` (0.5.23): the config is read first; then a sub-config
is updated key by key, one level deep, so are ``rope_scaling`` and ``rope_parameters``, and any other value
is replaced whole.
"""

import json
from collections.abc import Mapping
from typing import Any

from equipoise.evals.errors import UsageError

__all__ = ["ALIASES", "changes", "overridden", "parse_override"]

FLAG = "--json-model-override-args"
_SUB_CONFIGS = ("text_config", "vision_config")
_ROPE = ("rope_scaling", "rope_parameters")
_SHOWN = 60  # characters of a value

_OF_DEEPSEEK = {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"}
#: model_type -> second names of attributes in its config class (transformers' ``attribute_map``)
ALIASES: dict[str, dict[str, str]] = {
    "deepseek_v2": {"num_experts": "n_routed_experts"},
    "deepseek_v3": _OF_DEEPSEEK,
    "deepseek_v32": _OF_DEEPSEEK,
    "glm4_moe": _OF_DEEPSEEK,
    "glm4_moe_lite": {"num_local_experts": "n_routed_experts", "head_dim": "qk_rope_head_dim"},
    "glm4v_moe_text": {"num_local_experts": "n_routed_experts"},
    "glm_moe_dsa": {"num_local_experts": "n_routed_experts"},
    "kimi_k2": _OF_DEEPSEEK,
    # The other way round in the class; configs on disk say num_experts.
    "qwen3_moe": {"num_local_experts": "num_experts"},
}


def parse_override(text: str) -> dict[str, Any]:
    """The object that the flag gives; of a repeated key the last counts, as in SGLang.

    Raises
    ------
    UsageError
        Not JSON, or not an object: SGLang ends with an error, or passes over it (null, 0, an empty list).
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UsageError(
            f"{FLAG} is not JSON ({e}); give an object in quotes of the shell, such as "
            f"{FLAG} '{{\"num_hidden_layers\": 4}}'"
        ) from e
    if not isinstance(value, dict):
        raise UsageError(f"{FLAG} is a JSON {_kind(value)}, not an object of keys of config.json")
    return value


def overridden(config: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config with the override over it."""
    out = _as_read(config)
    for key, value in _named(override, out).items():
        held = out.get(key)
        if isinstance(value, Mapping) and isinstance(held, Mapping) and key in _SUB_CONFIGS:
            out[key] = {**held, **_named(value, held)}
        elif isinstance(value, Mapping) and isinstance(held, Mapping) and key in _ROPE:
            out[key] = {**held, **value}
        else:
            out[key] = value
    return out


def changes(config: Mapping[str, Any], override: Mapping[str, Any]) -> tuple[str, ...]:
    """What it changes: ``num_hidden_layers 61 -> 4``, ``text_config.no_such_key (not in config.json) 1``."""
    told: list[str] = []
    before = _as_read(config)
    for key, value in _named(override, before).items():
        held = before.get(key)
        if isinstance(value, Mapping) and isinstance(held, Mapping) and key in (*_SUB_CONFIGS, *_ROPE):
            inner = _named(value, held) if key in _SUB_CONFIGS else value
            told += [_told(f"{key}.{k}", held, k, v) for k, v in inner.items()]
        else:
            told.append(_told(key, before, key, value))
    return tuple(told)


def _as_read(config: Mapping[str, Any]) -> dict[str, Any]:
    """SGLang's class for Kimi K2.5 takes the text model's quantization to the top when it reads the file.

    An override of ``text_config.quantization_config`` comes too late there.
    """
    out, text = dict(config), config.get("text_config")
    if config.get("model_type") == "kimi_k25" and isinstance(text, Mapping):
        found = text.get("quantization_config")
        if found is not None:
            out.setdefault("quantization_config", found)
    return out


def _named(override: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The override under the names that the config has: aliases, and dtype for torch_dtype."""
    aliases = ALIASES.get(str(over.get("model_type")), {})
    out: dict[str, Any] = {}
    for key, value in override.items():
        name = aliases.get(key, key)
        if name in ("dtype", "torch_dtype"):
            name = "dtype" if "dtype" in over or "torch_dtype" not in over else "torch_dtype"
        out[name] = value
    return out


def _told(name: str, held: Mapping[str, Any], key: str, value: Any) -> str:
    if key not in held:
        return f"{name} (not in config.json) {_short(value)}"
    return f"{name} {_short(held[key])} -> {_short(value)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _kind(value: Any) -> str:
    kinds: dict[type, str] = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
