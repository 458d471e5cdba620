"""Rules about KV scales: which are loaded, which are used."""

from equipoise.quant.explain.model import Evidence, Rule

__all__ = ["SCALE_RULES"]


def _rule(id_: str, statement: str, file: str, symbol: str, evidence: Evidence = "executed") -> Rule:
    return Rule(id=id_, statement=statement, file=file, symbol=symbol, evidence=evidence)


_QUANT = "layers/quantization"
_ATTENTION = "layers/attention"
_WEIGHTS = "model_loader/weight_utils.py"

_LOADING = (
    _rule(
        "scale-method",
        "An attention layer has scales only if a quantization config gives it a KV-cache method: "
        "quant_method fp8 and mxfp8 always, compressed-tensors with a kv_cache_scheme that counts, modelopt "
        "with a KV algorithm. A BF16 checkpoint has none, so its k_scale tensors are not loaded.",
        f"{_QUANT}/fp8.py",
        "Fp8Config.get_quant_method",
        "read",
    ),
    _rule(
        "scale-initial",
        "Scales start at -1; where both are still <= 0 after loading, both become 1.0.",
        f"{_QUANT}/kv_cache.py",
        "BaseKVCacheMethod.process_weights_after_loading",
    ),
    _rule(
        "scale-copied",
        "A k_scale without a v_scale is used for both.",
        f"{_QUANT}/kv_cache.py",
        "BaseKVCacheMethod.process_weights_after_loading",
    ),
    _rule(
        "scale-v-alone",
        "A v_scale without a k_scale, or a k_scale that is not a number, fails an assertion at launch.",
        f"{_QUANT}/kv_cache.py",
        "BaseKVCacheMethod.process_weights_after_loading",
    ),
    _rule(
        "scale-unchecked",
        "The value of a positive scale is not checked: infinity is accepted.",
        f"{_QUANT}/kv_cache.py",
        "BaseKVCacheMethod.process_weights_after_loading",
    ),
    _rule(
        "scale-per-tensor",
        "A scale is one number a layer; a tensor with more values fails an assertion when it is loaded.",
        _WEIGHTS,
        "default_weight_loader",
    ),
    _rule(
        "scale-names",
        "k_proj.k_scale, v_proj.v_scale, self_attn.k_scale, kv_scale and k_proj.output_scale are renamed to "
        "attn.k_scale and attn.v_scale; a name that then fits nothing is skipped with one warning.",
        _WEIGHTS,
        "maybe_remap_kv_scale_name",
    ),
    _rule(
        "scale-names-mla",
        "DeepSeek-type models rename k_proj.k_scale to attn_mqa.k_scale, and nothing else: self_attn.k_scale "
        "is skipped with a warning.",
        "models/deepseek_common/deepseek_weight_loader.py",
        "DeepseekV2WeightLoaderMixin.do_load_weights",
        "read",
    ),
    _rule(
        "scale-names-glm4-moe-lite",
        "Glm4MoeLite replaces '_proj' by 'attn_mqa' in k_proj.k_scale, which gives kattn_mqa.k_scale, fits "
        "nothing and is skipped without a word; only attn_mqa.k_scale itself is loaded.",
        "models/glm4_moe_lite.py",
        "Glm4MoeLiteForCausalLM.load_weights",
        "read",
    ),
    _rule(
        "scale-names-literal",
        "Qwen2 and dense Glm4 rename no scales: only attn.k_scale and attn.v_scale themselves are loaded.",
        "models/qwen2.py",
        "Qwen2ForCausalLM._legacy_load_weights",
    ),
    _rule(
        "no-scales-glm4-moe",
        "Glm4Moe (GLM-4.5 to 4.7) builds its attention without quant_config: no checkpoint scale is loaded.",
        "models/glm4_moe.py",
        "Glm4MoeAttention.__init__",
    ),
    _rule(
        "no-scales-qwen3",
        "Qwen3 and Qwen3Moe build their attention without quant_config: no checkpoint scale is loaded.",
        "models/qwen3.py",
        "Qwen3Attention.__init__",
    ),
)

