"""Read a model's geometry from its config.json.

Keys are those of the published configs and of the config classes of transformers 5.19. Nothing is guessed:
a key that the family needs and the file lacks is an error, and so is a file that contradicts itself.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from equipoise.evals.errors import CheckpointError
from equipoise.quant.checkpoint import MAX_CONFIG_BYTES, read_json
from equipoise.quant.geometry.fields import Fields
from equipoise.quant.geometry.indexer import index_layers
from equipoise.quant.geometry.model import Geometry
from equipoise.quant.geometry.stored import stored_weights

__all__ = ["FAMILIES", "load_geometry"]

_MLA: Final = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2")
_GQA_DENSE: Final = ("glm4", "llama", "mistral", "qwen2", "qwen3")
_GQA_MOE: Final = ("glm4_moe", "glm4v_moe_text", "qwen2_moe", "qwen3_moe")
_DSA_ONLY: Final = ("deepseek_v32", "glm_moe_dsa")
_HEAD_DIM_IN_CONFIG: Final = ("glm4", "glm4_moe", "glm4v_moe_text", "qwen3", "qwen3_moe")
FAMILIES: Final = tuple(sorted((*_MLA, *_GQA_DENSE, *_GQA_MOE)))

# Vision tower of kimi_k25 models: the model card's figure ("Parameters of Vision Encoder: 400M"); tensors
# and projector of vision_config add up to 471 M.
_KIMI_K25_VISION_PARAMETERS: Final = 400_000_000


def load_geometry(source: str | PathLike[str] | Mapping[str, Any], *, name: str | None = None) -> Geometry:
    """The geometry of a checkpoint folder, a config.json, or a config already read.

    Parameters
    ----------
    source
        Folder, file or mapping; multimodal configs are unwrapped (``text_config``).
    name
        How messages and outputs call it; None takes the folder's name.

    Raises
    ------
    CheckpointError
        Unreadable, an unknown ``model_type``, a needed key that is missing or not of its kind, or keys
        that contradict each other. Names file, key and remedy.
    """
    if isinstance(source, Mapping):
        config, where, title = source, "config", name or "config"
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        config, where = read_json(path, max_bytes=MAX_CONFIG_BYTES), str(path)
        title = name or path.resolve().parent.name
    text = config.get("text_config")
    if text is not None and not isinstance(text, Mapping):
        raise CheckpointError(f"{where}: text_config is not an object; download the file again")
    fields = Fields(text if text is not None else config, where, "text_config." if text is not None else "")
    if text is not None:
        _agree(config, text, where)
    family = fields.text("model_type")
    if family not in FAMILIES:
        raise CheckpointError(
            f"{where}: {fields.prefix}model_type {family!r} is not known here; "
            f"give a model of one of {', '.join(FAMILIES)}"
        )
    _full_attention_only(fields)
    vision = _vision_parameters(config)
    weights = stored_weights(config, fields.values)
    return Geometry(
        name=title,
        family=family,
        architecture=_architecture(config, fields),
        vocab_size=fields.integer("vocab_size"),
        max_position=fields.integer("max_position_embeddings"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.layers(),
        num_mtp_layers=fields.integer("num_nextn_predict_layers", minimum=0, default=0),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
        vision_parameters=vision or 0,
        weights="other" if vision is None else weights,
        source=where,
        **(_latent(fields, family) if family in _MLA else _grouped(fields, family)),
        **_experts(fields, family),
    )


def _agree(config: Mapping[str, Any], text: Mapping[str, Any], where: str) -> None:
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "kv_lora_rank"):
        if key in config and key in text and config[key] != text[key]:
            raise CheckpointError(
                f"{where}: {key} is {config[key]!r}, but text_config.{key} is {text[key]!r}; they describe "
                "one model: correct the one that contradicts the weights"
            )


def _architecture(config: Mapping[str, Any], fields: Fields) -> str:
    for owner in (config, fields.values):
        names = owner.get("architectures")
        if isinstance(names, list) and names and isinstance(names[0], str):
            return names[0]
    return ""


def _vision_parameters(config: Mapping[str, Any]) -> int | None:
    """0 for a text model, None for a tower whose size is not known here."""
    if config.get("vision_config") is None:
        return 0
    return _KIMI_K25_VISION_PARAMETERS if config.get("model_type") == "kimi_k25" else None


def _full_attention_only(fields: Fields) -> None:
    windowed = fields.flag("use_sliding_window", default="use_sliding_window" not in fields.values)
    if windowed and fields.values.get("sliding_window") is not None:
        fields.fail("sliding_window", "is set, and a cache with a window is not described here")
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return
    if not isinstance(kinds, list) or len(kinds) != fields.layers():
        fields.fail("layer_types", "is not a list of one kind for each of num_hidden_layers layers")
    for kind in kinds:
        if kind not in ("full_attention", "indexed_attention"):
            fields.fail("layer_types", f"has {kind!r}, whose cache is not described here")


def _latent(fields: Fields, family: str) -> dict[str, Any]:
    nope, rope = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
    head_dim = fields.integer("qk_head_dim", default=nope + rope)
    if head_dim != nope + rope:
        fields.fail("qk_head_dim", f"is {head_dim}, but qk_nope_head_dim + qk_rope_head_dim = {nope + rope}")
    heads = fields.integer("num_attention_heads")
    found: dict[str, Any] = {
        "attention": "mla",
        "heads": heads,
        "kv_heads": fields.integer("num_key_value_heads", default=heads),
        "head_dim": head_dim,
        "v_head_dim": fields.integer("v_head_dim"),
        "q_lora_rank": fields.integer("q_lora_rank", nullable=True),
        "kv_lora_rank": fields.integer("kv_lora_rank"),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
    }
    if family in _DSA_ONLY or fields.values.get("index_topk") is not None:
        index_head_dim = fields.integer("index_head_dim")
        if index_head_dim % 128:
            fields.fail("index_head_dim", f"is {index_head_dim}; the indexer scales 128 values together")
        found |= {
            "attention": "dsa",
            "index_heads": fields.integer("index_n_heads"),
            "index_head_dim": index_head_dim,
            "index_topk": fields.integer("index_topk"),
            "index_layers": index_layers(fields),
        }
    return found


def _grouped(fields: Fields, family: str) -> dict[str, Any]:
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        fields.fail("num_key_value_heads", f"is {kv_heads}, which does not divide {heads} attention heads")
    if fields.values.get("head_dim") is None and family not in _HEAD_DIM_IN_CONFIG:
        if hidden % heads:
            fields.fail("num_attention_heads", f"is {heads}, which does not divide hidden_size {hidden}")
        head_dim = hidden // heads
    else:
        head_dim = fields.integer("head_dim")
    if fields.values.get("kv_lora_rank") is not None:
        fields.fail("kv_lora_rank", f"is set, but {family} models have no latent attention")
    return {
        "attention": "gqa",
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "v_head_dim": head_dim,
    }


def _experts(fields: Fields, family: str) -> dict[str, Any]:
    layers = fields.layers()
    if family in _GQA_DENSE:
        return {"dense_layers": layers}
    key = "num_experts" if family.startswith("qwen") else "n_routed_experts"
    experts = fields.integer(key, minimum=0, nullable=True)
    if experts == 0:
        return {"dense_layers": layers}
    chosen = fields.integer("num_experts_per_tok")
    if chosen > experts:
        fields.fail("num_experts_per_tok", f"is {chosen}, more than the {experts} of {key}")
    size = fields.integer("moe_intermediate_size")
    if family == "qwen2_moe":
        shared = fields.integer("shared_expert_intermediate_size")
    else:
        shared = size * fields.integer("n_shared_experts", minimum=0, default=0, nullable=True)
    return {
        "dense_layers": _dense_layers(fields, family, layers),
        "experts": experts,
        "experts_per_token": chosen,
        "moe_intermediate_size": size,
        "shared_intermediate_size": shared,
    }


def _dense_layers(fields: Fields, family: str, layers: int) -> int:
    if family.startswith("qwen"):
        step = fields.integer("decoder_sparse_step", default=1)
        plain = fields.values.get("mlp_only_layers") or []
        if not isinstance(plain, list) or not all(type(i) is int and 0 <= i < layers for i in plain):
            fields.fail("mlp_only_layers", f"is not a list of layers below {layers}")
        return sum(1 for i in range(layers) if i in plain or (i + 1) % step)
    kinds = fields.values.get("mlp_layer_types")
    listed: int | None = None
    if kinds is not None:
        if (
            not isinstance(kinds, list)
            or len(kinds) != layers
            or any(k not in ("dense", "sparse") for k in kinds)
        ):
            fields.fail("mlp_layer_types", f"is not a list of {layers} times 'dense' or 'sparse'")
        listed = kinds.count("dense")
    first = fields.integer("first_k_dense_replace", minimum=0, default=listed)
    if first > layers:
        fields.fail("first_k_dense_replace", f"is {first}, more than the {layers} layers")
    if listed is not None and listed != first:
        fields.fail("first_k_dense_replace", f"is {first}, but mlp_layer_types names {listed} dense layers")
    step = fields.integer("moe_layer_freq", default=1)
    return sum(1 for i in range(layers) if i < first or i % step)
