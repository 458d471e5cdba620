"""Planted faults in the KV cache: positive controls that an evaluation has to catch.

They exist only in a server started with ``--kv-control NAME``; its name then carries the control,
so that no client can mistake it for a release. A control replaces what is written to the bfloat16
cache by its own quantized and dequantized value; nothing else changes.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from equipoise.kernels.drift import fake_quantize_drifting
from equipoise.kernels.formats import E4M3FN, fake_quantize_float8, fake_quantize_int
from equipoise.quant.variants import KV_CONTROL_NAMES

__all__ = ["KV_CONTROLS", "AmaxTable", "KVPart", "build_control", "load_amax"]

# GQA caches K and V; MLA caches the latent and the rotated key.
KVPart = Literal["k", "v", "latent", "rope"]
AmaxTable = tuple[Mapping[str, float], ...]  # [layer][part]
# (layer, part, x [tokens, ...], positions int64 [tokens]) -> what is cached instead
Control = Callable[[int, KVPart, torch.Tensor, torch.Tensor], torch.Tensor]

AMAX_FILE = "kv_amax.json"


def load_amax(model_path: str, *, parts: tuple[KVPart, ...], num_layers: int) -> AmaxTable:
    """Read ``kv_amax.json`` beside a checkpoint: ``{"layers": [{"k": 3.1, "v": 0.9}, ...]}``.

    Raises
    ------
    ValueError
        Missing or malformed file; names the path and what it must hold.
    """
    path = Path(model_path) / AMAX_FILE
    wanted = f'{{"layers": [{{{", ".join(f"{p!r}: amax" for p in parts)}}}, ...]}}'.replace("'", '"')
    try:
        layers = json.loads(path.read_text())["layers"]
        table: AmaxTable = tuple({str(p): float(layer[p]) for p in parts} for layer in layers)
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing: this control needs the calibrated amax of every layer, as {wanted}"
        ) from None
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"{path} is malformed ({e!r}); it must read {wanted}") from e
    if len(table) != num_layers:
        raise ValueError(f"{path} has {len(table)} layers, the model has {num_layers}")
    bad = [i for i, layer in enumerate(table) if not all(0 < a < float("inf") for a in layer.values())]
    if bad:
        raise ValueError(f"{path}: amax must be positive and finite in every layer; see layers {bad}")
    return table


def _int4_tensor(amax: AmaxTable) -> Control:
    def apply(layer_id: int, part: KVPart, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return fake_quantize_int(x, bits=4, amax=amax[layer_id][part])

    return apply


def _int4_token(_: AmaxTable) -> Control:
    def apply(layer_id: int, part: KVPart, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return fake_quantize_int(x, bits=4, amax=_token_amax(x))

    return apply


def _clip2(amax: AmaxTable) -> Control:
    def apply(layer_id: int, part: KVPart, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return fake_quantize_float8(x, E4M3FN, scale=amax[layer_id][part] / E4M3FN.max_finite / 2)

    return apply


def _drift(_: AmaxTable) -> Control:
    def apply(layer_id: int, part: KVPart, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        each = positions.view(-1, *[1] * (x.dim() - 1))
        return fake_quantize_drifting(x, amax=_token_amax(x), positions=each)

    return apply


def _token_amax(x: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of each token over heads and dims, [tokens, 1, ...] as ``x``."""
    amax = x.to(torch.float32).flatten(1).abs().amax(dim=1)
    return amax.view(-1, *[1] * (x.dim() - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlKind:
    build: Callable[[AmaxTable], Control]
    needs_amax: bool


KV_CONTROLS: dict[str, ControlKind] = {
    "int4-tensor": ControlKind(build=_int4_tensor, needs_amax=True),
    "int4-token": ControlKind(build=_int4_token, needs_amax=False),
    "clip2": ControlKind(build=_clip2, needs_amax=True),
    "drift": ControlKind(build=_drift, needs_amax=False),
}
assert set(KV_CONTROLS) == set(KV_CONTROL_NAMES)


def build_control(name: str, *, model_path: str, parts: tuple[KVPart, ...], num_layers: int) -> Control:
    """The control called ``name``, with its calibration read from beside the checkpoint."""
    kind = KV_CONTROLS[name]
    amax = load_amax(model_path, parts=parts, num_layers=num_layers) if kind.needs_amax else ()
    return kind.build(amax)
