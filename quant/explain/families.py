"""Model classes of SGLang: whether their attention gets KV scales, and under which tensor names."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["FAMILIES", "Family", "ScaleNames"]

ScaleNames = Literal["remapped", "mla", "mla_literal", "literal", "none"]
"""Which checkpoint names reach the attention layer.

"remapped": ``k_proj.k_scale``, ``self_attn.k_scale``, ``kv_scale``, ``k_proj.output_scale``. "mla":
``k_proj.k_scale`` and ``attn_mqa.k_scale``. "mla_literal": ``attn_mqa.k_scale`` alone. "literal":
``attn.k_scale`` alone. "none": no name does.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One model class (``architectures[0]``).

    ``passes_quant_config``: its attention layers get the quantization config, and so a place for scales.
    ``reads_json``: it has ``load_kv_cache_scales``, which ``--quantization-param-path`` needs.
    """

    architecture: str
    file: str  # below sglang/srt
    attention_class: str
    passes_quant_config: bool
    names: ScaleNames
    reads_json: bool
    rule: str


def _mla(architecture: str, file: str) -> Family:
    return Family(
        architecture=architecture,
        file=file,
        attention_class="DeepseekV2AttentionMLA",
        passes_quant_config=True,
        names="mla",
        reads_json=False,
        rule="scale-names-mla",
    )


FAMILIES: dict[str, Family] = {
    f.architecture: f
    for f in (
        _mla("DeepseekV2ForCausalLM", "models/deepseek_v2.py"),
        _mla("DeepseekV3ForCausalLM", "models/deepseek_v2.py"),
        _mla("DeepseekV32ForCausalLM", "models/deepseek_v2.py"),
        _mla("GlmMoeDsaForCausalLM", "models/glm4_moe.py"),
        _mla("KimiK25ForConditionalGeneration", "models/kimi_k25.py"),
        Family(
            architecture="Glm4MoeLiteForCausalLM",
            file="models/glm4_moe_lite.py",
            attention_class="DeepseekV2AttentionMLA",
            passes_quant_config=True,
            names="mla_literal",
            reads_json=False,
            rule="scale-names-glm4-moe-lite",
        ),
        Family(
            architecture="Glm4MoeForCausalLM",
            file="models/glm4_moe.py",
            attention_class="Glm4MoeAttention",
            passes_quant_config=False,
            names="none",
            reads_json=False,
            rule="no-scales-glm4-moe",
        ),
        Family(
            architecture="Glm4ForCausalLM",
            file="models/glm4.py",
            attention_class="Glm4Attention",
            passes_quant_config=True,
            names="literal",
            reads_json=True,
            rule="scale-names-literal",
        ),
        Family(
            architecture="LlamaForCausalLM",
            file="models/llama.py",
            attention_class="LlamaAttention",
            passes_quant_config=True,
            names="remapped",
            reads_json=True,
            rule="scale-names",
        ),
        Family(
            architecture="MistralForCausalLM",
            file="models/llama.py",
            attention_class="LlamaAttention",
            passes_quant_config=True,
            names="remapped",
            reads_json=True,
            rule="scale-names",
        ),
        Family(
            architecture="Qwen2ForCausalLM",
            file="models/qwen2.py",
            attention_class="Qwen2Attention",
            passes_quant_config=True,
            names="literal",
            reads_json=True,
            rule="scale-names-literal",
        ),
        Family(
            architecture="Qwen3ForCausalLM",
            file="models/qwen3.py",
            attention_class="Qwen3Attention",
            passes_quant_config=False,
            names="none",
            reads_json=True,
            rule="no-scales-qwen3",
        ),
        Family(
            architecture="Qwen3MoeForCausalLM",
            file="models/qwen3_moe.py",
            attention_class="Qwen3MoeAttention",
            passes_quant_config=False,
            names="none",
            reads_json=False,
            rule="no-scales-qwen3",
        ),
    )
}
