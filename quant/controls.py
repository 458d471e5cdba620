"""Positive controls for servers that have no plugin of ours: faults of known size in the cached K.

A control is an overlay of a checkpoint (`equipoise.quant.overlay`): the same files, but for one planted
fault. Everything that the server caches of a token's key goes through it, in whatever dtype the cache is.

==========  ===========================================================================================
noise-k     each channel of K is off by a factor 1 + e, e of RMS ``strength``: a fixed noise of that
            relative size, as a coarse cache would make it
scale-k     K times ``strength``: as if a scale were applied once too often, or not at all
rope-theta  the rotary base times ``strength``: cached keys are turned by wrong angles; config only
==========  ===========================================================================================

K is reached through the weights that make it: the norm of the latent (MLA, DSA: so K without its RoPE part,
and V), the norm of K (GQA with qk-norm), else K's projection with its bias. The factors are applied before
RoPE, which does not change a vector's length.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import Checkpoint, TensorInfo
from equipoise.quant.geometry import Geometry, load_geometry

__all__ = [
    "CONTROL_KINDS",
    "ControlKind",
    "ControlPlan",
    "ControlSpec",
    "Edit",
    "plan_control",
    "turned_config",
]

ControlKind = Literal["noise-k", "scale-k", "rope-theta"]
CONTROL_KINDS: tuple[ControlKind, ...] = get_args(ControlKind)
MAX_STRENGTH = 1e6

_LAYER_TENSOR = re.compile(r"^(?!.*vision)(?:.*\.)?layers\.(?P<layer>\d+)\.self_attn\.(?P<rest>[a-z_.]+)$")
_FLOATS = ("BF16", "F16", "F32")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSpec:
    """A fault: ``layers`` None means those that lie in one shard, ``()`` is every layer."""

    kind: ControlKind
    strength: float
    layers: tuple[int, ...] | None = None
    seed: int = 1  # of noise-k

    def __post_init__(self) -> None:
        if not (math.isfinite(self.strength) and 0 < self.strength <= MAX_STRENGTH):
            raise UsageError(f"--strength {self.strength:g} is not in (0, {MAX_STRENGTH:g}]")
        if self.kind != "noise-k" and self.strength == 1:
            raise UsageError(f"--strength 1 is no fault for {self.kind}, which multiplies by it")

    @property
    def label(self) -> str:
        """As it stands in the served model's name: ``noise-k-0.5``."""
        return f"{self.kind}-{self.strength:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One tensor whose rows are multiplied: ``factors`` float64 [shape[0]]."""

    name: str
    layer: int
    info: TensorInfo
    factors: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlan:
    """What an overlay will change. ``shards`` are written anew, all others are linked."""

    spec: ControlSpec
    checkpoint: Checkpoint
    geometry: Geometry
    edits: tuple[Edit, ...]
    config: Mapping[str, Any]

    @property
    def layers(self) -> tuple[int, ...]:
        if self.spec.kind == "rope-theta":
            return tuple(range(self.geometry.num_layers))
        return tuple(sorted({e.layer for e in self.edits}))

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(e.info.shard for e in self.edits))

    @property
    def copied_bytes(self) -> int:
        return sum(self.checkpoint.shards[name].size for name in self.shards)


def plan_control(checkpoint: Checkpoint, spec: ControlSpec) -> ControlPlan:
    """Which tensors of a checkpoint to change, and by what; nothing is written.

    Raises
    ------
    UsageError
        A layer that the model does not have.
    CheckpointError
        The tensors that make K are missing, or stored in a way that cannot be multiplied.
    """
    geometry = load_geometry(checkpoint.config)
    if spec.kind == "rope-theta":
        if spec.layers:
            raise UsageError("rope-theta is of the config and changes every layer: leave out --layers")
        config = turned_config(checkpoint.config, spec.strength, source=str(checkpoint.path / "config.json"))
        return ControlPlan(spec=spec, checkpoint=checkpoint, geometry=geometry, edits=(), config=config)
    by_layer = _key_tensors(checkpoint, geometry)
    chosen = _chosen_layers(spec, by_layer)
    edits = tuple(
        Edit(name=name, layer=layer, info=info, factors=_factors(spec, layer, info.shape[0]))
        for layer in chosen
        for name, info in by_layer[layer]
    )
    return ControlPlan(
        spec=spec, checkpoint=checkpoint, geometry=geometry, edits=edits, config=checkpoint.config
    )


