"""``explain``: what one SGLang server will do with its KV cache, before it is started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.capacity import DEFAULT_STATIC_FRACTION, Deployment, capacity_of
from equipoise.quant.checkpoint import MAX_CONFIG_BYTES, Checkpoint, read_json
from equipoise.quant.explain.arguments import ServerArguments, parse_arguments
from equipoise.quant.explain.backends import scale_use
from equipoise.quant.explain.context import Context
from equipoise.quant.explain.declared import DeclaredKV, declared_kv
from equipoise.quant.explain.families import FAMILIES
from equipoise.quant.explain.hardware import Hardware, find_hardware
from equipoise.quant.explain.launch_checks import evidence_notes, launch_findings, storage_of
from equipoise.quant.explain.loading import loaded_layers, loading_findings, scale_rows
from equipoise.quant.explain.model import Explanation, Finding
from equipoise.quant.explain.override import changes, overridden, parse_override
from equipoise.quant.explain.pairs import pair_findings
from equipoise.quant.explain.resolve import resolve
from equipoise.quant.explain.rows import bytes_per_token, rows_of, with_kernel
from equipoise.quant.explain.rules import RULES
from equipoise.quant.explain.scale_checks import (
    declared_findings,
    draft_findings,
    json_findings,
    use_findings,
)
from equipoise.quant.explain.scales import find_scales
from equipoise.quant.geometry import KV_LAYOUTS, Geometry, find_builtin, load_geometry
from equipoise.quant.weights_size import checkpoint_components, weight_components

__all__ = ["explain", "with_peer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    geometry: Geometry
    config: Mapping[str, Any]
    hf_quant_config: Mapping[str, Any] | None
    checkpoint: Checkpoint | None
    override_note: str = ""  # what --json-model-override-args did


def explain(model: str | Path, server_args: Sequence[str], hardware: Hardware | str) -> Explanation:
    """What a server of ``model`` with these arguments will do.

    Parameters
    ----------
    model
        A checkpoint folder, a folder or file with config.json alone, or the name of a built-in geometry. Of
        a checkpoint the headers are read, and the scale tensors; no weights.
    server_args
        As ``sglang.launch_server`` takes them (``--model-path`` may be among them, and is not looked at).
    hardware
        One of `equipoise.quant.explain.hardware.HARDWARE`, or its name.

    Raises
    ------
    UsageError
        Arguments that SGLang's parser refuses, an unknown model or hardware.
    CheckpointError
        The checkpoint is damaged or contradicts itself, alone or with ``--json-model-override-args``.
    """
    hardware = find_hardware(hardware) if isinstance(hardware, str) else hardware
    args = parse_arguments(server_args)
    found = _with_override(_read(model), args)
    geometry = found.geometry
    on_cpu_dense = hardware.is_cpu and geometry.attention == "dsa"
    if on_cpu_dense:
        geometry = replace(geometry, attention="mla", index_layers=())
    declared = _declared(found, args)
    resolved = resolve(geometry, declared, args, hardware, _model_dtype(found.config, args))
    prefill_use, decode_use = (
        scale_use(backend, latent=geometry.is_latent, layout=resolved.layout, on_cpu=hardware.is_cpu)
        for backend in (resolved.prefill, resolved.decode)
    )
    context = Context(
        geometry=geometry,
        model_type=str(found.config.get("model_type") or geometry.family),
        family=FAMILIES.get(geometry.architecture),
        declared=declared,
        args=args,
        hardware=hardware,
        resolved=resolved,
        tensors=None if found.checkpoint is None else find_scales(found.checkpoint),
        prefill_use=prefill_use,
        decode_use=decode_use,
    )
    tokens, capacity_note = _capacity(found, context)
    rows = rows_of(context)
    layers = loaded_layers(context)
    json_found, json_scales = json_findings(context)
    findings = (
        *_unknown(context),
        *_override_note(found),
        *_too_small(tokens, capacity_note, context),
        *launch_findings(context),
        *declared_findings(context, layers),
        *(loading_findings(context, layers) if resolved.is_fp8 else []),
        *use_findings(context, layers),
        *json_found,
        *draft_findings(context, layers),
        *(_dense_on_cpu(found.geometry) if on_cpu_dense else ()),
        *evidence_notes(context),
    )
    scales = scale_rows(context, layers, json_scales) if resolved.is_fp8 else ()
    return Explanation(
        model=geometry.name,
        architecture=geometry.architecture,
        attention=geometry.attention,
        hardware=hardware.name,
        tp_size=args.tp_size,
        disaggregation_mode=args.disaggregation_mode,
        asked_kv_cache_dtype=args.kv_cache_dtype,
        kv_cache_dtype=resolved.kv_cache_dtype,
        kv_cache_word=resolved.kv_cache_word,
        layout=resolved.layout,
        bytes_per_token=bytes_per_token(geometry, resolved.layout),
        prefill_backend=with_kernel(resolved.prefill, resolved.dsa_prefill),
        decode_backend=with_kernel(resolved.decode, resolved.dsa_decode),
        page_size=resolved.page_size,
        rows=rows,
        scales=scales,
        findings=findings,
        rules=_cited(*(r.rules for r in rows), *(s.rules for s in scales), tuple(f.rule for f in findings)),
        unread=tuple(dict.fromkeys(w.partition("=")[0] for w in args.unread if w.startswith("--"))),
        cache_storage=storage_of(context),
        capacity_tokens=tokens,
        capacity_note=capacity_note,
    )


def with_peer(one: Explanation, peer: Explanation) -> Explanation:
    """``one`` with what it may not share with ``peer``, and the peer's own problems."""
    own = tuple(replace(f, message=f"the peer: {f.message}") for f in peer.problems)
    findings = (*one.findings, *pair_findings(one, peer), *own)
    cited = {r.id for r in one.rules} | {f.rule for f in findings}
    return replace(one, findings=findings, rules=tuple(r for r in RULES.values() if r.id in cited))


