"""What becomes of the scales that a server has: on write, on read, from a file, in a draft model."""

import math

from equipoise.quant.explain.context import Context
from equipoise.quant.explain.model import Finding, layer_ranges
from equipoise.quant.explain.scale_json import read_scale_file
from equipoise.quant.explain.scales import LayerScales

__all__ = ["declared_findings", "draft_findings", "json_findings", "use_findings"]


def declared_findings(context: Context, layers: dict[int, LayerScales]) -> list[Finding]:
    """A KV scheme of the quantization config that does not count, or has no tensors."""
    declared, resolved = context.declared, context.resolved
    if not declared.known:
        return [
            Finding(
                kind="note",
                rule="scale-method",
                message=f"quantization {declared.method!r} is not described here: whether it brings KV "
                "scales or an FP8 cache is not known",
            )
        ]
    if declared.dropped:
        meant = context.args.kv_cache_dtype == "auto" or resolved.is_fp8
        return [
            Finding(
                kind="ignored" if meant else "note",
                rule=declared.rule,
                message=f"the checkpoint declares a quantized KV cache ({declared.scheme}), which does not "
                f"count: {declared.dropped}",
                remedy="say --kv-cache-dtype, and calibrate with one static, symmetric E4M3 scale a tensor",
            )
        ]
    if not declared.is_fp8:
        return []
    if not resolved.is_fp8:
        return [
            Finding(
                kind="note",
                rule="kv-explicit",
                message=f"the checkpoint declares an FP8 KV cache ({declared.scheme}); this server stores "
                f"{resolved.kv_cache_dtype}",
            )
        ]
    target = [s for i, s in layers.items() if i < context.geometry.num_layers]
    if context.tensors is None or any(s.k_tensor or s.v_tensor for s in target) or context.tensors:
        return []
    harmless = context.geometry.is_latent and context.args.kv_cache_dtype != "auto"
    return [
        Finding(
            kind="note" if harmless else "wrong",
            rule="scale-initial",
            message=f"the checkpoint declares an FP8 KV cache ({declared.scheme}) but has no scale tensors: "
            "the cache is FP8 at scale 1.0",
            remedy="" if harmless else "calibrate, or say --kv-cache-dtype and mean scale 1.0",
        )
    ]


def use_findings(  # noqa: PLR0911  one return for each case
    context: Context, layers: dict[int, LayerScales]
) -> list[Finding]:
    """Loaded scales other than 1.0 against what the backends do with them."""
    resolved, uses = context.resolved, context.uses
    odd = tuple(
        i
        for i, s in layers.items()
        if not s.asserts and (s.k_tensor or s.v_tensor) and (s.k, s.v) != (1.0, 1.0)
    )
    if not odd or not uses:
        return []
    where = f"layers {layer_ranges(odd)}"
    if not resolved.is_fp8:
        reading = [u for u in uses if u.reads_bf16]
        if reading and not context.geometry.is_latent and resolved.kv_cache_dtype in ("bf16", "float16"):
            return [
                Finding(
                    kind="wrong",
                    rule=reading[0].rules[-1],
                    message=f"{where} have scales other than 1.0, and {context.backends} multiplies by them "
                    f"when it reads the {resolved.kv_cache_dtype} cache, which was stored without them",
                    remedy="serve this arm from a checkpoint without KV scales, or with fa3 or trtllm_mha",
                )
            ]
        return []
    if context.hardware.is_cpu and context.args.kv_layout is not None:
        message = f"{where} have scales other than 1.0, and layout {resolved.layout} brings its own: refused"
        remedy = "drop --kv-layout, or the k_scale tensors"
        return [Finding(kind="crash", rule="cpu-layout", message=message, remedy=remedy)]
    if context.geometry.is_latent:
        return [_latent(context, where)]
    if all(not u.on_write and not u.on_read for u in uses):
        return [
            Finding(
                kind="ignored",
                rule=uses[0].rules[-1],
                message=f"{where} have scales other than 1.0, and {context.backends} uses none",
                remedy="choose a backend that applies KV scales",
            )
        ]
    if resolved.kv_cache_dtype != "fp8_e5m2":
        return []
    unread = [u for u in uses if u.e5m2_unread]
    return [
        Finding(
            kind="wrong",
            rule=unread[0].rules[-1] if unread else "kv-explicit",
            message=f"{where} have scales other than 1.0 in an fp8_e5m2 cache, "
            + ("which are applied on write only" if unread else "whose range needs no scales made for E4M3"),
            remedy="use fp8_e4m3 with these scales, or fp8_e5m2 without",
        )
    ]


