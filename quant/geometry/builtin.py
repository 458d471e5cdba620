"""Geometries of the models that Equipoise is made for: no hub, no download.

Values are those of the published config.json of each model, cross-checked with the config classes of
transformers 5.19 whose defaults they are (``GlmMoeDsaConfig``: GLM-5; ``Glm4MoeLiteConfig``: GLM-4.7-Flash;
``Glm4MoeConfig``: GLM-4.5-Air) and with the parameter counts that the model cards state.
"""

from dataclasses import replace

from equipoise.evals.errors import UsageError
from equipoise.quant.geometry.indexer import scheduled_index_layers
from equipoise.quant.geometry.model import Geometry

__all__ = ["BUILTIN", "find_builtin"]


def _hub(model: str) -> str:
    return f"https://huggingface.co/{model}/blob/main/config.json"


_KIMI_K2 = Geometry(
    name="kimi-k2",
    family="kimi_k2",
    architecture="DeepseekV3ForCausalLM",
    attention="mla",
    num_layers=61,
    dense_layers=1,
    hidden_size=7168,
    heads=64,
    kv_heads=64,
    head_dim=192,
    v_head_dim=128,
    vocab_size=163_840,
    max_position=131_072,
    intermediate_size=18_432,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    experts=384,
    experts_per_token=8,
    moe_intermediate_size=2048,
    shared_intermediate_size=2048,
    weights="fp8-block",
    source=_hub("moonshotai/Kimi-K2-Instruct"),
)
_KIMI_K2_THINKING = replace(
    _KIMI_K2,
    name="kimi-k2-thinking",
    max_position=262_144,
    weights="int4-g32",
    source=_hub("moonshotai/Kimi-K2-Thinking"),
)
_KIMI_K25 = replace(
    _KIMI_K2_THINKING,
    name="kimi-k2.5",
    architecture="KimiK25ForConditionalGeneration",
    vision_parameters=400_000_000,  # as the model card states it
    source=_hub("moonshotai/Kimi-K2.5") + " (text_config); vision tower: model card",
)
_KIMI_K26 = replace(
    _KIMI_K25,
    name="kimi-k2.6",
    source=_hub("moonshotai/Kimi-K2.6") + " (text_config); vision tower: model card",
)