def _read(model: str | Path) -> _Model:
    path = Path(model).expanduser()
    if not path.exists():
        geometry = find_builtin(str(model).removeprefix("hub:"))
        return _Model(geometry=geometry, config={}, hf_quant_config=None, checkpoint=None)
    folder = path if path.is_dir() else path.parent
    config = read_json(folder / "config.json" if path.is_dir() else path, max_bytes=MAX_CONFIG_BYTES)
    geometry = load_geometry(config, name=folder.resolve().name)
    checkpoint = None
    if path.is_dir() and any(folder.glob("*.safetensors")):
        checkpoint = Checkpoint.open(folder)
    beside = folder / "hf_quant_config.json"
    return _Model(
        geometry=geometry,
        config=config,
        hf_quant_config=read_json(beside, max_bytes=MAX_CONFIG_BYTES) if beside.exists() else None,
        checkpoint=checkpoint,
    )


def _with_override(found: _Model, args: ServerArguments) -> _Model:
    """The model with ``--json-model-override-args`` over its config."""
    if args.json_model_override_args is None:
        return found
    override = parse_override(args.json_model_override_args)
    if not override:
        return found
    if not found.config:
        note = "--json-model-override-args is not looked at: a built-in model has no config.json to change"
        return replace(found, override_note=note)
    config = overridden(found.config, override)
    try:
        geometry = load_geometry(config, name=found.geometry.name)
    except CheckpointError as e:
        raise CheckpointError(f"config.json with --json-model-override-args over it: {e}") from e
    note = "--json-model-override-args changes config.json: " + ", ".join(changes(found.config, override))
    return replace(found, config=config, geometry=geometry, override_note=note)


def _override_note(found: _Model) -> tuple[Finding, ...]:
    if not found.override_note:
        return ()
    return (Finding(kind="note", rule="config-override", message=found.override_note),)