def turned_config(config: Mapping[str, Any], factor: float, *, source: str) -> dict[str, Any]:
    """A copy of a config.json with every ``rope_theta`` of the language model times ``factor``.

    Raises
    ------
    CheckpointError
        There is none.
    """
    found = 0

    def turned(fields: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal found
        out = dict(fields)
        for key, value in fields.items():
            if key == "rope_theta" and isinstance(value, (int, float)):
                out[key] = float(value) * factor
                found += 1
            elif key in ("text_config", "rope_parameters", "rope_scaling") and isinstance(value, Mapping):
                out[key] = turned(value)
        return out

    result = turned(config)
    if not found:
        raise CheckpointError(f"{source} states no rope_theta to change; choose noise-k or scale-k")
    return result


def _key_tensors(checkpoint: Checkpoint, geometry: Geometry) -> dict[int, tuple[tuple[str, TensorInfo], ...]]:
    """By layer, the tensors whose rows multiply the cached K."""
    found: dict[int, dict[str, tuple[str, TensorInfo]]] = {}
    for name, info in checkpoint.tensors.items():
        if (m := _LAYER_TENSOR.match(name)) and int(m["layer"]) < geometry.num_layers:
            found.setdefault(int(m["layer"]), {})[m["rest"]] = (name, info)
    result = {}
    for layer in range(geometry.num_layers):
        of_layer = found.get(layer, {})
        if geometry.is_latent:
            wanted = ["kv_a_layernorm.weight"]
        elif "k_norm.weight" in of_layer:
            wanted = ["k_norm.weight"]
        else:
            # With a scale for each row that scale is what multiplies K; weight_packed has such rows too.
            per_row = [n for n in ("k_proj.weight_scale",) if n in of_layer and _is_per_row(of_layer[n][1])]
            wanted = per_row or ["k_proj.weight"]
            wanted += [n for n in ("k_proj.bias",) if n in of_layer]
        if missing := [n for n in wanted if n not in of_layer]:
            raise CheckpointError(
                f"{checkpoint.path}: layer {layer} has no self_attn.{missing[0]}, through which K could be "
                "reached; choose rope-theta, which changes the config only"
            )
        for rest in wanted:
            name, info = of_layer[rest]
            if info.dtype not in _FLOATS or not info.shape:
                raise CheckpointError(
                    f"{checkpoint.path}: {name} is stored as {info.dtype}{list(info.shape)}, whose rows "
                    "cannot be multiplied here; make it from the BF16 checkpoint, or choose rope-theta"
                )
        result[layer] = tuple(of_layer[rest] for rest in wanted)
    return result


def _is_per_row(info: TensorInfo) -> bool:
    return len(info.shape) == 2 and info.shape[1] == 1 and info.shape[0] > 1


def _chosen_layers(
    spec: ControlSpec, by_layer: Mapping[int, tuple[tuple[str, TensorInfo], ...]]
) -> tuple[int, ...]:
    if spec.layers == ():
        return tuple(by_layer)
    if spec.layers is not None:
        if unknown := [layer for layer in spec.layers if layer not in by_layer]:
            raise UsageError(f"--layers {unknown[0]}: the model's layers are 0 to {len(by_layer) - 1}")
        return tuple(sorted(set(spec.layers)))
    whole: dict[str, list[int]] = {}  # shard -> layers whose tensors are all in it
    for layer, tensors in by_layer.items():
        shards = {info.shard for _, info in tensors}
        if len(shards) == 1:
            whole.setdefault(shards.pop(), []).append(layer)
    if not whole:
        raise UsageError("no layer's K tensors lie in one shard; name layers with --layers")
    # Ties go to the first layers: what is wrong there is wrong in everything above.
    best: list[int] = max(whole.values(), key=lambda layers: (len(layers), -layers[0]))
    return tuple(best)


def _factors(spec: ControlSpec, layer: int, rows: int) -> npt.NDArray[np.float64]:
    if spec.kind == "scale-k":
        return np.full(rows, spec.strength)
    noise = np.random.default_rng([spec.seed, layer]).standard_normal(rows)
    factors: npt.NDArray[np.float64] = 1 + spec.strength * noise / np.sqrt(np.mean(noise**2))
    return factors
