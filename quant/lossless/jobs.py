"""Lossless checkpoints through the machinery of quant/weights: parallel over shards, resumable, atomic.

That machinery imports torch; nothing here does until a job runs in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import Checkpoint, read_shard
from equipoise.quant.lossless.config import lossless_config, original_config
from equipoise.quant.lossless.container import SMALLEST_ENCODED_BYTES, is_encoded, is_lossless, read_contents
from equipoise.quant.lossless.reader import LosslessFile
from equipoise.quant.lossless.writer import write_lossless

if TYPE_CHECKING:
    from equipoise.quant.weights.convert import LosslessPlan
    from equipoise.quant.weights.jobs import ShardRecord, Tick

__all__ = ["LosslessJob", "RestoreJob", "convert_plan", "restore_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessJob:
    """Encode the BF16 tensors of one shard; the target has the shard's name and its tensors' names."""

    folder: Path
    file: str
    threads: int = 1

    @property
    def input_bytes(self) -> int:
        return sum(info.nbytes for info in read_shard(self.folder / self.file).tensors.values())

    @property
    def output_bytes(self) -> int:
        """An upper bound: the index of each tensor, and a header that contains the original's."""
        shard = read_shard(self.folder / self.file)
        header_bytes = shard.size - sum(info.nbytes for info in shard.tensors.values())
        return shard.size + shard.size // 2048 + 3 * header_bytes + 512 * len(shard.tensors) + 4096

    def run(self, target: Path, tick: "Tick") -> "ShardRecord":
        target.unlink(missing_ok=True)  # of a run that did not live to record it
        write_lossless(self.folder / self.file, target, threads=self.threads, tick=tick)
        return _record(self.file, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreJob:
    """The original of one lossless shard, byte for byte."""

    folder: Path
    file: str
    threads: int = 1

    @property
    def input_bytes(self) -> int:
        """Of the original: what ``tick`` counts."""
        original = read_contents(read_shard(self.folder / self.file)).original
        return sum(info.nbytes for info in original.tensors.values())

    @property
    def output_bytes(self) -> int:
        return read_contents(read_shard(self.folder / self.file)).original.size

    def run(self, target: Path, tick: "Tick") -> "ShardRecord":
        target.unlink(missing_ok=True)
        with LosslessFile.open(self.folder / self.file) as lossless:
            lossless.restore(target, threads=self.threads, tick=tick)
        return _record(self.file, target)


def convert_plan(checkpoint: Checkpoint, *, threads: int = 1) -> "LosslessPlan":
    """The jobs and the config that make a checkpoint lossless; names of shards and tensors stay.

    Raises
    ------
    UsageError
        It is one already.
    CheckpointError
        It has no BF16 tensor worth encoding.
    """
    from equipoise.quant.weights.convert import LosslessPlan

    if any(is_lossless(shard) for shard in checkpoint.shards.values()):
        raise UsageError(f"{checkpoint.path} is a lossless checkpoint already")
    encoded = sum(is_encoded(info) for info in checkpoint.tensors.values())
    if not encoded:
        raise CheckpointError(
            f"{checkpoint.path} has no BF16 tensor of {SMALLEST_ENCODED_BYTES:,} bytes or more: nothing to "
            "compress without loss"
        )
    return LosslessPlan(
        jobs=[LosslessJob(folder=checkpoint.path, file=file, threads=threads) for file in checkpoint.shards],
        config=lossless_config(checkpoint.config),
        converted=encoded,
        kept=len(checkpoint.tensors) - encoded,
    )


def restore_plan(checkpoint: Checkpoint, *, threads: int = 1) -> "LosslessPlan":
    """The jobs and the config that bring the original back.

    Raises
    ------
    CheckpointError
        A shard or the config is not of a lossless checkpoint, or damaged.
    """
    from equipoise.quant.weights.convert import LosslessPlan

    contents = [read_contents(shard) for shard in checkpoint.shards.values()]
    kept = sum(len(c.checksums) for c in contents)
    return LosslessPlan(
        jobs=[RestoreJob(folder=checkpoint.path, file=file, threads=threads) for file in checkpoint.shards],
        config=original_config(checkpoint.config),
        converted=sum(len(c.original.tensors) for c in contents) - kept,
        kept=kept,
    )


def _record(file: str, target: Path) -> "ShardRecord":
    from equipoise.quant.weights.jobs import ShardRecord, peak_rss_bytes
    from equipoise.quant.weights.shards import checksums

    shard, crc32 = checksums(target)  # read back: what the disk has, not what was meant
    return ShardRecord(file=file, size=shard.size, crc32=crc32, counts={}, peak_rss_bytes=peak_rss_bytes())