def _declared(found: _Model, args: ServerArguments) -> DeclaredKV:
    if found.config:
        return declared_kv(found.config, found.hf_quant_config, args.quantization)
    # A built-in model: as its release stores its weights. None of them declares a quantized KV cache.
    method = {"fp8-block": "fp8", "fp8-channel": "compressed-tensors", "int4-g32": "compressed-tensors"}.get(
        found.geometry.weights, args.quantization or "none"
    )
    return DeclaredKV(method=method, gives_scales=method in ("fp8", "mxfp8"))


def _model_dtype(config: Mapping[str, Any], args: ServerArguments) -> str:
    text = config.get("text_config")
    owners = (config, text if isinstance(text, Mapping) else {})
    stored = next((str(v) for o in owners for k in ("dtype", "torch_dtype") if (v := o.get(k))), "bfloat16")
    name = stored if args.dtype == "auto" else args.dtype
    if args.dtype == "auto" and name in ("float32", "float"):
        name = "float16"  # SGLang's choice
    return {"bfloat16": "bf16", "half": "float16"}.get(name, name)


def _unknown(context: Context) -> list[Finding]:
    found = []
    if context.family is None:
        name = context.geometry.architecture or "(none)"
        message = f"the model class {name} is not described here: its scales are not known"
        found.append(Finding(kind="note", rule="scale-method", message=message))
    unknown = [
        b
        for b, use in (
            (context.resolved.prefill, context.prefill_use),
            (context.resolved.decode, context.decode_use),
        )
        if use is None
    ]
    if unknown and context.resolved.is_fp8:
        message = f"what {unknown[0]} does with KV scales is not known here"
        found.append(Finding(kind="note", rule="backend-attention", message=message))
    return found


def _too_small(tokens: int | None, note: str, context: Context) -> list[Finding]:
    if tokens != 0:
        return []
    # The fraction is the user's, or fitted: only the former is a fault of the launch.
    chosen = context.args.mem_fraction_static is not None
    remedy = "use more GPUs (--tp-size), or a compressed checkpoint"
    return [Finding(kind="crash" if chosen else "note", rule="capacity", message=note, remedy=remedy)]


def _dense_on_cpu(geometry: Geometry) -> tuple[Finding, ...]:
    message = (
        "DSA models run as dense MLA on the CPU server, without the indexer: exact while a context has at "
        f"most {geometry.index_topk:,} tokens"
    )
    return (Finding(kind="note", rule="cpu-reference", message=message),)


def _capacity(found: _Model, context: Context) -> tuple[int | None, str]:
    args, layout = context.args, "bf16" if context.resolved.layout == "float16" else context.resolved.layout
    gpu = context.hardware.gpu
    if gpu is None:
        limit = args.max_total_tokens
        return limit, "--max-total-tokens" if limit is not None else "follows the free memory of the machine"
    if layout not in KV_LAYOUTS:
        return None, f"the layout {layout} is not described here"
    geometry = context.geometry
    fraction = args.mem_fraction_static or DEFAULT_STATIC_FRACTION
    try:
        # An overridden config need not be that of the tensors: what is served follows the config.
        components = (
            weight_components(geometry)
            if found.checkpoint is None or found.override_note
            else checkpoint_components(found.checkpoint, geometry)
        )
        deployment = Deployment(
            gpu=gpu,
            tp=args.tp_size,
            dp=args.attention_dp,
            static_fraction=fraction,
            page_size=context.resolved.page_size,
        )
        capacity = capacity_of(geometry, components, deployment, layout)
    except UsageError as e:
        return None, str(e)
    on = f"{args.tp_size} x {gpu.name}, static fraction {fraction:g}"
    if not capacity.weights_fit:
        return 0, f"the weights alone do not fit on {on}"
    tokens = capacity.tokens
    if args.max_total_tokens is not None and args.max_total_tokens < tokens:
        return args.max_total_tokens, "--max-total-tokens"
    return tokens, on


def _cited(*groups: tuple[str, ...]) -> tuple[Any, ...]:
    cited = {r for group in groups for r in group}
    return tuple(rule for rule in RULES.values() if rule.id in cited)
