"""KV scale tensors of a checkpoint: which there are, which SGLang would load, what they say."""

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from equipoise.evals.errors import CheckpointError
from equipoise.quant.checkpoint import Checkpoint, TensorInfo
from equipoise.quant.explain.families import ScaleNames

__all__ = ["LayerScales", "ScaleTensor", "find_scales", "layer_scales", "reaches_attention"]

Part = Literal["k", "v"]
Form = Literal["projection", "bare", "attention", "mqa", "kv", "quark"]

_FORMS: tuple[tuple[Form, re.Pattern[str]], ...] = (
    ("projection", re.compile(r"\.self_attn\.([kv])_proj\.\1_scale$")),
    ("mqa", re.compile(r"\.attn_mqa\.([kv])_scale$")),
    ("attention", re.compile(r"\.attn\.([kv])_scale$")),
    ("quark", re.compile(r"\.([kv])_proj\.output_scale$")),
    ("bare", re.compile(r"\.([kv])_scale$")),
    ("kv", re.compile(r"\.(k)v_scale$")),
)
_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,6})\.")
_LOADED: Mapping[ScaleNames, frozenset[Form]] = {
    "remapped": frozenset(("projection", "bare", "kv", "quark")),
    "mla": frozenset(("projection", "mqa")),
    "mla_literal": frozenset(("mqa",)),
    "literal": frozenset(("attention",)),
    "none": frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTensor:
    """One scale tensor. ``value`` is None where it is not one number."""

    name: str
    layer: int | None
    part: Part
    form: Form
    shape: tuple[int, ...]
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScales:
    """What one attention layer ends up with, and the tensors it comes from ("" for none)."""

    layer: int
    k: float
    v: float
    k_tensor: str = ""
    v_tensor: str = ""
    copied: bool = False  # v was missing and is k's
    asserts: bool = False  # SGLang's assertion fails


def find_scales(checkpoint: Checkpoint) -> tuple[ScaleTensor, ...]:
    """All KV scale tensors, whether SGLang would load them or not.

    Raises
    ------
    CheckpointError
        A shard cannot be read.
    """
    found = []
    for name, info in checkpoint.tensors.items():
        for form, pattern in _FORMS:
            if matched := pattern.search(name):
                layer = _LAYER.search(name)
                found.append(
                    ScaleTensor(
                        name=name,
                        layer=int(layer[1]) if layer else None,
                        part="v" if matched[1] == "v" else "k",
                        form=form,
                        shape=info.shape,
                        value=_value(checkpoint, name, info),
                    )
                )
                break
    return tuple(found)


def reaches_attention(tensor: ScaleTensor, names: ScaleNames) -> bool:
    """Whether a model that renames scales in this way finds a place for the tensor."""
    return tensor.form in _LOADED[names]


def layer_scales(layer: int, tensors: Mapping[Part, ScaleTensor]) -> LayerScales:
    """As ``BaseKVCacheMethod.process_weights_after_loading`` does it; -1 where a tensor is missing."""
    k, v = (t.value if (t := tensors.get(p)) is not None and t.value is not None else -1.0 for p in _PARTS)
    names = {p: t.name for p, t in tensors.items()}
    if k > 0 and v > 0:
        return LayerScales(layer=layer, k=k, v=v, k_tensor=names["k"], v_tensor=names["v"])
    if k <= 0 and v <= 0:
        return LayerScales(
            layer=layer, k=1.0, v=1.0, k_tensor=names.get("k", ""), v_tensor=names.get("v", "")
        )
    if k > 0:
        # max(k, v): with v missing or not positive this is k; max with NaN keeps the first, too.
        return LayerScales(
            layer=layer, k=k, v=k, k_tensor=names["k"], v_tensor=names.get("v", ""), copied=True
        )
    return LayerScales(
        layer=layer, k=k, v=v, k_tensor=names.get("k", ""), v_tensor=names.get("v", ""), asserts=True
    )


_PARTS: tuple[Part, Part] = ("k", "v")


def _value(checkpoint: Checkpoint, name: str, info: TensorInfo) -> float | None:
    if info.numel != 1 or info.dtype not in ("F64", "F32", "F16", "BF16"):
        return None
    try:
        with (checkpoint.path / info.shard).open("rb") as f:
            f.seek(info.begin)
            raw = f.read(info.nbytes)
    except OSError as e:
        raise CheckpointError(f"cannot read {name} from {info.shard}: {e.strerror}") from e
    if len(raw) != info.nbytes:
        raise CheckpointError(f"{info.shard} ended while {name} was read; download it again")
    if info.dtype == "BF16":
        raw = b"\0\0" + raw
    value = struct.unpack({"F64": "<d", "F16": "<e"}.get(info.dtype, "<f"), raw)[0]
    assert isinstance(value, float)
    return value if not math.isnan(value) else math.nan
