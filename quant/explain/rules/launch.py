"""Rules about a launch: KV dtype, layout, attention backends, page size, caches shared with others."""

from equipoise.quant.explain.model import Evidence, Rule

__all__ = ["LAUNCH_RULES"]


def _rule(id_: str, statement: str, file: str, symbol: str, evidence: Evidence = "executed") -> Rule:
    return Rule(id=id_, statement=statement, file=file, symbol=symbol, evidence=evidence)


_OVERRIDES = "arg_groups/overrides.py"
_ATTENTION = "layers/attention"

_DTYPE = (
    _rule(
        "kv-auto",
        "auto is FP8 E4M3 where the model's quantization config has kv_cache_quant_algo FP8, and the model's "
        "dtype otherwise.",
        "mem_cache/kv_cache_dtype.py",
        "configure_kv_cache_dtype",
    ),
    _rule(
        "kv-explicit",
        "bf16, bfloat16, fp8_e4m3 and fp8_e5m2 are taken as given on NVIDIA GPUs.",
        "mem_cache/kv_cache_dtype.py",
        "configure_kv_cache_dtype",
    ),
    _rule(
        "scheme-compressed-tensors",
        "A compressed-tensors kv_cache_scheme counts only if type is float, num_bits 8, strategy tensor, "
        "symmetric and not dynamic; any other is dropped with a warning.",
        "layers/quantization/compressed_tensors/compressed_tensors.py",
        "CompressedTensorsKVCacheMethod.is_supported_scheme",
    ),
    _rule(
        "scheme-modelopt",
        "modelopt configs: kv_cache_scheme counts if type is float and num_bits 8 (nothing else is looked "
        "at), else kv_cache_quant_algo.",
        "layers/quantization/modelopt_quant.py",
        "ModelOptFp8Config.from_config",
    ),
    _rule(
        "scheme-fp8",
        "quant_method fp8 reads kv_cache_quant_algo alone; a kv_cache_scheme beside it is not looked at.",
        "layers/quantization/fp8.py",
        "Fp8Config.from_config",
    ),
    _rule(
        "scheme-no-config",
        "hf_quant_config.json is read only where config.json has no quantization config of its own (except "
        "modelopt_mixed).",
        "model_loader/weight_utils.py",
        "get_quant_config",
        "read",
    ),
    _rule(
        "dsa-auto",
        "DSA models: auto is fp8_e4m3 on Blackwell and bfloat16 on Hopper.",
        _OVERRIDES,
        "_dsa_kv_cache_dtype_default",
    ),
    _rule(
        "dsa-dtypes",
        "DSA models take bfloat16 and fp8_e4m3 only; another dtype fails an assertion.",
        _OVERRIDES,
        "_dsa_kv_cache_dtype_default",
    ),
    _rule(
        "mxfp8-blackwell",
        "mxfp8 needs a Blackwell GPU.",
        "arg_groups/kv_cache_hook.py",
        "handle_mxfp8_kv_cache_compatibility",
    ),
    _rule(
        "nvfp4-blackwell",
        "nvfp4 needs a Blackwell GPU.",
        "arg_groups/kv_cache_hook.py",
        "handle_kv4_compatibility",
        "read",
    ),
)

_LAYOUT = (
    _rule("layout-gqa", "K and V of every token and head, one dtype for both.",
          "mem_cache/memory_pool.py", "MHATokenToKVPool", "read"),
    _rule("layout-mla", "One latent and one RoPE key a token, in one dtype (576 values for Kimi and GLM).",
          "mem_cache/kv_cache_configurator.py", "calculate_mla_kv_cache_dim"),
    _rule("layout-dsa-656", "DSA models in fp8_e4m3: 656 bytes a token (latent fp8, four fp32 scales, RoPE "
          "key bf16), unless a kernel reads the raw layout.",
          "mem_cache/kv_cache_configurator.py", "calculate_mla_kv_cache_dim"),
    _rule("layout-dsa-raw", "DSA models in fp8_e4m3 with the trtllm kernel (Blackwell's default): 576 bytes "
          "a token, latent and RoPE key in fp8 at scale 1; of a PD pair each side looks at its own kernel.",
          "mem_cache/kv_cache_configurator.py", "calculate_mla_kv_cache_dim"),
)  # fmt: skip

