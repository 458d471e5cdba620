"""Which scale every layer gets, and what goes wrong on the way."""

import math
from collections import defaultdict
from collections.abc import Iterable

from equipoise.quant.explain.context import Context, listed
from equipoise.quant.explain.model import Finding, ScaleRow, layer_ranges
from equipoise.quant.explain.scales import LayerScales, Part, ScaleTensor, layer_scales, reaches_attention

__all__ = ["loaded_layers", "loading_findings", "scale_rows"]


def loaded_layers(context: Context) -> dict[int, LayerScales]:
    """Layer -> its scales, target and (where one drafts) MTP layers."""
    by_layer: dict[int, dict[Part, ScaleTensor]] = defaultdict(dict)
    for tensor in _loaded(context):
        if tensor.layer is not None and tensor.value is not None:
            by_layer[tensor.layer][tensor.part] = tensor
    return {layer: layer_scales(layer, by_layer[layer]) for layer in _layers(context)}


def loading_findings(context: Context, layers: dict[int, LayerScales]) -> list[Finding]:
    """Scales that are not loaded, or that cannot be what was meant; of an FP8 cache."""
    found = _misshapen(context)
    skipped = [
        t for t in context.tensors or () if not _is_loaded(context, t) and _is_target(context, t.layer)
    ]
    if skipped:
        found.append(_skipped(context, skipped))
    target = {i: s for i, s in layers.items() if i < context.geometry.num_layers}
    given = {i: s for i, s in target.items() if s.k_tensor or s.v_tensor}
    if not given:
        return found

    def of(layers_: Iterable[int]) -> str:
        return f"layers {layer_ranges(tuple(layers_))}"

    if asserting := [i for i, s in given.items() if s.asserts]:
        found.append(
            Finding(
                kind="crash",
                rule="scale-v-alone",
                message=f"{of(asserting)} have a v_scale without a usable k_scale",
                remedy="write both scales, or neither",
            )
        )
    if copied := [i for i, s in given.items() if s.copied]:
        found.append(
            Finding(
                kind="wrong",
                rule="scale-copied",
                message=f"{of(copied)} have a k_scale without a v_scale: V is stored with K's scale",
                remedy="write v_proj.v_scale beside every k_proj.k_scale",
            )
        )
    finite = {i: s for i, s in given.items() if not s.asserts}
    if unusable := [i for i, s in finite.items() if not (math.isfinite(s.k) and math.isfinite(s.v))]:
        found.append(
            Finding(
                kind="wrong",
                rule="scale-unchecked",
                message=f"{of(unusable)} have a scale that is not finite, which SGLang uses as it is",
                remedy="calibrate these layers again",
            )
        )
    if replaced := [i for i, s in finite.items() if not s.copied and _replaced(s, context)]:
        found.append(
            Finding(
                kind="ignored",
                rule="scale-initial",
                message=f"{of(replaced)} have scales that are not positive: SGLang uses 1.0 instead",
                remedy="calibrate these layers again",
            )
        )
    if missing := [i for i in target if i not in given]:
        found.append(
            Finding(
                kind="wrong",
                rule="scale-initial",
                message=f"{of(missing)} have no scales and run at 1.0, the others at the checkpoint's",
                remedy="calibrate every layer",
            )
        )
    return found


