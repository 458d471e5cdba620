"""Code that the "read" rules of `equipoise.quant.explain` rest on, as `ast.unparse` writes it.

Each fragment must be in the source of the rule's symbol, or in that of the symbol given before it.
"""

from equipoise.quant.explain.rules import RULES

_FLASH = "layers/attention/flashattention_backend.py"
_MODEL_OPT = "layers/quantization/modelopt_quant.py"

#: rule -> (file, symbol, fragment); "" for the rule's own file or symbol
PINS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "scale-method": (
        ("", "", "elif isinstance(layer, RadixAttention): return Fp8KVCacheMethod(self)"),
        (
            _MODEL_OPT,
            "ModelOptQuantConfig._get_quant_method",
            "self.kv_cache_quant_algo and isinstance(layer, RadixAttention): return ModelOptFp8KVCacheMethod",
        ),
        (
            "layers/quantization/compressed_tensors/compressed_tensors.py",
            "CompressedTensorsConfig.get_quant_method",
            "if isinstance(layer, RadixAttention): if self.kv_cache_scheme is None: return None",
        ),
        (
            "layers/radix_attention.py",
            "RadixAttention.__init__",
            "self.quant_method = quant_config.get_quant_method(self, prefix=prefix)",
        ),
    ),
    "scheme-no-config": (
        ("", "", "model_config.quantization == 'modelopt_mixed' and ('quantized_layers' not in"),
        ("", "", "if not modelopt_mixed_config_incomplete:"),
        (
            "configs/model_config.py",
            "ModelConfig._parse_quant_hf_config",
            "elif os.path.exists(os.path.join(self.model_path, 'hf_quant_config.json'))",
        ),
    ),
    "scale-names-mla": (
        ("", "", "name = name.replace(f'{scale[0]}_proj', 'attn_mqa')"),
        ("", "", "logger.warning(f'{name} not found in params_dict.') continue"),
    ),
    "scale-names-glm4-moe-lite": (
        ("", "", "name = name.replace('_proj', 'attn_mqa')"),
        ("", "", "if name not in params_dict: continue"),
    ),
    "json-flashinfer": (
        ("", "", "k_scale=layer.k_scale_float, v_scale=layer.v_scale_float"),
        (
            "layers/attention/flashinfer_backend.py",
            "FlashInferAttnBackend._kv_write_scales",
            "return (layer.k_scale, layer.v_scale)",
        ),
    ),
    "json-triton": (
        ("", "", "k_descale = layer.k_scale_float v_descale = layer.v_scale_float"),
        ("../kernels/ops/attention/decode_attention.py", "decode_attention_fwd", "sm_scale * k_scale"),
    ),
    "gqa-write": (("", "", "if cache_k.dtype != self.dtype: if k_scale is not None: cache_k.div_(k_scale)"),),
    "gqa-flashinfer": (("", "", "k_scale=layer.k_scale_float, v_scale=layer.v_scale_float"),),
    "gqa-triton": (
        (
            "",
            "",
            "if layer.k_scale is not None and layer.v_scale is not None: k_descale = layer.k_scale_float",
        ),
    ),
    "torch-native-unscaled": (("", "", "self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc("),),
    "mla-fa3": (
        ("", "", "kv_cache = self.token_to_kv_pool.get_key_buffer(layer.layer_id).to(q.dtype)"),
        (_FLASH, "FlashAttentionBackend.prepare_paged_mha_query", "layer.head_dim <= 256"),
    ),
    "mla-flashinfer": (
        ("", "", "k_buffer = self.token_to_kv_pool.get_key_buffer(layer.layer_id).to(q.dtype)"),
    ),
    "mla-flashmla": (
        ("", "", "descale_k = layer.k_scale.reshape(1)"),
        ("", "", "self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc.for_batch(forward_batch), k, v)"),
    ),
    "mla-triton": (
        ("", "", "k.div_(layer.k_scale)"),
        (
            "models/deepseek_common/attention_forward_methods/forward_mha.py",
            "DeepseekMHAForwardMixin._set_mla_kv_buffer",
            "set_mla_kv_buffer(",
        ),
    ),
    "dsa-trtllm": (("", "", "bmm1_scale = q_scale * k_scale * layer.scaling"),),
    "dsa-own-scales": (("", "", "quantize_k_cache_separate(cache_k_nope, cache_k_rope)"),),
    "draft-glm4-moe": (("", "", "self.decoder = Glm4MoeDecoderLayer("),),
    "nvfp4-blackwell": (("", "", "'nvfp4' and (not (get_platform().is_sm100 or get_platform().is_sm120))"),),
    "layout-gqa": (
        ("mem_cache/memory_pool.py", "MHATokenToKVPool._create_buffers_normal", "dtype=self.store_dtype"),
    ),
    "fa3-hardware": (("", "", "assert major == 8 and (not runner.use_mla_backend) or major == 9"),),
    "hpc-ops-dtypes": (
        ("", "", "if model_runner.kv_cache_dtype not in (torch.bfloat16, torch.float8_e4m3fn)"),
    ),
    "e5m2-query": (("", "", "scaled_fp8_quant(reshape_q_2d, q_scale)"),),
    "gqa-prefill-fresh": (
        ("", "", "layer.qk_head_dim), k.contiguous() if self.dllm_attention is None else k, v.contiguous()"),
        (
            "layers/attention/flashinfer_backend.py",
            "FlashInferAttnBackend.forward_extend",
            "if self.forward_metadata.extend_no_prefix: o = self.prefill_wrapper_ragged.forward(",
        ),
    ),
}


def pins_of(rule_id: str) -> list[tuple[str, str, str]]:
    rule = RULES[rule_id]
    return [(file or rule.file, symbol or rule.symbol, fragment) for file, symbol, fragment in PINS[rule_id]]
