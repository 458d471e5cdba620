"""What a calibration found: plain data, without torch, as JSON and for tables."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from equipoise.quant.calibration.mixed import MixedPlan

__all__ = [
    "PERCENTS",
    "CalibrationReport",
    "LayerReport",
    "PartReport",
    "Population",
    "Storage",
    "WholeModel",
    "to_json",
]

PERCENTS = (50.0, 90.0, 99.0, 99.9, 99.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How well values survive a cache; NaN (null in JSON) where there are none."""

    sqnr_db: float
    cosine: float
    saturated_share: float
    flushed_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Some of the tokens. ``percentiles`` of magnitudes by percent, over values outside zero rows.

    ``zero_rows``: of ``rows`` (a token's values in one head) those that are all zero, counted apart.
    ``at_unit_scale``: the same values at scale 1.
    """

    rows: int
    zero_rows: int
    amax: float
    percentiles: Mapping[str, float]
    stored: Storage
    at_unit_scale: Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    """K, V, latent or RoPE key of a layer.

    ``scales``: those of the cache, one or one for each KV head; empty where each token has its own or
    the part is stored in BF16. ``method_scales``: what the method chooses, which differs where the
    server takes no other scale than 1.
    """

    scales: tuple[float, ...]
    method_scales: tuple[float, ...]
    rest: Population
    sinks: Population


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """Errors are relative L2 of the attention output; ``kl_nats`` with this layer's cache alone quantized."""

    layer: int
    parts: Mapping[str, PartReport]
    attention_error: float
    attention_error_at_unit_scale: float
    kl_nats: float
    kl_max_nats: float
    top1_changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeModel:
    """Divergence with every layer's cache quantized."""

    kl_nats: float
    kl_max_nats: float
    top1_changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """``ranking``: layers, most sensitive first. ``plan`` is None where no KL budget was given."""

    model: str
    architecture: str
    attention: str
    method: str
    granularity: str
    percentile: float | None
    layout: str
    sink_tokens: int
    compute: str
    data: Mapping[str, Any]
    kl_prompts: int
    kl_tokens: int
    layers: tuple[LayerReport, ...]
    ranking: tuple[int, ...]
    calibrated: WholeModel
    at_unit_scale: WholeModel
    plan: MixedPlan | None
    versions: Mapping[str, str]


def to_json(value: Any) -> Any:
    """Dataclasses as dicts; NaN as null, infinity as "inf", so that any JSON parser reads it."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_json(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
