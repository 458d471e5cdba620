"""Rules about the file of ``--quantization-param-path``."""

from equipoise.quant.explain.model import Evidence, Rule

__all__ = ["SCALE_FILE_RULES"]

_ATTENTION = "layers/attention"
_WEIGHTS = "model_loader/weight_utils.py"


def _rule(id_: str, statement: str, file: str, symbol: str, evidence: Evidence = "executed") -> Rule:
    return Rule(id=id_, statement=statement, file=file, symbol=symbol, evidence=evidence)


SCALE_FILE_RULES = (
    _rule(
        "json-models",
        "Only some model classes have load_kv_cache_scales (Llama, Mistral, Qwen2, Qwen3, dense Glm4 of "
        "those known here); with any other, --quantization-param-path ends the launch with a RuntimeError.",
        "model_executor/model_runner_components/load_model_utils.py",
        "load_kv_cache_scales",
    ),
    _rule(
        "json-only-e4m3",
        "--quantization-param-path is read only where --kv-cache-dtype itself says fp8_e4m3: not with "
        "fp8_e5m2, and not where auto becomes FP8 by the checkpoint.",
        "model_executor/model_runner_components/load_model_utils.py",
        "load_kv_cache_scales",
    ),
    _rule(
        "json-schema",
        "The file must name the model_type of the config, dtype float8_e4m3fn, exactly one map for each TP "
        "rank and in it every layer; otherwise an error is logged, all scales stay 1.0 and the server "
        "starts.",
        _WEIGHTS,
        "kv_cache_scales_loader",
    ),
    _rule(
        "json-unchecked",
        "The values are not checked: zero, negative and non-finite scales are used as they are.",
        _WEIGHTS,
        "KVCacheQuantSchema",
    ),
    _rule(
        "json-float",
        "The file's scale becomes a Python float in layer.k_scale and layer.v_scale (one for both); "
        "k_scale_float stays None.",
        "models/llama.py",
        "LlamaModel.load_kv_cache_scales",
    ),
    _rule(
        "json-parameter",
        "Where a quantization config gave the layer scale parameters, assigning the file's float to them "
        "raises a TypeError.",
        "models/llama.py",
        "LlamaModel.load_kv_cache_scales",
    ),
    _rule(
        "json-fa3",
        "FlashAttention calls layer.k_scale.expand, which a float does not have.",
        f"{_ATTENTION}/flashattention_backend.py",
        "FlashAttentionBackend.prepare_paged_mha_query",
    ),
    _rule(
        "json-flashinfer",
        "FlashInfer divides by layer.k_scale when it writes and reads with k_scale_float, which the file "
        "leaves at None: values come back without their scale.",
        f"{_ATTENTION}/flashinfer_backend.py",
        "FlashInferAttnBackend.forward_decode",
        "read",
    ),
    _rule(
        "json-triton",
        "Triton multiplies by k_scale_float, which the file leaves at None: a TypeError.",
        f"{_ATTENTION}/triton_backend.py",
        "TritonAttnBackend.forward_decode",
        "read",
    ),
    _rule(
        "json-hpc-ops",
        "HPC-Ops calls layer.k_scale.reshape, which a float does not have.",
        f"{_ATTENTION}/hpc_ops_backend.py",
        "HPCOpsAttnBackend._layer_kv_scales",
    ),
)