_GQA = (
    _rule(
        "gqa-write",
        "GQA pools store x / scale where the pool's dtype is not the model's, and x as it is otherwise.",
        "mem_cache/memory_pool.py",
        "MHATokenToKVPool.set_kv_buffer",
        "read",
    ),
    _rule(
        "gqa-fa3",
        "FlashAttention reads a GQA cache with k_descale and v_descale = the layer's scales, and casts q to "
        "the cache's dtype at scale 1 (head_dim up to 256).",
        f"{_ATTENTION}/flashattention_backend.py",
        "FlashAttentionBackend.prepare_paged_mha_query",
    ),
    _rule(
        "gqa-flashinfer",
        "FlashInfer passes k_scale_float and v_scale_float whatever the cache's dtype: a BF16 cache of a "
        "checkpoint with scales is multiplied by scales it was never divided by.",
        f"{_ATTENTION}/flashinfer_backend.py",
        "FlashInferAttnBackend.forward_decode",
        "read",
    ),
    _rule(
        "gqa-triton",
        "Triton passes k_scale_float and v_scale_float whatever the cache's dtype: a BF16 cache of a "
        "checkpoint with scales is multiplied by scales it was never divided by.",
        f"{_ATTENTION}/triton_backend.py",
        "TritonAttnBackend.forward_decode",
        "read",
    ),
    _rule(
        "gqa-trtllm-mha",
        "TRT-LLM MHA reads with the scales only where the cache is fp8_e4m3; an fp8_e5m2 cache is written "
        "divided and read at scale 1.",
        f"{_ATTENTION}/trtllm_mha_backend.py",
        "TRTLLMHAAttnBackend._get_bmm_scales",
    ),
    _rule(
        "gqa-hpc-ops",
        "HPC-Ops writes and reads with the layer's scales.",
        f"{_ATTENTION}/hpc_ops_backend.py",
        "HPCOpsAttnBackend._layer_kv_scales",
    ),
    _rule(
        "torch-native-unscaled",
        "Stock torch_native and flex_attention neither divide when they write nor multiply when they read.",
        f"{_ATTENTION}/torch_native_backend.py",
        "TorchNativeAttnBackend.forward_decode",
        "read",
    ),
)

_MLA = (
    _rule(
        "mla-write",
        "MLA pools cast the latent and the RoPE key to FP8 as they are: their write takes no scale.",
        "mem_cache/memory_pool.py",
        "MLATokenToKVPool.set_kv_buffer",
    ),
    _rule(
        "mla-fa3",
        "FlashAttention casts the layer's whole MLA pool to the query's dtype in every step and passes no "
        "descale (its head_dim of 576 is over 256): scales have no effect, and FP8 saves memory, not "
        "traffic.",
        f"{_ATTENTION}/flashattention_backend.py",
        "FlashAttentionBackend.forward_decode",
        "read",
    ),
    _rule(
        "mla-flashinfer",
        "FlashInfer MLA casts the layer's whole pool to the query's dtype in every step: scales have no "
        "effect.",
        f"{_ATTENTION}/flashinfer_mla_backend.py",
        "FlashInferMLAAttnBackend.forward_decode",
        "read",
    ),
    _rule(
        "mla-flashmla",
        "FlashMLA passes k_scale as descale_k and quantizes q with it, over a cache written at scale 1.",
        f"{_ATTENTION}/flashmla_backend.py",
        "FlashMLABackend.forward_decode",
        "read",
    ),
    _rule(
        "mla-trtllm",
        "TRT-LLM MLA and CuteDSL multiply the logits by k_scale over a cache written at scale 1.",
        f"{_ATTENTION}/trtllm_mla_backend.py",
        "TRTLLMMLABackend._compute_decode_bmm1_scale",
    ),
    _rule(
        "mla-triton",
        "Triton divides k by k_scale when decode writes to an MLA pool and multiplies when it reads, but a "
        "prefill through K and V (forward_mha) writes at scale 1.",
        f"{_ATTENTION}/triton_backend.py",
        "TritonAttnBackend.forward_decode",
        "read",
    ),
    _rule(
        "dsa-trtllm",
        "DSA with the trtllm kernel multiplies the logits by k_scale over a cache written at scale 1.",
        f"{_ATTENTION}/dsa_backend.py",
        "DeepseekSparseAttnBackend._forward_trtllm",
        "read",
    ),
    _rule(
        "dsa-own-scales",
        "The 656-byte layout carries a scale for each 128 values of every token; checkpoint scales have no "
        "effect on it.",
        "mem_cache/memory_pool.py",
        "MLATokenToKVPool._write_mla_kv_buffer",
        "read",
    ),
    Rule(
        id="cpu-reference",
        statement="The CPU server of this project writes x / scale and reads x * scale in float32, and "
        "refuses an MLA scale that is not 1.",
        file="quant/sglang/backend.py",
        symbol="ReferenceAttentionBackend",
        evidence="executed",
    ),
)

_CPU = (
    Rule(
        id="cpu-layout",
        statement="--kv-layout stores the CPU server's cache in a layout with scales of its own, and refuses "
        "scales of the checkpoint beside them.",
        file="quant/sglang/backend.py",
        symbol="ReferenceAttentionBackend",
        evidence="executed",
    ),
    Rule(
        id="cpu-only",
        statement="--kv-control and --kv-layout are flags of this project's CPU server.",
        file="quant/sglang/arguments.py",
        symbol="split_layout",
        evidence="executed",
    ),
)

_DRAFT = (
    _rule(
        "draft-glm4-moe",
        "GLM-4.5 to 4.7's MTP layer is a Glm4Moe layer: it runs at scale 1.0 like the rest.",
        "models/glm4_moe_nextn.py",
        "Glm4MoeModelNextN.__init__",
        "read",
    ),
    _rule(
        "draft-dtype",
        "The draft model's cache has the target's dtype unless --speculative-draft-kv-cache-dtype says "
        "otherwise, and its scales come from its own layer of the checkpoint.",
        "mem_cache/kv_cache_dtype.py",
        "configure_kv_cache_dtype",
    ),
)

SCALE_RULES: tuple[Rule, ...] = (*_LOADING, *_GQA, *_MLA, *_CPU, *_DRAFT)
