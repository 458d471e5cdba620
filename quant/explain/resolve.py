"""What SGLang makes of the arguments: KV dtype, attention backends, layout, page size."""

from dataclasses import dataclass

from equipoise.quant.explain.arguments import ServerArguments
from equipoise.quant.explain.backends import forced_page_size
from equipoise.quant.explain.declared import DeclaredKV
from equipoise.quant.explain.hardware import Hardware
from equipoise.quant.geometry import Geometry

__all__ = ["Resolved", "resolve"]

# SGLang's list (arg_groups/model_overrides/deepseek_v2.py), as far as these models go.
DEEPSEEK_FAMILY = (
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "KimiK25ForConditionalGeneration",
    "GlmMoeDsaForCausalLM",
)
_FP8_WORDS = ("fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """``kv_cache_word`` is SGLang's word, ``kv_cache_dtype`` what is stored ("bf16" for both spellings).

    ``whole`` is ``--attention-backend`` after resolution; ``fell_back`` the one it replaced, "" if none.
    """

    kv_cache_word: str
    kv_cache_dtype: str
    why_dtype: str
    dtype_rule: str
    whole: str
    prefill: str
    decode: str
    backend_rules: tuple[str, ...]
    fell_back: str
    dsa_prefill: str
    dsa_decode: str
    layout: str
    layout_rule: str
    page_size: int
    page_size_by: str

    @property
    def is_fp8(self) -> bool:
        return self.kv_cache_dtype in _FP8_WORDS


def resolve(
    geometry: Geometry, declared: DeclaredKV, args: ServerArguments, hardware: Hardware, model_dtype: str
) -> Resolved:
    """Resolve in SGLang's order; nothing is refused here."""
    dsa = geometry.attention == "dsa"
    word, dtype, why, rule = _dtype(geometry, declared, args, hardware, model_dtype)
    whole, prefill, decode, rules, fell_back = _backends(geometry, args, hardware)
    # The argument's word: what auto becomes by the checkpoint is known only after the backends are.
    if whole == "fa3" and args.kv_cache_dtype == "fp8_e5m2" and not hardware.is_cpu:
        fell_back = "fa3"
        prefill = args.prefill_attention_backend or "triton"
        decode = args.decode_attention_backend or "triton"
        whole, rules = "triton", (*rules, "fa3-e5m2")
    dsa_prefill, dsa_decode = (
        _dsa_kernels(args, hardware, dtype) if dsa and whole in ("dsa", "nsa") else ("", "")
    )
    layout, layout_rule = _layout(geometry, args, hardware, dtype, dsa_prefill, dsa_decode)
    page_size, by = (args.page_size or 1, "")
    if not hardware.is_cpu:
        page_size, by = forced_page_size(
            attention=geometry.attention,
            prefill=prefill,
            decode=decode,
            whole=whole,
            asked=args.page_size,
            latent=geometry.is_latent,
            sm100=hardware.is_sm100,
        )
    return Resolved(
        kv_cache_word=word,
        kv_cache_dtype=dtype,
        why_dtype=why,
        dtype_rule=rule,
        whole=whole,
        prefill=prefill,
        decode=decode,
        backend_rules=rules,
        fell_back=fell_back,
        dsa_prefill=dsa_prefill,
        dsa_decode=dsa_decode,
        layout=layout,
        layout_rule=layout_rule,
        page_size=page_size,
        page_size_by=by,
    )


def _dtype(
    geometry: Geometry, declared: DeclaredKV, args: ServerArguments, hardware: Hardware, model_dtype: str
) -> tuple[str, str, str, str]:
    """SGLang's word, the stored dtype, why, and the rule."""
    asked = args.kv_cache_dtype
    if geometry.attention == "dsa" and not hardware.is_cpu and asked in ("auto", "bf16"):
        if asked == "bf16":
            return "bfloat16", "bf16", "as asked", "kv-explicit"
        if hardware.is_sm100:
            return "fp8_e4m3", "fp8_e4m3", "auto, for DSA models on Blackwell", "dsa-auto"
        return "bfloat16", "bf16", "auto, for DSA models on Hopper", "dsa-auto"
    if asked == "auto":
        if declared.is_fp8:
            return (
                "fp8_e4m3",
                "fp8_e4m3",
                f"auto, as the checkpoint declares it ({declared.scheme})",
                "kv-auto",
            )
        return "auto", model_dtype, "auto: the model's dtype", "kv-auto"
    return asked, "bf16" if asked == "bfloat16" else asked, "as asked", "kv-explicit"


def _backends(
    geometry: Geometry, args: ServerArguments, hardware: Hardware
) -> tuple[str, str, str, tuple[str, ...], str]:
    """--attention-backend, prefill and decode as resolved; the rules; nothing fell back yet."""
    rules: tuple[str, ...] = ()
    if hardware.is_cpu:
        return "torch_native", "torch_native", "torch_native", ("cpu-reference",), ""
    prefill, decode, whole = (
        args.prefill_attention_backend,
        args.decode_attention_backend,
        args.attention_backend,
    )
    if whole is None and prefill is None and decode is None:
        if geometry.attention == "dsa":
            whole, rules = "dsa", ("backend-dsa",)
        elif geometry.is_latent and hardware.is_sm100 and geometry.architecture in DEEPSEEK_FAMILY:
            whole, rules = "trtllm_mla", ("backend-deepseek-sm100",)
    if whole is None and args.enable_deterministic_inference:
        whole, rules = _deterministic_default(geometry, hardware), ("deterministic-backend",)
    if prefill is not None and prefill == decode:
        whole = prefill
    if whole is None:
        whole = _default(geometry, args, hardware)
        rules = ("backend-mla" if geometry.is_latent else "backend-gqa",)
    if prefill is None and "cutedsl_mla" in (whole, decode):
        prefill, rules = "trtllm_mla", (*rules, "cutedsl-mla")
    return whole, prefill or whole, decode or whole, rules, ""


def _default(geometry: Geometry, args: ServerArguments, hardware: Hardware) -> str:
    topk = args.speculative_eagle_topk
    if geometry.is_latent:
        return "fa3" if hardware.is_hopper else "flashinfer"
    if topk is not None and not (topk == 1 and args.page_size in (None, 1)):
        return "flashinfer"
    if hardware.is_hopper:
        return "fa3"
    # SM100 wants to know topk where there is speculation; it is filled in later, so unset means flashinfer.
    return "trtllm_mha" if args.speculative_algorithm is None or topk is not None else "flashinfer"


def _deterministic_default(geometry: Geometry, hardware: Hardware) -> str:
    if not hardware.is_sm100:
        return "fa3"
    return "triton" if geometry.is_latent else "flashinfer"


def _dsa_kernels(args: ServerArguments, hardware: Hardware, dtype: str) -> tuple[str, str]:
    if dtype in _FP8_WORDS:
        prefill = decode = "trtllm" if hardware.is_sm100 else "flashmla_kv"
    else:
        prefill, decode = "flashmla_sparse", "trtllm" if hardware.is_sm100 else "fa3"
    return args.dsa_prefill_backend or prefill, args.dsa_decode_backend or decode


def _layout(  # noqa: PLR0917
    geometry: Geometry,
    args: ServerArguments,
    hardware: Hardware,
    dtype: str,
    dsa_prefill: str,
    dsa_decode: str,
) -> tuple[str, str]:
    if hardware.is_cpu and args.kv_layout is not None:
        return args.kv_layout, "cpu-layout"
    if not geometry.is_latent:
        return ("fp8_flat" if dtype in _FP8_WORDS else dtype), "layout-gqa"
    if dtype not in _FP8_WORDS:
        return dtype, "layout-mla"
    if geometry.attention != "dsa" or hardware.is_cpu:
        return "fp8_flat", "layout-mla"
    readers = {
        "prefill": (dsa_prefill,),
        "decode": (dsa_decode,),
    }.get(args.disaggregation_mode, (dsa_prefill, dsa_decode))
    if "trtllm" in readers or (dsa_prefill, dsa_decode) == ("tilelang", "tilelang"):
        return "fp8_flat", "layout-dsa-raw"
    return "ds656", "layout-dsa-656"
