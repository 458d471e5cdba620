"""One shard's work, as a value that another process can run: encode, decode or copy each tensor.

A job writes one file of the target. Jobs know nothing of each other, so they run in any order and in any
number of processes; a job that was done is recognised by its record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from equipoise.quant.checkpoint import TensorInfo
from equipoise.quant.weights.formats import WeightFormat
from equipoise.quant.weights.resident import peak_rss_bytes
from equipoise.quant.weights.schemes import StoredWeight
from equipoise.quant.weights.shards import Layout, ShardReader, ShardWriter, plan_layout, slabs_of_bytes
from equipoise.quant.weights.tiles import EncodeCounts, Scratch

__all__ = [
    "AmaxJob",
    "ConvertJob",
    "DequantizeJob",
    "ShardJob",
    "ShardRecord",
    "Tick",
    "peak_rss_bytes",
    "slab_rows",
]

Tick = Callable[[int], None]  # called with the number of source bytes just done
SLAB_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """What a finished job wrote. ``counts`` are of encoded tensors only."""

    file: str
    size: int
    crc32: Mapping[str, int]  # by tensor
    counts: Mapping[str, EncodeCounts]
    peak_rss_bytes: int  # of the process that did it, at its end


class ShardJob(Protocol):
    """Work that writes one file. ``bf16-lossless`` brings jobs of its own."""

    @property
    def file(self) -> str: ...
    @property
    def input_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int:
        """At most this many bytes are written."""
        ...

    def run(self, target: Path, tick: Tick) -> ShardRecord:
        """Write ``target`` whole or not at all."""


def slab_rows(info: TensorInfo, multiple: int) -> int:
    """Rows to read at once: about SLAB_BYTES, a multiple of ``multiple``."""
    row_bytes = max(1, info.nbytes // max(1, info.shape[0]))
    return max(1, SLAB_BYTES // (row_bytes * multiple)) * multiple


def _record(file: str, writer: ShardWriter, counts: Mapping[str, EncodeCounts]) -> ShardRecord:
    return ShardRecord(
        file=file, size=writer.layout.size, crc32=writer.crc, counts=counts, peak_rss_bytes=peak_rss_bytes()
    )


def _copy(reader: ShardReader, writer: ShardWriter, name: str, info: TensorInfo, tick: Tick) -> None:
    for begin, end in slabs_of_bytes(info.nbytes):
        writer.append(name, reader.read_bytes(info, begin, end))
        tick(end - begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertJob:
    """Encode some tensors of one source shard and copy the rest.

    ``amax`` holds the tensor maxima that a format needs, merged over what a server loads together.
    """

    folder: Path
    file: str
    tensors: Mapping[str, TensorInfo]
    format: WeightFormat
    converted: frozenset[str]
    amax: Mapping[str, float]

    @property
    def input_bytes(self) -> int:
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def output_bytes(self) -> int:
        return self.layout().size

    def layout(self) -> Layout:
        entries: list[tuple[str, str, tuple[int, ...]]] = []
        for name, info in self.tensors.items():
            if name in self.converted:
                base = name.removesuffix("weight")
                entries += [
                    (base + part.name, part.dtype, part.shape) for part in self.format.parts(info.shape)
                ]
            else:
                entries.append((name, info.dtype, info.shape))
        return plan_layout(self.file, entries)

    def run(self, target: Path, tick: Tick) -> ShardRecord:
        scratch = Scratch()
        counts: dict[str, EncodeCounts] = {}
        with ShardReader(self.folder) as reader, ShardWriter(target, self.layout()) as writer:
            for name, info in self.tensors.items():
                if name in self.converted:
                    counts[name] = self._encode(reader, writer, name, scratch, tick)
                else:
                    _copy(reader, writer, name, info, tick)
            writer.finish()
            return _record(self.file, writer, counts)

    def _encode(
        self, reader: ShardReader, writer: ShardWriter, name: str, scratch: Scratch, tick: Tick
    ) -> EncodeCounts:
        info, base = self.tensors[name], name.removesuffix("weight")
        parts = {part.name: part for part in self.format.parts(info.shape)}
        rows, step = info.shape[0], slab_rows(info, self.format.row_multiple)
        counts = EncodeCounts()
        for top in range(0, rows, step):
            bottom = min(rows, top + step)
            slab = reader.read_rows(info, top, bottom)
            encoded, slab_counts = self.format.encode(
                slab, shape=info.shape, amax=self.amax.get(name), scratch=scratch
            )
            counts += slab_counts
            for part_name, tensor in encoded.items():
                if parts[part_name].rows_each or top == 0:
                    writer.append(base + part_name, tensor)
            tick(slab.numel() * slab.element_size())
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class DequantizeJob:
    """Decode the quantized weights whose codes are in one source shard to BF16, and copy the rest."""

    folder: Path
    file: str
    copied: Mapping[str, TensorInfo]
    decoded: Mapping[str, StoredWeight]  # name of the weight -> where its parts are

    @property
    def input_bytes(self) -> int:
        stored = sum(info.nbytes for w in self.decoded.values() for info in w.parts.values())
        return stored + sum(info.nbytes for info in self.copied.values())

    @property
    def output_bytes(self) -> int:
        return self.layout().size

    def layout(self) -> Layout:
        entries = [(name, info.dtype, info.shape) for name, info in self.copied.items()]
        entries += [(name, "BF16", weight.shape) for name, weight in self.decoded.items()]
        return plan_layout(self.file, entries)

    def run(self, target: Path, tick: Tick) -> ShardRecord:
        scratch = Scratch()
        with ShardReader(self.folder) as reader, ShardWriter(target, self.layout()) as writer:
            for name, weight in self.decoded.items():
                for slab in weight.decoded_slabs(reader, scratch):
                    writer.append(name, slab)
                tick(sum(info.nbytes for info in weight.parts.values()))
            for name, info in self.copied.items():
                _copy(reader, writer, name, info, tick)
            writer.finish()
            return _record(self.file, writer, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class AmaxJob:
    """The largest finite magnitude of each of some tensors; reads, writes nothing."""

    folder: Path
    tensors: Mapping[str, TensorInfo]

    @property
    def input_bytes(self) -> int:
        return sum(info.nbytes for info in self.tensors.values())

    def run(self, tick: Tick) -> dict[str, float]:
        scratch, found = Scratch(), {}
        with ShardReader(self.folder) as reader:
            for name, info in self.tensors.items():
                rows, step, amax = info.shape[0], slab_rows(info, 1), 0.0
                for top in range(0, rows, step):
                    slab = reader.read_rows(info, top, min(rows, top + step))
                    amax = max(amax, _slab_amax(slab, scratch))
                    tick(slab.numel() * slab.element_size())
                found[name] = amax
        return found


def _slab_amax(slab: torch.Tensor, scratch: Scratch) -> float:
    values = scratch.take("amax_values", tuple(slab.shape), torch.float32).copy_(slab).abs_()
    largest = float(values.max()) if values.numel() else 0.0
    if largest < float("inf"):
        return largest
    return float(values.nan_to_num_(nan=0.0, posinf=0.0).max())
