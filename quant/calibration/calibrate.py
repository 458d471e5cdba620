"""The whole calibration of a model: observe, choose, measure, rank, plan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, TypeAlias

import torch

from equipoise.quant.calibration.attention import attention_errors, attention_scales
from equipoise.quant.calibration.cache import Parts, Store, bf16_stores, store_of
from equipoise.quant.calibration.choose import choose_scales
from equipoise.quant.calibration.divergence import Divergence, divergences, first_sequences
from equipoise.quant.calibration.fidelity import Fidelity, compare_stored, stored_at_scale
from equipoise.quant.calibration.histogram import MagnitudeHistogram
from equipoise.quant.calibration.mixed import MixedPlan, mixed_plan
from equipoise.quant.calibration.model import CalibrationModel
from equipoise.quant.calibration.observe import Advance, LayerObservation, observe
from equipoise.quant.calibration.prompts import TokenSequences
from equipoise.quant.calibration.report import (
    PERCENTS,
    CalibrationReport,
    LayerReport,
    PartReport,
    Population,
    Storage,
    WholeModel,
)
from equipoise.quant.calibration.settings import Settings, layout_name
from equipoise.quant.geometry import kv_layer_bytes, kv_layouts_of
from equipoise.quant.layouts import KVLayout, make_layout

__all__ = ["Stages", "calibrate"]

# (what is done, tokens it takes) -> is told the tokens done.
Stages: TypeAlias = Callable[[str, int], Advance]
Scales: TypeAlias = tuple[list[float], list[float]]  # of the first part, of the second


def calibrate(
    model: CalibrationModel,
    data: TokenSequences,
    settings: Settings,
    *,
    stages: Stages = lambda name, tokens: lambda done: None,
    describe_data: Mapping[str, Any] | None = None,
) -> CalibrationReport:
    """Scales for every layer and what they do to storage, attention and answers.

    Memory is bounded: a histogram of 0.26 MB for each layer, part and group, the activations of one
    layer of one prompt, and the hidden states of one prompt.

    Raises
    ------
    UsageError
        Settings that do not fit the model.
    EquipoiseError
        The model computes infinities or NaN.
    """
    name = layout_name(model.shape.attention, settings)
    per_head = settings.granularity == "head"
    seen = observe(
        model,
        data,
        sink_tokens=settings.sink_tokens,
        per_head=per_head,
        advance=stages("observe", data.tokens),
    )
    wanted = _choose(model, data, settings, seen, stages)
    layouts = [make_layout(name, model.shape, **_served(model, name, scales)) for scales in wanted]
    unit = make_layout("fp8_flat", model.shape)
    sums = [_LayerSums(layout, settings.sink_tokens) for layout in layouts]
    errors = attention_errors(
        model,
        data,
        [[s.store, store_of(unit)] for s in sums],
        advance=stages("attention", data.tokens),
    )
    subset = first_sequences(data, settings.kl_prompts)
    alone, whole, at_unit = _divergences(model, subset, layouts, unit, stages)
    layers = tuple(
        LayerReport(
            layer=i,
            parts=_parts(model, seen[i], wanted[i], layouts[i], sums[i]),
            attention_error=errors[i][0][0].relative_error,
            attention_error_at_unit_scale=errors[i][1][0].relative_error,
            kl_nats=alone[i].mean_nats,
            kl_max_nats=alone[i].max_nats,
            top1_changed=alone[i].top1_changed,
        )
        for i in range(len(seen))
    )
    plan = None
    if settings.kl_budget_nats is not None:
        plan = _plan(model, subset, layouts, alone, whole, settings.kl_budget_nats, stages)
    return CalibrationReport(
        model=model.geometry.name,
        architecture=model.geometry.architecture,
        attention=model.geometry.attention,
        method=settings.method,
        granularity=settings.granularity,
        percentile=settings.percentile if settings.method == "percentile" else None,
        layout=name,
        sink_tokens=settings.sink_tokens,
        compute=str(next(model.causal_lm.parameters()).dtype).removeprefix("torch."),
        data={
            **(describe_data or {}),
            "prompts": len(data.sequences),
            "tokens": data.tokens,
            "truncated_prompts": data.truncated,
            "prompts_too_short": data.too_short,
        },
        kl_prompts=len(subset.sequences),
        kl_tokens=subset.tokens,
        layers=layers,
        ranking=tuple(sorted(range(len(layers)), key=lambda i: -layers[i].kl_nats)),
        calibrated=_whole(whole),
        at_unit_scale=_whole(at_unit),
        plan=plan,
        versions={package: version(package) for package in ("torch", "transformers")},
    )


def _choose(
    model: CalibrationModel,
    data: TokenSequences,
    settings: Settings,
    seen: Sequence[LayerObservation],
    stages: Stages,
) -> list[Scales]:
    parts = model.shape.parts
    if settings.method == "attention" and model.shape.attention == "gqa":
        amax = [[layer.parts[part].everything.amax() for part in parts] for layer in seen]
        return attention_scales(model, data, amax, advance=stages("choose", data.tokens))
    # MLA's scale is 1 whatever is chosen, so the cheapest choice tells as much.
    method = "mse" if settings.method == "attention" else settings.method
    return [
        tuple(  # type: ignore[misc]
            choose_scales(
                method, layer.parts[part].rest, layer.parts[part].sinks, percentile=settings.percentile
            )
            for part in parts
        )
        for layer in seen
    ]


def _served(model: CalibrationModel, name: str, scales: Scales) -> dict[str, list[float]]:
    """MLA: exactly 1. SGLang writes that cache at scale 1 and multiplies by k_scale when it reads."""
    if model.shape.attention == "mla" or name.startswith(_DYNAMIC):
        return {}
    return {"first_scales": scales[0], "second_scales": scales[1]}


class _LayerSums:
    """Counts what storing does to a layer's tokens, sinks apart, while attention reads them."""

    def __init__(self, layout: KVLayout, sink_tokens: int) -> None:
        self.layout, self.sink_tokens = layout, sink_tokens
        self.rest = [Fidelity(), Fidelity()]  # by part
        self.sinks = [Fidelity(), Fidelity()]

    def store(self, first: torch.Tensor, second: torch.Tensor) -> Parts:
        written = [x.to(torch.bfloat16).to(torch.float32) for x in (first, second)]
        read = store_of(self.layout)(*written)
        for rows, sums in (
            (slice(None, self.sink_tokens), self.sinks),
            (slice(self.sink_tokens, None), self.rest),
        ):
            if len(written[0][rows]):
                counts = self.layout.count(written[0][rows], written[1][rows])
                for part in (0, 1):
                    sums[part] += compare_stored(written[part][rows], read[part][rows], counts[part])
        return read


