"""What lossless BF16 saves, or has saved, on the files of a checkpoint: by kind of tensor, with its limit.

The limit is (H + 8) / 16, H the entropy of the exponents: signs and mantissas of trained weights are noise.
Sampled blocks are really encoded, so that the prediction is the codec's, not the limit's.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from equipoise.quant.checkpoint import Checkpoint, Shard, TensorInfo, read_shard
from equipoise.quant.lossless.blocks import encode_block
from equipoise.quant.lossless.container import is_encoded, is_lossless
from equipoise.quant.lossless.entropy import entropy_of_counts
from equipoise.quant.lossless.layout import INDEX_DTYPE, header_bytes
from equipoise.quant.lossless.reader import LosslessFile
from equipoise.quant.lossless.tensor import ReadValues, choose_coding
from equipoise.quant.lossless.writer import SafetensorsSource

__all__ = ["KindStat", "LosslessStat", "lossless_stat", "tensor_kind"]

T = TypeVar("T")

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KindStat:
    """Tensors whose names differ in numbers only. None: not BF16, or nothing of it was encoded."""

    kind: str
    dtype: str
    tensors: int
    nbytes: int
    sampled_bytes: int
    exponent_bits: float | None  # entropy of the sampled exponents
    predicted: float | None  # stored / original of the sample
    stored_bytes: int | None  # in a lossless file

    @property
    def limit(self) -> float | None:
        """(H + 8) / 16."""
        return None if self.exponent_bits is None else (self.exponent_bits + 8) / 16

    @property
    def stored(self) -> float | None:
        """Stored / original, of all of it."""
        return self.stored_bytes / self.nbytes if self.stored_bytes is not None and self.nbytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessStat:
    path: Path
    kinds: tuple[KindStat, ...]  # the largest first

    @property
    def total_bytes(self) -> int:
        return sum(k.nbytes for k in self.kinds)

    @property
    def bf16_bytes(self) -> int:
        return sum(k.nbytes for k in self.kinds if k.dtype == "BF16")

    @property
    def predicted_saved_share(self) -> float:
        """Of all tensors' bytes."""
        saved = sum(k.nbytes * (1 - k.predicted) for k in self.kinds if k.predicted is not None)
        return saved / self.total_bytes if self.total_bytes else 0.0

    @property
    def stored_saved_share(self) -> float | None:
        """None unless every file is a lossless one."""
        if any(k.stored_bytes is None for k in self.kinds) or not self.total_bytes:
            return None
        return 1 - sum(k.stored_bytes or 0 for k in self.kinds) / self.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    info: TensorInfo
    values: ReadValues
    stored_bytes: int | None


def tensor_kind(name: str) -> str:
    """``model.layers.3.mlp.experts.17.up_proj.weight`` -> ``model.layers.*.mlp.experts.*.up_proj.weight``."""
    return _NUMBER.sub("*", name)


def lossless_stat(
    path: str | os.PathLike[str], *, tensors_per_kind: int | None = 8, blocks_per_tensor: int | None = 4
) -> LosslessStat:
    """Sample a checkpoint folder or one safetensors file, lossless or not.

    Parameters
    ----------
    tensors_per_kind, blocks_per_tensor : int or None
        How much of each kind to encode, evenly spaced; None: all of it.

    Raises
    ------
    CheckpointError
        Files are missing or damaged.
    """
    target = Path(path)
    shards: Mapping[str, Shard]
    if target.is_dir():
        shards = Checkpoint.open(target, require_config=False).shards
    else:
        shards = {target.name: read_shard(target)}
    kinds: dict[tuple[str, str], list[_Tensor]] = {}
    with ExitStack() as stack:
        for shard in shards.values():
            for name, tensor in _tensors(shard, stack).items():
                kinds.setdefault((tensor_kind(name), tensor.info.dtype), []).append(tensor)
        found = [
            _measure(kind, dtype, tensors, tensors_per_kind, blocks_per_tensor)
            for (kind, dtype), tensors in kinds.items()
        ]
    return LosslessStat(path=target, kinds=tuple(sorted(found, key=lambda k: -k.nbytes)))


def _tensors(shard: Shard, stack: ExitStack) -> dict[str, _Tensor]:
    if not is_lossless(shard):
        source = stack.enter_context(SafetensorsSource.open(shard.path))
        return {
            name: _Tensor(info=info, values=partial(source.values, info), stored_bytes=None)
            for name, info in shard.tensors.items()
        }
    file = stack.enter_context(LosslessFile.open(shard.path))
    return {
        name: _Tensor(
            info=info, values=partial(file.elements, name), stored_bytes=file.tensors[name].stored_bytes
        )
        for name, info in file.original.tensors.items()
    }


def _measure(
    kind: str, dtype: str, tensors: list[_Tensor], most_tensors: int | None, most_blocks: int | None
) -> KindStat:
    counts, sampled, encoded = np.zeros(256, np.int64), 0, 0
    for tensor in _spread(tensors, most_tensors) if dtype == "BF16" else []:
        nbytes = tensor.info.nbytes
        if is_encoded(tensor.info):
            nbytes, stored, histogram = _encode_sample(tensor, most_blocks)
            counts += histogram
            encoded += stored
        else:
            encoded += nbytes
        sampled += nbytes
    stored_bytes = [t.stored_bytes for t in tensors if t.stored_bytes is not None]
    return KindStat(
        kind=kind,
        dtype=dtype,
        tensors=len(tensors),
        nbytes=sum(t.info.nbytes for t in tensors),
        sampled_bytes=sampled,
        exponent_bits=entropy_of_counts(counts) if counts.any() else None,
        predicted=encoded / sampled if sampled else None,
        stored_bytes=sum(stored_bytes) if len(stored_bytes) == len(tensors) else None,
    )


def _spread(items: Sequence[T], most: int | None) -> list[T]:
    """At most so many of them, evenly spaced, the first and the last among them."""
    if most is None or len(items) <= most:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, most).astype(int).tolist()]


def _encode_sample(tensor: _Tensor, most_blocks: int | None) -> tuple[int, int, NDArray[np.int64]]:
    """Bytes sampled, bytes they are stored in, and the histogram of their exponents."""
    coding = choose_coding(tensor.values, tensor.info.shape)
    sampled, stored, counts = 0, 0, np.zeros(256, np.int64)
    numel = tensor.info.numel
    for begin in _spread(range(0, numel, coding.block_elements), most_blocks):
        values = tensor.values(begin, min(begin + coding.block_elements, numel))
        block = encode_block(values, columns=coding.columns, pack_mantissas=coding.pack_mantissas)
        counts += np.bincount(values >> 7 & 0xFF, minlength=256)
        sampled += values.nbytes
        stored += block.entry.nbytes + INDEX_DTYPE.itemsize
    stored += header_bytes(len(tensor.info.shape), 0) * sampled // tensor.info.nbytes  # its share of the rest
    return sampled, stored, counts