def _latent(context: Context, where: str) -> Finding:
    multiplied = any(u.on_read for u in context.uses)
    rules = [r for u in context.uses for r in u.rules if r != "mla-write"]
    return Finding(
        kind="wrong" if multiplied and not context.hardware.is_cpu else "crash" if multiplied else "ignored",
        rule=rules[-1],
        message=f"{where} have MLA scales other than 1.0, but "
        + (
            "the CPU server refuses them"
            if context.hardware.is_cpu
            else f"the cache is written at scale 1 and {context.backends} multiplies by them when it reads"
            if multiplied
            else f"{context.backends} uses none"
        ),
        remedy="remove the k_scale tensors, or set them to exactly 1.0",
    )


def json_findings(  # noqa: PLR0911  one return for each case
    context: Context,
) -> tuple[list[Finding], dict[int, float]]:
    """``--quantization-param-path``: findings, and the scales that layers really get from it."""
    path, family, resolved = context.args.quantization_param_path, context.family, context.resolved
    if path is None:
        return [], {}
    if context.args.kv_cache_dtype != "fp8_e4m3":
        return [
            Finding(
                kind="ignored" if resolved.is_fp8 else "note",
                rule="json-only-e4m3",
                message=f"{path} is not read: --kv-cache-dtype is {context.args.kv_cache_dtype}",
                remedy="say --kv-cache-dtype fp8_e4m3" if resolved.is_fp8 else "",
            )
        ], {}
    if family is None:
        message = f"whether {context.geometry.architecture} takes {path} is not known here"
        return [Finding(kind="note", rule="json-models", message=message)], {}
    if not family.reads_json:
        return [
            Finding(
                kind="crash",
                rule="json-models",
                message=f"{family.architecture} takes no scales from a file: the launch ends with a "
                "RuntimeError",
                remedy="remove --quantization-param-path",
            )
        ], {}
    file = read_scale_file(
        path,
        model_type=context.model_type,
        num_layers=context.geometry.num_layers,
        tp_size=context.args.tp_size,
    )
    if file.error:
        return [
            Finding(
                kind="ignored",
                rule="json-schema",
                message=f"{path} {file.error}: SGLang logs an error and runs every layer at 1.0",
                remedy="correct the file",
            )
        ], {}
    found = []
    if file.bad:
        found.append(
            Finding(
                kind="wrong",
                rule="json-unchecked",
                message=f"{path}: the scale of layers {layer_ranges(file.bad)} is not finite and positive, "
                "and is used as it is",
                remedy="calibrate these layers again",
            )
        )
    if context.loads_scales:
        found.append(
            Finding(
                kind="crash",
                rule="json-parameter",
                message=f"{path} cannot be assigned: the {context.declared.method} config gave the layers "
                "scale parameters (TypeError at launch)",
                remedy="put the scales into the checkpoint instead",
            )
        )
        return found, {}
    scales = {i: s for i, s in file.scales.items() if math.isfinite(s)}
    broken = next((u for u in context.uses if u.json != "applied"), None)
    if broken is not None:
        crash = broken.json == "crash"
        found.append(
            Finding(
                kind="crash" if crash else "wrong",
                rule=broken.json_rule,
                message=f"{path} gives plain numbers, with which {context.backends} "
                + ("fails at the first step" if crash else "stores scaled values and reads them unscaled"),
                remedy="put the scales into the checkpoint instead",
            )
        )
    return found, scales


def draft_findings(context: Context, layers: dict[int, LayerScales]) -> list[Finding]:
    """A speculative draft has a KV cache and scales of its own."""
    dtype = context.args.speculative_draft_kv_cache_dtype or context.resolved.kv_cache_dtype
    if not context.speculates or not dtype.startswith("fp8"):
        return []
    if not context.drafts_with_mtp:
        return [
            Finding(
                kind="note",
                rule="draft-dtype",
                message=f"the draft model {context.args.speculative_draft_model_path} stores its KV cache "
                f"in {dtype} too: explain it by itself",
            )
        ]
    first = context.geometry.num_layers
    calibrated = any((s.k, s.v) != (1.0, 1.0) for i, s in layers.items() if i < first)
    bare = tuple(i for i, s in layers.items() if i >= first and not (s.k_tensor or s.v_tensor))
    if not bare:
        return []
    rule = "draft-glm4-moe" if context.geometry.architecture == "Glm4MoeForCausalLM" else "draft-dtype"
    return [
        Finding(
            kind="wrong" if calibrated else "note",
            rule=rule,
            message=f"the MTP layer {layer_ranges(bare)} has no scales and stores its FP8 cache at 1.0"
            + (
                ", the model's own layers at calibrated scales: drafts are accepted less often"
                if calibrated
                else ""
            ),
            remedy="calibrate the MTP layer too, or say --speculative-draft-kv-cache-dtype bf16"
            if calibrated
            else "",
        )
    ]
