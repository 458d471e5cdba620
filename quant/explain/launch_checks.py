"""What stops a launch, what is overridden, and what a reader of the results should know."""

from equipoise.quant.explain.backends import DETERMINISTIC, NOT_DETERMINISTIC_MLA
from equipoise.quant.explain.context import Context
from equipoise.quant.explain.model import Finding
from equipoise.quant.kv_layouts import KV_LAYOUT_KINDS, misfit

__all__ = ["evidence_notes", "launch_findings", "storage_of"]

_MLA_ONLY = ("trtllm_mla", "cutedsl_mla", "flashmla")
_GQA_ONLY = ("trtllm_mha", "hpc_ops")
_PREFILL_BUCKET = 8192  # tokens: the largest captured prefill of an MLA model


def launch_findings(context: Context) -> list[Finding]:
    """What ends the launch, and what is overridden."""
    found = (
        _cpu_layout(context)
        if context.hardware.is_cpu
        else [*_cpu_only(context), *_dtype(context), *_backends(context), *_deterministic(context)]
    )
    return [*found, *_page_size(context), *_other(context)]


def _crash(rule: str, message: str, remedy: str) -> Finding:
    return Finding(kind="crash", rule=rule, message=message, remedy=remedy)


def _cpu_layout(context: Context) -> list[Finding]:
    """The CPU server takes every dtype of the variants; a layout must fit."""
    layout = context.args.kv_layout
    if layout is None:
        return []
    if layout not in KV_LAYOUT_KINDS:
        message = f"the CPU server has no layout {layout!r}"
        return [_crash("cpu-layout", message, f"choose one of {', '.join(KV_LAYOUT_KINDS)}")]
    if reason := misfit(layout, "mla" if context.geometry.is_latent else "gqa"):
        return [_crash("cpu-layout", reason, "")]
    return []


def _cpu_only(context: Context) -> list[Finding]:
    given = {"--kv-control": context.args.kv_control, "--kv-layout": context.args.kv_layout}
    return [
        _crash("cpu-only", f"{flag} {value} is no flag of a GPU server", "use a variant without it")
        for flag, value in given.items()
        if value is not None
    ]


def _dtype(context: Context) -> list[Finding]:
    args, hardware, resolved = context.args, context.hardware, context.resolved
    asked = args.kv_cache_dtype
    found = []
    if asked == "mxfp8" and not hardware.is_sm100:
        found.append(_crash("mxfp8-blackwell", f"mxfp8 does not run on {hardware.name}", "use fp8_e4m3"))
    if asked in ("nvfp4",) and not hardware.is_sm100:
        found.append(_crash("nvfp4-blackwell", f"nvfp4 does not run on {hardware.name}", "use fp8_e4m3"))
    if context.geometry.attention == "dsa" and resolved.kv_cache_dtype not in ("bf16", "fp8_e4m3"):
        found.append(
            _crash("dsa-dtypes", f"DSA models do not take {resolved.kv_cache_dtype}", "use fp8_e4m3 or bf16")
        )
    return found


def _backends(context: Context) -> list[Finding]:
    args, hardware, resolved, latent = (
        context.args,
        context.hardware,
        context.resolved,
        context.geometry.is_latent,
    )
    used = (resolved.prefill, resolved.decode)
    asked, word = args.kv_cache_dtype, resolved.kv_cache_word
    found = []
    for name in dict.fromkeys(used):
        if (name in _MLA_ONLY and not latent) or (name in _GQA_ONLY and latent):
            kind = "MLA" if latent else "GQA"
            found.append(
                _crash("backend-attention", f"{name} does not serve {kind} models", "choose another backend")
            )
    if "fa3" in used and hardware.sm > 90:
        found.append(
            _crash("fa3-hardware", f"fa3 does not run on {hardware.name}", "leave the backend to SGLang")
        )
    if "trtllm_mla" in (resolved.whole, resolved.decode):
        if not hardware.is_sm100:
            message = f"trtllm_mla does not run on {hardware.name}"
            found.append(_crash("trtllm-mla-hardware", message, "leave the backend to SGLang"))
        elif word not in ("fp8_e4m3", "bf16", "auto"):
            remedy = "say bf16" if asked == "bfloat16" else "use fp8_e4m3, or another backend"
            found.append(_crash("trtllm-mla-dtypes", f"trtllm_mla refuses the KV dtype {word}", remedy))
    if "cutedsl_mla" in (resolved.whole, *used) and (
        args.prefill_attention_backend == "cutedsl_mla" or not hardware.is_sm100 or asked == "fp8_e5m2"
    ):
        message = f"cutedsl_mla does not run so (prefill {resolved.prefill}, {asked}, {hardware.name})"
        found.append(_crash("cutedsl-mla", message, "use it for decode on SM100 with fp8_e4m3 or bf16"))
    if "hpc_ops" in used and resolved.kv_cache_dtype not in ("bf16", "fp8_e4m3"):
        message = f"hpc_ops refuses the KV dtype {resolved.kv_cache_dtype}"
        found.append(_crash("hpc-ops-dtypes", message, "use fp8_e4m3 or bf16"))
    if not resolved.is_fp8:
        return found
    if "fa4" in used:
        found.append(
            _crash(
                "fa4-fp8",
                "fa4 needs keys of the query's dtype and gets an FP8 cache",
                "use fa3 or trtllm_mha",
            )
        )
    if "flashmla" in used and resolved.kv_cache_dtype == "fp8_e5m2":
        message = "flashmla gives its kernel an E4M3 query over an E5M2 cache"
        found.append(Finding(kind="wrong", rule="e5m2-query", message=message, remedy="use fp8_e4m3"))
    if resolved.fell_back:
        explicit = resolved.fell_back in (args.attention_backend, args.prefill_attention_backend)
        found.append(
            Finding(
                kind="ignored" if explicit else "note",
                rule="fa3-e5m2",
                message=f"{resolved.fell_back} does not read fp8_e5m2: SGLang takes triton instead, a "
                "different kernel from that of a BF16 or E4M3 arm",
                remedy="use fp8_e4m3, or triton in every arm" if explicit else "",
            )
        )
    return found