_GLM_45 = Geometry(
    name="glm-4.5",
    family="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    attention="gqa",
    num_layers=92,
    dense_layers=3,
    hidden_size=5120,
    heads=96,
    kv_heads=8,
    head_dim=128,
    v_head_dim=128,
    vocab_size=151_552,
    max_position=131_072,
    intermediate_size=12_288,
    experts=160,
    experts_per_token=8,
    moe_intermediate_size=1536,
    shared_intermediate_size=1536,
    num_mtp_layers=1,
    source=_hub("zai-org/GLM-4.5"),
)
_GLM_45_AIR = replace(
    _GLM_45,
    name="glm-4.5-air",
    num_layers=46,
    dense_layers=1,
    hidden_size=4096,
    intermediate_size=10_944,
    experts=128,
    moe_intermediate_size=1408,
    shared_intermediate_size=1408,
    source=_hub("zai-org/GLM-4.5-Air"),
)
_GLM_46 = replace(_GLM_45, name="glm-4.6", max_position=202_752, source=_hub("zai-org/GLM-4.6"))
_GLM_47 = replace(_GLM_46, name="glm-4.7", source=_hub("zai-org/GLM-4.7"))
_GLM_47_FLASH = Geometry(
    name="glm-4.7-flash",
    family="glm4_moe_lite",
    architecture="Glm4MoeLiteForCausalLM",
    attention="mla",
    num_layers=47,
    dense_layers=1,
    hidden_size=2048,
    heads=20,
    kv_heads=20,
    head_dim=256,
    v_head_dim=256,
    vocab_size=154_880,
    max_position=202_752,
    intermediate_size=10_240,
    q_lora_rank=768,
    kv_lora_rank=512,
    qk_nope_head_dim=192,
    qk_rope_head_dim=64,
    experts=64,
    experts_per_token=4,
    moe_intermediate_size=1536,
    shared_intermediate_size=1536,
    num_mtp_layers=1,
    source=_hub("zai-org/GLM-4.7-Flash"),
)
_GLM_5 = Geometry(
    name="glm-5",
    family="glm_moe_dsa",
    architecture="GlmMoeDsaForCausalLM",
    attention="dsa",
    num_layers=78,
    dense_layers=3,
    hidden_size=6144,
    heads=64,
    kv_heads=64,
    head_dim=256,
    v_head_dim=256,
    vocab_size=154_880,
    max_position=202_752,
    intermediate_size=12_288,
    q_lora_rank=2048,
    kv_lora_rank=512,
    qk_nope_head_dim=192,
    qk_rope_head_dim=64,
    index_heads=32,
    index_head_dim=128,
    index_topk=2048,
    index_layers=tuple(range(78)),
    experts=256,
    experts_per_token=8,
    moe_intermediate_size=2048,
    shared_intermediate_size=2048,
    num_mtp_layers=1,
    source=_hub("zai-org/GLM-5"),
)
_GLM_51 = replace(_GLM_5, name="glm-5.1", source=_hub("zai-org/GLM-5.1"))
_GLM_52 = replace(
    _GLM_5,
    name="glm-5.2",
    max_position=1_048_576,
    index_layers=scheduled_index_layers(78, freq=4, offset=3),
    source=_hub("zai-org/GLM-5.2"),
)
_SMOLLM2 = Geometry(
    name="smollm2-135m",
    family="llama",
    architecture="LlamaForCausalLM",
    attention="gqa",
    num_layers=30,
    dense_layers=30,
    hidden_size=576,
    heads=9,
    kv_heads=3,
    head_dim=64,
    v_head_dim=64,
    vocab_size=49_152,
    max_position=8192,
    intermediate_size=1536,
    tie_word_embeddings=True,
    source=_hub("HuggingFaceTB/SmolLM2-135M-Instruct"),
)


def _fp8(model: Geometry, hub: str, weights: str) -> Geometry:
    return replace(model, name=f"{model.name}-fp8", weights=weights, source=_hub(hub))


BUILTIN: dict[str, Geometry] = {
    g.name: g
    for g in (
        _KIMI_K2,
        _KIMI_K2_THINKING,
        _KIMI_K25,
        _KIMI_K26,
        _GLM_45,
        _GLM_45_AIR,
        _GLM_46,
        _GLM_47,
        _GLM_47_FLASH,
        _GLM_5,
        _GLM_51,
        _GLM_52,
        _fp8(_GLM_45, "zai-org/GLM-4.5-FP8", "fp8-channel"),
        _fp8(_GLM_45_AIR, "zai-org/GLM-4.5-Air-FP8", "fp8-channel"),
        _fp8(_GLM_46, "zai-org/GLM-4.6-FP8", "fp8-channel"),
        _fp8(_GLM_47, "zai-org/GLM-4.7-FP8", "fp8-channel"),
        _fp8(_GLM_5, "zai-org/GLM-5-FP8", "fp8-block"),
        _fp8(_GLM_51, "zai-org/GLM-5.1-FP8", "fp8-block"),
        _fp8(_GLM_52, "zai-org/GLM-5.2-FP8", "fp8-block"),
        _SMOLLM2,
    )
}


def find_builtin(name: str) -> Geometry:
    """A built-in geometry by name, in any case and with or without its organization: ``zai-org/GLM-4.6``.

    Raises
    ------
    UsageError
        Unknown; lists the known ones.
    """
    key = name.rpartition("/")[2].lower()
    key = {"kimi-k2-instruct": "kimi-k2", "smollm2-135m-instruct": "smollm2-135m"}.get(key, key)
    try:
        return BUILTIN[key]
    except KeyError:
        raise UsageError(
            f"no built-in geometry {name!r}; give a folder with config.json, embedded:NAME, or one of "
            f"{', '.join(BUILTIN)}"
        ) from None