def _divergences(
    model: CalibrationModel,
    subset: TokenSequences,
    layouts: Sequence[KVLayout],
    unit: KVLayout,
    stages: Stages,
) -> tuple[list[Divergence], Divergence, Divergence]:
    """With each layer's cache alone quantized, with all of them, and with all of them at scale 1."""
    exact = bf16_stores(model)
    quantized = [store_of(layout) for layout in layouts]
    alone = [[*exact[:i], store, *exact[i + 1 :]] for i, store in enumerate(quantized)]
    variants = [*alone, quantized, [store_of(unit)] * len(exact)]
    found = divergences(
        model, subset, variants, advance=stages("divergence", subset.tokens * (len(variants) + 1))
    )
    return found[:-2], found[-2], found[-1]


def _plan(  # noqa: PLR0917  all of them are what was measured before
    model: CalibrationModel,
    subset: TokenSequences,
    layouts: Sequence[KVLayout],
    alone: Sequence[Divergence],
    whole: Divergence,
    budget_nats: float,
    stages: Stages,
) -> MixedPlan:
    exact = bf16_stores(model)

    def measure(bf16_layers: frozenset[int]) -> float:
        stores: list[Store] = [
            exact[i] if i in bf16_layers else store_of(layout) for i, layout in enumerate(layouts)
        ]
        advance = stages("plan", 2 * subset.tokens)
        (found,) = divergences(model, subset, [stores], advance=advance)
        return float(found.mean_nats)

    return mixed_plan(
        [d.mean_nats for d in alone],
        _layer_bytes(model, layouts[0]),
        _layer_bytes(model, make_layout("bf16", model.shape)),
        budget_nats=budget_nats,
        measure=measure,
        all_quantized_nats=whole.mean_nats,
    )


def _layer_bytes(model: CalibrationModel, layout: KVLayout) -> list[int]:
    """Bytes of one token in each layer, the keys of a DSA indexer included."""
    geometry = model.geometry
    if layout.name not in kv_layouts_of(geometry):
        return [layout.bytes_per_layer] * geometry.num_layers
    cached, *indexer = kv_layer_bytes(geometry, layout.name)
    extra = indexer[0].bytes_per_token if indexer else 0
    return [
        cached.bytes_per_token + (extra if i in geometry.index_layers else 0)
        for i in range(geometry.num_layers)
    ]


def _parts(
    model: CalibrationModel, seen: LayerObservation, wanted: Scales, layout: KVLayout, sums: _LayerSums
) -> dict[str, PartReport]:
    reports = {}
    for i, part in enumerate(model.shape.parts):
        found = seen.parts[part]
        reports[part] = PartReport(
            scales=_scales_of(layout, i, wanted),
            method_scales=() if layout.name.startswith(_DYNAMIC) else tuple(wanted[i]),
            rest=_population(found.rest, sums.rest[i]),
            sinks=_population(found.sinks, sums.sinks[i]),
        )
    return reports


_DYNAMIC = ("fp8_per_token_head", "ds656")  # a scale for each token and tile, none to calibrate


def _scales_of(layout: KVLayout, part: int, wanted: Scales) -> tuple[float, ...]:
    if layout.name.startswith(_DYNAMIC):
        return ()
    return (1.0,) if layout.shape.attention == "mla" else tuple(wanted[part])


def _population(histogram: MagnitudeHistogram, stored: Fidelity) -> Population:
    pooled = histogram.pooled()
    percentiles = pooled.percentiles(PERCENTS)[0]
    return Population(
        rows=histogram.rows,
        zero_rows=histogram.zero_rows,
        amax=pooled.amax()[0],
        percentiles={f"{p:g}": x for p, x in zip(PERCENTS, percentiles, strict=True)},
        # Shares are of the values that the histogram has: rows of zeros survive anything.
        stored=_storage(replace(stored, n=int(pooled.n[0]))),
        at_unit_scale=_storage(stored_at_scale(pooled, 0, 1.0)),
    )


def _storage(found: Fidelity) -> Storage:
    return Storage(
        sqnr_db=found.sqnr_db,
        cosine=found.cosine,
        saturated_share=found.saturated_share,
        flushed_share=found.flushed_share,
    )


def _whole(found: Divergence) -> WholeModel:
    return WholeModel(kl_nats=found.mean_nats, kl_max_nats=found.max_nats, top1_changed=found.top1_changed)
