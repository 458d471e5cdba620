"""Quantized weights as they are found in a checkpoint: ours and the field's, told by config and tensors.

Read are: ``fp8`` (blocks or one scale a tensor) and ``mxfp8`` as SGLang and transformers use them;
compressed-tensors' float-quantized, pack-quantized (symmetric 4 bit), nvfp4-, mxfp4-pack-quantized and
mxfp8-quantized; modelopt's NVFP4 and FP8. Anything else is refused by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from equipoise.evals.errors import CheckpointError
from equipoise.quant.checkpoint import Checkpoint, TensorInfo
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
from equipoise.quant.weights.shards import ShardReader
from equipoise.quant.weights.tiles import Scratch

__all__ = ["Scheme", "StoredWeight", "scheme_of", "stored_weights"]

SLAB_ELEMENTS = 2 * 1024 * 1024
# Tensors beside a quantized weight that a BF16 checkpoint has no use for.
DROPPED_SUFFIXES = (
    ".input_scale", ".input_global_scale", ".weight_zero_point", ".k_scale", ".v_scale", ".q_scale",
    ".prob_scale", ".output_scale",
)  # fmt: skip


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """One quantized weight: its shape and the tensors that hold it, by our names of the parts."""

    format: WeightFormat
    shape: tuple[int, ...]
    parts: Mapping[str, TensorInfo]
    inverse_global: bool

    def part_slabs(
        self, reader: ShardReader, *, multiple: int = 1
    ) -> Iterator[tuple[int, int, dict[str, torch.Tensor]]]:
        """(top, bottom, parts) over the rows, in slabs of a bounded size."""
        rows, columns = self.shape
        each = {name: self._rows_each(name, info) for name, info in self.parts.items()}
        whole = {name: reader.read_whole(self.parts[name]) for name, n in each.items() if n == 0}
        if self.inverse_global:
            whole["weight_scale_2"] = 1.0 / whole["weight_scale_2"].to(torch.float32)
        unit = max(multiple, self.format.row_multiple)
        step = max(1, SLAB_ELEMENTS // (max(1, columns) * unit)) * unit
        for top in range(0, rows, step):
            bottom = min(rows, top + step)
            slab = dict(whole)
            for name, n in each.items():
                if n:
                    slab[name] = reader.read_rows(self.parts[name], top // n, -(-bottom // n), "part " + name)
            yield top, bottom, slab

    def _rows_each(self, name: str, info: TensorInfo) -> int:
        if info.numel == 1 and name != "weight":
            return 0
        return next(part.rows_each for part in self.format.parts(self.shape) if part.name == name)

    def decode(
        self, top: int, bottom: int, slab: Mapping[str, torch.Tensor], scratch: Scratch
    ) -> torch.Tensor:
        """Float32 rows [top, bottom) in a scratch buffer."""
        out = scratch.take("decoded", (bottom - top, self.shape[1]), torch.float32)
        return self.format.decode(slab, columns=self.shape[1], out=out, scratch=scratch)

    def decoded_slabs(self, reader: ShardReader, scratch: Scratch) -> Iterator[torch.Tensor]:
        """BF16 slabs of rows, in order: rounded once from float32; each is overwritten by the next."""
        for top, bottom, slab in self.part_slabs(reader):
            out = scratch.take("bfloat16", (bottom - top, self.shape[1]), torch.bfloat16)
            if self.format.decodes_bfloat16:
                self.format.decode(slab, columns=self.shape[1], out=out, scratch=scratch)
            else:
                out.copy_(self.decode(top, bottom, slab, scratch))
            yield out


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


def _compressed_tensors(checkpoint: Checkpoint, declared: Mapping[str, Any]) -> Scheme:
    groups = declared.get("config_groups") or {}
    if len(groups) != 1:
        raise _refuse(checkpoint, f"compressed-tensors with {len(groups)} config_groups")
    group = next(iter(groups.values()))
    weights = group.get("weights") or {}
    form = str(group.get("format") or declared.get("format"))
    strategy, size = weights.get("strategy"), weights.get("group_size")
    if not weights.get("symmetric", True) or weights.get("actorder"):
        raise _refuse(checkpoint, f"{form}, asymmetric or reordered by activation")
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
    is_int4 = weights.get("type") == "int" and weights.get("num_bits") == 4
    if form == "pack-quantized" and is_int4 and isinstance(size, int) and 8 <= size <= 4096:
        names = {n: n for n in ("weight_packed", "weight_scale", "weight_shape")}
        return Scheme(described="int4-g32", format=Int4Grouped(group=size), names=names)
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
    inner = declared.get("quantization") or declared
    algorithm = inner.get("quant_algo")
    if algorithm in ("NVFP4", "W4A16_NVFP4"):
        names = {n: n for n in ("weight", "weight_scale", "weight_scale_2")}
        return Scheme(described="nvfp4", format=Nvfp4(), names=names)
    if algorithm == "FP8":
        names = {"weight": "weight", "weight_scale": "weight_scale"}
        return Scheme(described="fp8 per tensor", format=Fp8Channel(), names=names)
    raise _refuse(checkpoint, f"modelopt {algorithm}")


def stored_weights(checkpoint: Checkpoint, scheme: Scheme) -> tuple[dict[str, StoredWeight], frozenset[str]]:
    """Every quantized weight by the name of the BF16 weight it stands for, and the tensors they use up.

    Raises
    ------
    CheckpointError
        A part is missing, has the wrong dtype or shape, or stands alone: the config contradicts the tensors.
    """
    tensors = checkpoint.tensors
    first, *rest = scheme.names.items()
    found: dict[str, StoredWeight] = {}
    used: set[str] = set()
    for name, info in tensors.items():
        base, _, leaf = name.rpartition(".")
        if leaf != first[1] or not _holds_codes(scheme, info):
            continue
        parts = {first[0]: info}
        for ours, theirs in rest:
            if (other := tensors.get(f"{base}.{theirs}")) is None:
                raise CheckpointError(
                    f"{checkpoint.path}: {name} is quantized ({scheme.described}), but {base}.{theirs} is "
                    "missing; a shard is missing, or the config is of another checkpoint"
                )
            parts[ours] = other
        shape = _weight_shape(checkpoint, scheme, name, parts)
        weight = StoredWeight(
            format=scheme.format, shape=shape, parts=parts, inverse_global=scheme.inverse_global
        )
        _check_parts(checkpoint, name, weight)
        found[f"{base}.weight"] = weight
        used |= {f"{base}.{theirs}" for theirs in scheme.names.values()}
    if not found:
        raise CheckpointError(
            f"{checkpoint.path}: config.json declares {scheme.described}, but no tensor is quantized "
            "so; it is the config of another checkpoint"
        )
    for name, info in tensors.items():
        stray = info.dtype.startswith("F8") or name.endswith(
            (".weight_packed", ".weight_scale_inv", ".weight_g_idx")
        )
        if stray and name not in used and not name.endswith(DROPPED_SUFFIXES):
            raise CheckpointError(
                f"{checkpoint.path}: {name} ({info.dtype}) belongs to no weight of the declared "
                f"{scheme.described}; the config contradicts the tensors"
            )
    dropped = {name for name in tensors if name.endswith(DROPPED_SUFFIXES) and name not in used}
    return found, frozenset(used | dropped)


def _holds_codes(scheme: Scheme, info: TensorInfo) -> bool:
    wanted = "F8_E4M3" if isinstance(scheme.format, Fp8Block | Fp8Channel | Mxfp8) else None
    if wanted:
        return info.dtype == wanted
    return info.dtype in ("U8", "I8", "I32", "F4")


def _weight_shape(
    checkpoint: Checkpoint, scheme: Scheme, name: str, parts: Mapping[str, TensorInfo]
) -> tuple[int, ...]:
    codes = next(iter(parts.values()))
    if len(codes.shape) != 2:
        raise CheckpointError(f"{checkpoint.path}: {name} has the shape {list(codes.shape)}, not two axes")
    rows, width = codes.shape
    if isinstance(scheme.format, Nvfp4 | Mxfp4):
        return rows, width * 2
    if not isinstance(scheme.format, Int4Grouped):
        return rows, width
    info = parts["weight_shape"]
    if info.dtype not in ("I32", "I64") or info.shape != (2,):
        raise CheckpointError(f"{checkpoint.path}: {name}'s weight_shape is {info.dtype}{list(info.shape)}")
    with ShardReader(checkpoint.path) as reader:
        stated = reader.read_whole(info).tolist()
    if stated[0] != rows or -(-stated[1] // 8) != width:
        raise CheckpointError(
            f"{checkpoint.path}: {name} has {rows} x {width} packed words, but its weight_shape says {stated}"
        )
    return stated[0], stated[1]


_DTYPES_READ: dict[str, tuple[str, ...]] = {"F32": ("F32", "BF16", "F16"), "BF16": ("F32", "BF16", "F16"),
    "I32": ("I32", "I64"), "U8": ("U8", "F8_E8M0", "I8")}  # fmt: skip


def _check_parts(checkpoint: Checkpoint, name: str, weight: StoredWeight) -> None:
    """Dtypes and shapes of the parts against what the format says of a weight of this shape."""
    for part in weight.format.parts(weight.shape):
        info = weight.parts[part.name]
        if info.dtype not in _DTYPES_READ.get(part.dtype, (part.dtype,)):
            raise CheckpointError(
                f"{checkpoint.path}: {name}: its {part.name} is {info.dtype}, where {part.dtype} is due"
            )
        per_tensor = isinstance(weight.format, Fp8Channel) and part.name == "weight_scale"
        same = info.shape == part.shape or (info.numel == 1 and part.shape in ((), (1,)))
        flat = per_tensor and info.numel in (1, weight.shape[0])
        if not same and not flat:
            raise CheckpointError(
                f"{checkpoint.path}: {name} is {list(weight.shape)}, so its {part.name} should be "
                f"{list(part.shape)}, not {list(info.shape)}"
            )