def scale_rows(
    context: Context, layers: dict[int, LayerScales], json_scales: dict[int, float]
) -> tuple[ScaleRow, ...]:
    """Layers grouped by where their scales come from."""
    first_mtp = context.geometry.num_layers
    groups: dict[tuple[bool, str, str], list[int]] = defaultdict(list)
    for layer, s in layers.items():
        if layer in json_scales:
            source = (f"{context.args.quantization_param_path}",) * 2
        else:
            source = (_source(s.k_tensor, layer, s, "k"), _source(s.v_tensor, layer, s, "v"))
        groups[layer >= first_mtp, *source].append(layer)
    prefill, decode = context.prefill_use, context.decode_use
    alike = prefill is not None and decode is not None
    rows = []
    for (draft, k_source, v_source), members in groups.items():
        ks = [json_scales.get(i, layers[i].k) for i in members]
        vs = [json_scales.get(i, layers[i].v) for i in members]
        known = context.family is not None and (context.tensors is not None or not context.loads_scales)
        rows.append(
            ScaleRow(
                layers=tuple(members),
                role="draft" if draft else "target",
                k_source=k_source if known else "not known",
                v_source=v_source if known else "not known",
                k=(min(ks), max(ks)) if known else None,
                v=(min(vs), max(vs)) if known else None,
                on_write=_same(prefill.on_write, decode.on_write) if alike and prefill and decode else None,
                on_read=_same(prefill.on_read, decode.on_read) if alike and prefill and decode else None,
                rules=tuple(dict.fromkeys(r for u in context.uses for r in u.rules)),
            )
        )
    return tuple(rows)


def _same(a: bool, b: bool) -> bool | None:
    return a if a == b else None


def _layers(context: Context) -> range:
    g = context.geometry
    return range(g.num_layers + (g.num_mtp_layers if context.drafts_with_mtp else 0))


def _is_target(context: Context, layer: int | None) -> bool:
    return layer is None or layer < context.geometry.num_layers or context.drafts_with_mtp


def _is_loaded(context: Context, tensor: ScaleTensor) -> bool:
    return (
        context.loads_scales
        and context.family is not None
        and reaches_attention(tensor, context.family.names)
    )


def _loaded(context: Context) -> list[ScaleTensor]:
    return [t for t in context.tensors or () if _is_loaded(context, t)]


def _misshapen(context: Context) -> list[Finding]:
    wide = [t for t in _loaded(context) if math.prod(t.shape) != 1]
    if not wide:
        return []
    return [
        Finding(
            kind="crash",
            rule="scale-per-tensor",
            message=f"{len(wide)} scales are not one number a layer, such as {wide[0].name} "
            f"of shape {list(wide[0].shape)}",
            remedy="calibrate with one scale a tensor",
        )
    ]


def _skipped(context: Context, skipped: list[ScaleTensor]) -> Finding:
    family, declared = context.family, context.declared
    unit = all(t.value == 1.0 for t in skipped)
    if family is None:
        why, rule = f"what {context.geometry.architecture} does with them is not known here", "scale-method"
    elif not family.passes_quant_config:
        why, rule = f"{family.architecture} has no place for them", family.rule
    elif not declared.gives_scales:
        why = f"the quantization config ({declared.method}) gives its attention no scales"
        rule = declared.rule if declared.dropped else "scale-method"
    else:
        why, rule = f"{family.architecture} loads no scale of such a name", family.rule
    names = listed(tuple(t.name for t in skipped), most=1)
    if unit or family is None:
        return Finding(
            kind="note",
            rule=rule,
            message=f"{len(skipped)} KV scales of the checkpoint"
            + (", all 1.0," if unit else "")
            + f" are not loaded ({names}): {why}",
        )
    return Finding(
        kind="ignored",
        rule=rule,
        message=f"{len(skipped)} KV scales of the checkpoint are not loaded ({names}): {why}; these layers "
        "run at 1.0",
        remedy="do not count on calibrated scales here: compare at scale 1.0, or serve with an SGLang that "
        "loads them",
    )


def _replaced(s: LayerScales, context: Context) -> bool:
    """A tensor was given, and 1.0 is used in its place."""
    values = {t.name: t.value for t in context.tensors or ()}
    return any(
        name and (value := values.get(name)) is not None and not value > 0
        for name in (s.k_tensor, s.v_tensor)
    )


def _source(tensor: str, layer: int, s: LayerScales, part: Part) -> str:
    if part == "v" and s.copied:
        return "k_scale (copied)"
    if not tensor:
        return "default 1.0"
    return "checkpoint " + tensor.replace(f"layers.{layer}.", "layers.N.")
