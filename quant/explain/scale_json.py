"""The file of ``--quantization-param-path``: read as SGLang reads it, and judged where it does not."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ScaleFile", "read_scale_file"]

MAX_BYTES = 16_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleFile:
    """``error``: why SGLang would log an error and use 1.0 everywhere; "" if it takes the file.

    ``scales``: layer -> scale of the first rank. ``bad``: layers whose value is not finite and positive,
    which SGLang uses as it is. ``ranks_differ``: TP ranks have different scales.
    """

    path: str
    scales: Mapping[int, float]
    error: str = ""
    bad: tuple[int, ...] = ()
    ranks_differ: bool = False


def read_scale_file(path: str, *, model_type: str, num_layers: int, tp_size: int) -> ScaleFile:
    """Read and check one file; nothing is raised for a bad one, as SGLang does not stop either."""
    try:
        with Path(path).open("rb") as f:
            raw = f.read(MAX_BYTES + 1)
    except OSError as e:
        return ScaleFile(path=path, scales={}, error=f"cannot be read ({e.strerror})")
    if len(raw) > MAX_BYTES:
        return ScaleFile(path=path, scales={}, error=f"has over {MAX_BYTES:,} bytes, which is no scale file")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as e:
        return ScaleFile(path=path, scales={}, error=f"is not JSON ({e})")
    ranks, error = _ranks(value, model_type=model_type, num_layers=num_layers, tp_size=tp_size)
    if error:
        return ScaleFile(path=path, scales={}, error=error)
    everything = [(layer, scale) for scales in ranks.values() for layer, scale in scales.items()]
    return ScaleFile(
        path=path,
        scales=dict(sorted(ranks[0].items())),
        bad=tuple(sorted({layer for layer, s in everything if not (math.isfinite(s) and s > 0)})),
        ranks_differ=any(scales != ranks[0] for scales in ranks.values()),
    )


def _ranks(  # noqa: PLR0911  one return for each thing that SGLang refuses
    value: Any, *, model_type: str, num_layers: int, tp_size: int
) -> tuple[dict[int, dict[int, float]], str]:
    """TP rank -> layer -> scale, and what SGLang's schema (``QuantParamSchema``) would refuse."""
    if not isinstance(value, dict) or "model_type" not in value:
        return {}, "has no model_type"
    cache = value.get("kv_cache")
    if not isinstance(cache, dict):
        return {}, "has no kv_cache"
    if cache.get("dtype") != "float8_e4m3fn":
        return {}, f"is for dtype {cache.get('dtype')!r}, not 'float8_e4m3fn'"
    factors: Any = cache.get("scaling_factor")
    try:
        ranks = {
            int(rank): {int(layer): float(scale) for layer, scale in layers.items()}
            for rank, layers in factors.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}, "its scaling_factor is not {TP rank: {layer: number}}"
    if len(ranks) != tp_size:
        return {}, f"has {len(ranks)} TP ranks, the server {tp_size}"
    if missing := [r for r in range(tp_size) if r not in ranks]:
        return {}, f"lacks TP rank {missing[0]}"
    for rank, scales in sorted(ranks.items()):
        if len(scales) != num_layers or any(i not in scales for i in range(num_layers)):
            absent = [i for i in range(num_layers) if i not in scales]
            what = f"lacks layer {absent[0]}" if absent else f"has {len(scales)} layers"
            return {}, f"TP rank {rank} {what}; the model has layers 0 to {num_layers - 1}"
    if value["model_type"] != model_type:
        return {}, f"is for model_type {value['model_type']!r}, the config's is {model_type!r}"
    return ranks, ""
