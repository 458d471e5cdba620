"""First pass: histograms of what each layer caches, over all prompts."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from equipoise.evals.errors import EquipoiseError
from equipoise.quant.calibration.cache import Parts, Store, bf16_stores, last_hidden_states
from equipoise.quant.calibration.histogram import MagnitudeHistogram
from equipoise.quant.calibration.model import CalibrationModel
from equipoise.quant.calibration.prompts import TokenSequences

__all__ = ["LayerObservation", "PartObservation", "observe"]

Advance = Callable[[int], None]  # tokens done


@dataclass(slots=True, kw_only=True)
class PartObservation:
    """One part (K, V, latent, RoPE key) of one layer. ``sinks`` are the first tokens of each prompt."""

    rest: MagnitudeHistogram
    sinks: MagnitudeHistogram

    @property
    def everything(self) -> MagnitudeHistogram:
        return self.rest.merged(self.sinks)


@dataclass(slots=True, kw_only=True)
class LayerObservation:
    """By part: "k" and "v", or "latent" and "rope"."""

    parts: dict[str, PartObservation] = field(default_factory=dict)


def observe(
    model: CalibrationModel,
    data: TokenSequences,
    *,
    sink_tokens: int,
    per_head: bool,
    advance: Advance = lambda tokens: None,
) -> tuple[LayerObservation, ...]:
    """Run the model with an unquantized cache and count what is cached.

    Parameters
    ----------
    sink_tokens : int
        How many first tokens of each prompt are counted apart.
    per_head : bool
        A histogram for each KV head, else one for all.

    Raises
    ------
    EquipoiseError
        The model computes infinities or NaN.
    """
    groups = model.groups if per_head else 1
    layers = tuple(
        LayerObservation(
            parts={
                part: PartObservation(rest=MagnitudeHistogram(groups), sinks=MagnitudeHistogram(groups))
                for part in model.shape.parts
            }
        )
        for _ in range(model.geometry.num_layers)
    )
    stores = [
        _counting(store, layer, model.shape.parts, groups, sink_tokens)
        for store, layer in zip(bf16_stores(model), layers, strict=True)
    ]
    for sequence, where in zip(data.sequences, data.where, strict=True):
        last_hidden_states(model, sequence, stores)
        _require_finite(layers, where)
        advance(len(sequence))
    return layers


def _counting(
    store: Store, layer: LayerObservation, parts: tuple[str, str], groups: int, sink_tokens: int
) -> Store:
    def counted(first: torch.Tensor, second: torch.Tensor) -> Parts:
        for part, x in zip(parts, (first, second), strict=True):
            rows = x.reshape(len(x), groups, -1)
            layer.parts[part].sinks.add(rows[:sink_tokens])
            layer.parts[part].rest.add(rows[sink_tokens:])
        return store(first, second)

    return counted


def _require_finite(layers: tuple[LayerObservation, ...], where: str) -> None:
    for i, layer in enumerate(layers):
        for part, seen in layer.parts.items():
            if bad := seen.rest.non_finite + seen.sinks.non_finite:
                raise EquipoiseError(
                    f"layer {i}: {bad:,} cached values of {part} are infinite or NaN at {where}; the model "
                    "overflows there, and scales from it would mean nothing (try --compute float32)"
                )