_BACKENDS = (
    _rule("backend-gqa", "GQA without a chosen backend: fa3 on Hopper, trtllm_mha on SM100, flashinfer where "
          "speculation has topk > 1.",
          "arg_groups/model_override_base.py", "get_default_attn_backend"),
    _rule("backend-mla", "MLA without a chosen backend: fa3 on Hopper, flashinfer on SM100.",
          "arg_groups/model_override_base.py", "get_default_attn_backend"),
    _rule("backend-deepseek-sm100", "DeepSeek-type MLA models (Kimi too, GLM-4.7-Flash not) without a chosen "
          "backend: trtllm_mla on SM100.",
          "arg_groups/model_overrides/deepseek_v2.py", "_deepseek_family_overrides"),
    _rule("backend-dsa", "DSA models without a chosen backend: dsa, with 64 tokens a page whatever "
          "--page-size says.",
          "arg_groups/model_overrides/deepseek_v2.py", "_deepseek_family_overrides"),
    _rule("dsa-kernels", "DSA kernels: fp8 flashmla_kv on Hopper and trtllm on Blackwell; bf16 "
          "flashmla_sparse for prefill, and fa3 (Hopper) or trtllm (Blackwell) for decode.",
          _OVERRIDES, "_dsa_split_backend_resolution"),
    _rule("fa3-e5m2", "--attention-backend fa3 with fp8_e5m2 becomes triton, with a warning.",
          _OVERRIDES, "_attention_backend_fa3_fp8_fallback"),
    _rule("fa3-hardware", "fa3 runs on SM80 to SM90 only (MLA: SM90), by an assertion.",
          f"{_ATTENTION}/attention_registry.py", "create_flashattention_v3_backend", "read"),
    _rule("trtllm-mla-hardware", "trtllm_mla runs on Blackwell only.",
          _OVERRIDES, "_mla_kv_cache_dtype_checks"),
    _rule("trtllm-mla-dtypes", "trtllm_mla takes fp8_e4m3, bf16 and auto; not fp8_e5m2, nor the word "
          "bfloat16.",
          _OVERRIDES, "_mla_kv_cache_dtype_checks"),
    _rule("cutedsl-mla", "cutedsl_mla decodes only, on SM100, with fp8_e4m3, bf16, bfloat16 or auto.",
          _OVERRIDES, "_cutedsl_prefill_backend_fill"),
    _rule("backend-attention", "trtllm_mha and hpc_ops refuse MLA models; trtllm_mla and cutedsl_mla refuse "
          "others.",
          f"{_ATTENTION}/attention_registry.py", "create_trtllm_mha_backend"),
    _rule("hpc-ops-dtypes", "hpc_ops takes bfloat16 and fp8_e4m3 pools only.",
          f"{_ATTENTION}/hpc_ops_backend.py", "HPCOpsAttnBackend.__init__", "read"),
    _rule("fa4-fp8", "FA4 prefill does not cast q to an FP8 cache's dtype, and FA4 needs keys of the query's "
          "dtype.",
          f"{_ATTENTION}/flashattention_backend.py", "FlashAttentionBackend.prepare_paged_mha_query"),
    _rule("e5m2-query", "FlashMLA quantizes q to E4M3 whatever FP8 type the cache has.",
          f"{_ATTENTION}/flashmla_backend.py", "FlashMLABackend.forward_decode", "read"),
    _rule("deterministic-backend", "--enable-deterministic-inference takes fa3, fa4, flashinfer and triton "
          "only (MLA: not flashinfer), and looks after the model has chosen its backend.",
          _OVERRIDES, "_deterministic_attention_backend"),
    _rule("page-size", "Page size is forced to 64 by flashmla and hpc_ops, to 64 by trtllm_mla and "
          "cutedsl_mla unless 32, by trtllm_mha unless 16, 32 or 128, and to 128 by fa4 for GQA on SM100.",
          _OVERRIDES, "_mla_backend_page_constraints"),
    _rule("page-size-fa4", "fa4 forces 128 tokens a page for GQA on SM100.",
          _OVERRIDES, "_fa4_page_constraint"),
)  # fmt: skip

_EVIDENCE = (
    _rule("prefill-graph", "On CUDA, prefill batches of up to 8,192 tokens run in captured graphs by "
          "default, and there MLA attention is absorbed: it reads the stored latent.",
          "models/deepseek_common/attention_backend_handler.py", "_handle_attention_backend"),
    _rule("prefill-fresh", "Outside captured graphs an MLA prefill without a cached prefix attends to the "
          "chunk's own K and V, not to the stored latent (fa3 and trtllm_mla cast them to E4M3 at scale 1).",
          "models/deepseek_common/attention_backend_handler.py", "_handle_attention_backend"),
    _rule("prefill-graph-off", "DeepseekV3ForCausalLM with trtllm_mla prefill, decode-only servers and "
          "pipeline parallelism capture no prefill graphs by default.",
          "arg_groups/cuda_graph_hook.py", "disable_prefill_cuda_graph_for_deepseek_trtllm_mla"),
    _rule("gqa-prefill-fresh", "Triton, and FlashInfer without a prefix, attend to the chunk's own K and V "
          "in prefill; the stored ones are read for a cached prefix only.",
          f"{_ATTENTION}/triton_backend.py", "TritonAttnBackend.forward_extend", "read"),
    _rule("logprob-start", "A request with input logprobs reuses a cached prefix up to logprob_start_len "
    "only.",
          "managers/schedule_batch.py", "Req._compute_max_prefix_len"),
)  # fmt: skip

_SHARED = (
    _rule("pd-kv-dtype", "The decode side refuses a prefill side whose resolved KV dtype is another word: a "
          "RuntimeError at the first transfer.",
          "disaggregation/common/conn.py", "CommonKVManager.try_ensure_parallel_info"),
    _rule("pd-page-size", "The decode side refuses a prefill side with another page size.",
          "disaggregation/common/conn.py", "CommonKVManager.try_ensure_parallel_info"),
    _rule("pd-dsa-layout", "The check of a PD pair compares the words of the KV dtype; layouts are compared "
          "for DeepSeek V4 alone, so raw and 656-byte DSA pools pass it.",
          "disaggregation/utils.py", "get_pd_kv_layout"),
    _rule("hicache-key", "HiCache storage keys carry model name, TP rank and page hash, not KV dtype, "
          "layout or scales: two servers with one storage read each other's bytes.",
          "mem_cache/hicache_storage.py", "HiCacheFile.__init__"),
    _rule("capacity", "Weights and KV pool share a static fraction of each GPU's memory "
          "(--mem-fraction-static); where the weights leave nothing, the launch ends with a RuntimeError.",
          "model_executor/pool_configurator.py", "MemoryPoolConfig.__post_init__"),
    _rule("config-override", "--json-model-override-args is laid over the config as it was read, before "
          "anything is resolved: sub-configs (one level), rope_scaling and rope_parameters key by key, any "
          "other value whole.",
          "utils/hf_transformers/config.py", "get_config"),
)  # fmt: skip

LAUNCH_RULES: tuple[Rule, ...] = (*_DTYPE, *_LAYOUT, *_BACKENDS, *_EVIDENCE, *_SHARED)
