"""Which modules of a model family stay in BF16, format by format; pure, no torch.

Patterns are compressed-tensors': ``re:`` and a regular expression matched from the start of the module's
name, or the name itself or a dotted suffix of it. Sources: the released checkpoints of Kimi K2-Thinking and
K2.5 (INT4: routed experts only), DeepSeek-V3 and GLM-5-FP8 (block: all but router, head and the indexer's
``weights_proj``), GLM-4.5-FP8 (channel), and what SGLang 0.5.23 loads (``models/deepseek_nextn.py`` and
``glm4_moe_nextn.py`` run the MTP layer of a modelopt NVFP4 checkpoint without quantization, and of every
other one with it).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from equipoise.evals.errors import CheckpointError

__all__ = ["FAMILIES", "Rule", "Traits", "rules_for", "text_config_of", "traits_of"]

MAX_COUNT = 65_536  # layers or experts; what a config claims beyond it would only cost memory
# model_type -> family
FAMILIES: dict[str, str] = {
    "kimi_k2": "kimi_k2",
    "kimi_k25": "kimi_k2",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v32": "glm_moe_dsa",
    "glm4_moe": "glm4_moe",
    "glm4_moe_lite": "glm4_moe_lite",
    "glm_moe_dsa": "glm_moe_dsa",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen2_moe": "qwen",
    "qwen3_moe": "qwen",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Modules to leave as they are.

    ``required``: it is an error if nothing matches. ``expand``: configurations list the matched names and
    not the pattern.
    """

    pattern: str
    why: str
    required: bool = True
    expand: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What of a config decides the rules."""

    family: str
    num_layers: int
    mtp_layers: int
    experts: int
    shared_experts: bool
    shared_expert_gate: bool
    dense_layers: bool
    indexer: bool
    vision: bool
    tied_head: bool

    @property
    def mtp_pattern(self) -> str:
        """Matches every module of the MTP layers, which follow the others in number."""
        numbers = "|".join(str(self.num_layers + i) for i in range(self.mtp_layers))
        return rf"re:.*\.layers\.({numbers})\..*"


def text_config_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's own config: ``text_config`` of a multimodal one."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def _count(config: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        value = config.get(key)
        if value is not None:
            if type(value) is not int or not 0 <= value <= MAX_COUNT:
                raise CheckpointError(f"config.json: {key} is {value!r}, not a count; the config is damaged")
            return value
    return 0


def traits_of(config: Mapping[str, Any]) -> Traits:
    """Read the traits.

    Raises
    ------
    CheckpointError
        A model type this project has no rules for; names those it has.
    """
    text = text_config_of(config)
    model_type = text.get("model_type") if text is not config else config.get("model_type")
    family = FAMILIES.get(str(model_type)) or FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise CheckpointError(
            f"config.json: model_type {model_type!r} has no rules here for what may be quantized; known: "
            f"{', '.join(FAMILIES)}"
        )
    experts = _count(text, "n_routed_experts", "num_experts")
    dense = _count(text, "first_k_dense_replace") if experts else 0
    is_qwen_moe = family == "qwen" and experts > 0
    shared = _count(text, "n_shared_experts") > 0 or _count(text, "shared_expert_intermediate_size") > 0
    return Traits(
        family=family,
        num_layers=_count(text, "num_hidden_layers"),
        mtp_layers=_count(text, "num_nextn_predict_layers"),
        experts=experts,
        shared_experts=shared and experts > 0,
        shared_expert_gate=is_qwen_moe and shared,
        dense_layers=dense > 0 or bool(text.get("mlp_only_layers")),
        indexer=family == "glm_moe_dsa",
        vision="vision_config" in config,
        tied_head=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
    )


def rules_for(traits: Traits, format_name: str) -> tuple[Rule, ...]:
    """The rules of a family for one format."""
    rules = [
        Rule(
            pattern="lm_head", why="output head", required=not traits.tied_head
        ),  # a suffix: language_model.lm_head too
    ]
    if traits.experts:
        rules.append(Rule(pattern=r"re:.*mlp\.gate$", why="router"))
    if traits.shared_expert_gate:
        rules.append(Rule(pattern=r"re:.*mlp\.shared_expert_gate$", why="shared expert's gate"))
    if traits.indexer:
        why = "indexer's head weights"
        rules.append(Rule(pattern=r"re:.*indexer\.weights_proj$", why=why))
    if traits.vision:
        why = "vision tower and projector"
        rules.append(Rule(pattern=r"re:.*(vision_tower|mm_projector|visual)\..*", why=why, expand=False))
    if traits.mtp_layers:
        if format_name == "nvfp4":
            rules.append(Rule(pattern=traits.mtp_pattern, why="MTP layer", expand=False))
        else:
            rules.append(Rule(pattern=r"re:.*\.eh_proj$", why="MTP input projection"))
            rules.append(Rule(pattern=r"re:.*\.shared_head\.head$", why="MTP head", required=False))
    rules.extend(_experts_only(traits, format_name))
    return tuple(rules)


def _experts_only(traits: Traits, format_name: str) -> Iterable[Rule]:
    """Four-bit formats of a MoE model leave attention alone; INT4 and MXFP4 all but the routed experts."""
    if not traits.experts or format_name not in ("int4-g32", "mxfp4", "nvfp4"):
        return
    yield Rule(pattern=r"re:.*self_attn.*", why="attention", expand=False)
    if format_name == "nvfp4":
        return
    if traits.shared_experts:
        yield Rule(pattern=r"re:.*shared_expert(s)?\..*", why="shared experts", expand=False)
    if traits.dense_layers:
        yield Rule(pattern=r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", why="dense MLP", expand=False)
