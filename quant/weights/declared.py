"""How a checkpoint's config says that its weights are stored.

Read are: ``fp8`` (blocks or one scale a tensor) and ``mxfp8`` as SGLang and transformers use them;
compressed-tensors' float-quantized, pack-quantized (4 bit, with or without zero points), nvfp4-,
mxfp4-pack-quantized and mxfp8-quantized; modelopt's NVFP4 and FP8. Anything else is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from equipoise.evals.errors import CheckpointError
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.weights.configs import quantization_of
from equipoise.quant.weights.formats import (
    Fp8Block,
    Fp8Channel,
    Int4Grouped,
    Mxfp4,
    Mxfp8,
    Nvfp4,
    WeightFormat,
)
from equipoise.quant.weights.zero_points import Int4ZeroPoint

__all__ = ["Scheme", "scheme_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a checkpoint says its weights are stored.

    ``names`` maps our name of each part to the one in this checkpoint; ``inverse_global``: the tensor's scale
    is stored as its reciprocal (compressed-tensors' NVFP4).
    """

    described: str
    format: WeightFormat
    names: Mapping[str, str]
    inverse_global: bool = False

    @property
    def codes(self) -> str:
        """The suffix of the tensor that holds the codes."""
        return next(iter(self.names.values()))


def _refuse(checkpoint: Checkpoint, what: str) -> CheckpointError:
    return CheckpointError(f"{checkpoint.path}: quantized as {what}, which cannot be read here")


def scheme_of(checkpoint: Checkpoint) -> Scheme:
    """What the config declares.

    Raises
    ------
    CheckpointError
        No quantization is declared, or one that is not read here.
    """
    declared = quantization_of(checkpoint.config)
    if declared is None:
        raise CheckpointError(
            f"{checkpoint.path}: config.json declares no quantization; there is nothing to dequantize"
        )
    method = str(declared.get("quant_method", "modelopt" if "quant_algo" in declared else ""))
    if method == "fp8":
        block = declared.get("weight_block_size")
        if block is None:
            names = {"weight": "weight", "weight_scale": "weight_scale"}
            return Scheme(described="fp8 per tensor", format=Fp8Channel(), names=names)
        names = {"weight": "weight", "weight_scale_inv": "weight_scale_inv"}
        return Scheme(described="fp8-block", format=Fp8Block(block=_block(checkpoint, block)), names=names)
    if method == "mxfp8":
        names = {"weight": "weight", "weight_scale_inv": "weight_scale_inv"}
        return Scheme(described="mxfp8", format=Mxfp8(), names=names)
    if method == "compressed-tensors":
        return _compressed_tensors(checkpoint, declared)
    if method.startswith("modelopt"):
        return _modelopt(checkpoint, declared)
    raise _refuse(checkpoint, repr(method))


def _block(checkpoint: Checkpoint, block: Any) -> tuple[int, int]:
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(b) is int and 0 < b < 65536 for b in block)
    ):
        raise CheckpointError(f"{checkpoint.path}: weight_block_size is {block!r}, not two sizes")
    return block[0], block[1]


def _compressed_tensors(  # noqa: PLR0911  one return for each format
    checkpoint: Checkpoint, declared: Mapping[str, Any]
) -> Scheme:
    groups = declared.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        count = len(groups) if isinstance(groups, Mapping) else 0
        raise _refuse(checkpoint, f"compressed-tensors with {count} config_groups")
    group = next(iter(groups.values()))
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise _refuse(checkpoint, "compressed-tensors without a description of its weights")
    form = str(group.get("format") or declared.get("format"))
    strategy, size = weights.get("strategy"), weights.get("group_size")
    # "weight" (and its alias) orders columns while calibrating and stores them in place.
    if weights.get("actorder") not in (None, False, "weight", "static"):
        raise _refuse(checkpoint, f"{form}, reordered by activation")
    with_zero_points = not weights.get("symmetric", True)
    is_int4 = weights.get("type") == "int" and weights.get("num_bits") == 4
    if form == "pack-quantized" and is_int4 and type(size) is int and 8 <= size <= 4096:
        names = {n: n for n in ("weight_packed", "weight_scale", "weight_shape")}
        if not with_zero_points:
            return Scheme(described="int4-g32", format=Int4Grouped(group=size), names=names)
        names["weight_zero_point"] = "weight_zero_point"
        return Scheme(described="int4-g32", format=Int4ZeroPoint(group=size), names=names)
    if with_zero_points:
        raise _refuse(checkpoint, f"{form}, asymmetric")
    scaled = {"weight": "weight", "weight_scale": "weight_scale"}
    if (
        form in ("float-quantized", "naive-quantized")
        and weights.get("type") == "float"
        and weights.get("num_bits") == 8
    ):
        if strategy in ("channel", "tensor"):
            return Scheme(described="fp8-channel", format=Fp8Channel(), names=scaled)
        if strategy == "block":
            block = _block(checkpoint, weights.get("block_structure"))
            names = {"weight": "weight", "weight_scale_inv": "weight_scale"}
            return Scheme(described="fp8-block", format=Fp8Block(block=block), names=names)
    if form == "nvfp4-pack-quantized":
        names = {
            "weight": "weight_packed",
            "weight_scale": "weight_scale",
            "weight_scale_2": "weight_global_scale",
        }
        return Scheme(described="nvfp4", format=Nvfp4(), names=names, inverse_global=True)
    if form == "mxfp4-pack-quantized":
        names = {"weight_packed": "weight_packed", "weight_scale": "weight_scale"}
        return Scheme(described="mxfp4", format=Mxfp4(), names=names)
    if form == "mxfp8-quantized":
        names = {"weight": "weight", "weight_scale_inv": "weight_scale"}
        return Scheme(described="mxfp8", format=Mxfp8(), names=names)
    raise _refuse(checkpoint, f"compressed-tensors {form} ({weights.get('num_bits')} bits, {strategy})")


def _modelopt(checkpoint: Checkpoint, declared: Mapping[str, Any]) -> Scheme:
    nested = declared.get("quantization")
    inner = nested if isinstance(nested, Mapping) else declared
    algorithm = inner.get("quant_algo")
    if algorithm in ("NVFP4", "W4A16_NVFP4"):
        names = {n: n for n in ("weight", "weight_scale", "weight_scale_2")}
        return Scheme(described="nvfp4", format=Nvfp4(), names=names)
    if algorithm == "FP8":
        names = {"weight": "weight", "weight_scale": "weight_scale"}
        return Scheme(described="fp8 per tensor", format=Fp8Channel(), names=names)
    raise _refuse(checkpoint, f"modelopt {algorithm}")