def _deterministic(context: Context) -> list[Finding]:
    if not context.args.enable_deterministic_inference:
        return []
    whole, latent = context.resolved.whole, context.geometry.is_latent
    if whole in DETERMINISTIC and not (latent and whole in NOT_DETERMINISTIC_MLA):
        return []
    return [
        _crash(
            "deterministic-backend",
            f"--enable-deterministic-inference refuses {whole}",
            "say --attention-backend " + ("fa3" if context.hardware.is_hopper else "triton"),
        )
    ]


def _page_size(context: Context) -> list[Finding]:
    asked, resolved = context.args.page_size, context.resolved
    if asked is None or asked == resolved.page_size:
        return []
    return [
        Finding(
            kind="ignored",
            rule={"dsa": "backend-dsa", "fa4": "page-size-fa4"}.get(resolved.page_size_by, "page-size"),
            message=f"--page-size {asked} becomes {resolved.page_size}, for {resolved.page_size_by}",
            remedy=f"say --page-size {resolved.page_size} in every arm, so that prefixes are shared alike",
        )
    ]


def _other(context: Context) -> list[Finding]:
    found = []
    if storage := storage_of(context):
        found.append(
            Finding(
                kind="note",
                rule="hicache-key",
                message=f"KV pages go to shared storage ({storage}) under keys without KV dtype: no other "
                "arm may use it",
            )
        )
    return found


def storage_of(context: Context) -> str:
    """Names the storage and key space of this server's KV pages, alike for servers that share them."""
    args = context.args
    if not args.enable_hierarchical_cache or args.hicache_storage_backend is None:
        return ""
    extra = args.storage_config
    place = extra.get("file_storage_path") or extra.get("extra_backend_tag") or ""
    if args.hicache_storage_backend == "file" and not place:
        place = "/tmp/hicache"  # noqa: S108  SGLang's default, named, not used
    name = args.served_model_name or args.model_path or context.geometry.name
    ranks = "" if context.geometry.is_latent else f", tp {args.tp_size}"
    return f"{args.hicache_storage_backend} {place}, model {name}{ranks}".replace(" ,", ",")


def evidence_notes(context: Context) -> list[Finding]:
    """What a score or a logprob of this server does and does not say about its FP8 cache."""
    resolved = context.resolved
    if not resolved.is_fp8 or context.hardware.is_cpu:
        return []
    notes = []
    if context.geometry.attention == "mla":
        notes += _mla_prefill(context)
    elif (
        context.geometry.attention == "gqa"
        and resolved.prefill in ("triton", "flashinfer")
        and not context.args.enable_deterministic_inference
    ):
        notes.append(
            Finding(
                kind="note",
                rule="gqa-prefill-fresh",
                message=f"{resolved.prefill} prefill reads the FP8 cache for a cached prefix only: "
                "log-likelihoods of fresh prompts do not see it",
            )
        )
    notes.append(
        Finding(
            kind="note",
            rule="logprob-start",
            message="requests with input logprobs reuse a cached prefix up to logprob_start_len only",
        )
    )
    return notes


def _mla_prefill(context: Context) -> list[Finding]:
    fresh = (
        "an MLA prefill without a cached prefix attends to its own K and V, not to the FP8 latent: plain "
        "log-likelihoods do not see the cache, answers do"
    )
    args = context.args
    largest = min(
        _PREFILL_BUCKET, args.chunked_prefill_size or _PREFILL_BUCKET, args.max_total_tokens or 2**31
    )
    off = (
        args.disable_cuda_graph
        or args.disable_prefill_cuda_graph
        or args.cuda_graph_backend_prefill == "disabled"
        or args.enable_two_batch_overlap
        or args.dcp_size > 1
    ) and args.cuda_graph_backend_prefill not in ("breakable", "full")
    if off:
        return [Finding(kind="note", rule="prefill-fresh", message=fresh)]
    unlocked = args.cuda_graph_backend_prefill is None
    trtllm = (
        context.geometry.architecture == "DeepseekV3ForCausalLM" and context.resolved.prefill == "trtllm_mla"
    )
    if unlocked and (trtllm or args.pp_size > 1 or args.disaggregation_mode == "decode"):
        return [
            Finding(kind="note", rule="prefill-graph-off", message=f"no prefill graphs are captured: {fresh}")
        ]
    return [
        Finding(
            kind="note",
            rule="prefill-graph",
            message=f"prefill batches of up to {largest:,} tokens are captured and read the FP8 latent; "
            "larger ones without a cached prefix attend to their own K and V: log-likelihoods of long "
            "prompts see less of the cache than answers do",
        )
    ]
