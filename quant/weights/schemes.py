"""Quantized weights as they are found in a checkpoint, ours and the field's: which tensors hold which.

What the config says is read in :mod:`equipoise.quant.weights.declared`; here it is held against the tensors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from equipoise.evals.errors import CheckpointError
from equipoise.quant.checkpoint import Checkpoint, TensorInfo
from equipoise.quant.weights.declared import Scheme
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
from equipoise.quant.weights.zero_points import Int4ZeroPoint, unpack_zero_points

__all__ = ["StoredWeight", "stored_weights"]

SLAB_ELEMENTS = 2 * 1024 * 1024
# Tensors beside a quantized weight that a BF16 checkpoint has no use for.
DROPPED_SUFFIXES = (
    ".input_scale", ".input_global_scale", ".weight_zero_point", ".k_scale", ".v_scale", ".q_scale",
    ".prob_scale", ".output_scale",
)  # fmt: skip


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
        if (unused := tensors.get(f"{base}.weight_zero_point")) and isinstance(scheme.format, Int4Grouped):
            _check_unused_zero_point(checkpoint, f"{base}.weight_zero_point", unused, shape[0])
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
    if len(codes.shape) != 2 or codes.numel == 0:
        raise CheckpointError(
            f"{checkpoint.path}: {name} has the shape {list(codes.shape)}, not two axes that hold values; "
            "the checkpoint is damaged: download it again"
        )
    rows, width = codes.shape
    if isinstance(scheme.format, Nvfp4 | Mxfp4):
        return rows, width * 2
    if not isinstance(scheme.format, Int4Grouped | Int4ZeroPoint):
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


def _check_unused_zero_point(checkpoint: Checkpoint, name: str, info: TensorInfo, rows: int) -> None:
    """A symmetric scheme may store zero points, as some writers do, if they are zero."""
    with ShardReader(checkpoint.path) as reader:
        stored = reader.read_whole(info)
    if not bool((stored.view(torch.uint8) == 0).all()) and not (
        info.dtype == "I32" and len(info.shape) == 2 and bool((unpack_zero_points(stored, rows) == 8).all())
    ):
        raise CheckpointError(
            f"{checkpoint.path}: {name} is not zero, but config.json declares symmetric weights; it is the "
            "config of another checkpoint"
        )


_DTYPES_READ: dict[str, tuple[str, ...]] = {"F32": ("F32", "BF16", "F16"), "BF16": ("F32", "BF16", "F16"),
    "I32": ("I32", "I64"), "U8": ("U8", "F8_E8M0", "I8")}  # fmt: skip


def _check_parts(checkpoint: Checkpoint, name: str, weight: StoredWeight) -> None:
    """Dtypes and shapes of the parts against what the format says of a weight of this shape."""
    try:
        parts = weight.format.parts(weight.shape)
    except CheckpointError as e:
        raise CheckpointError(f"{checkpoint.path}: {name} is {list(weight.shape)}: {e}") from e
    for part in parts:
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
