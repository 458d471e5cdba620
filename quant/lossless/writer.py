"""Writing a lossless file from a safetensors file, a few blocks in memory at a time."""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import Shard, TensorInfo, read_shard
from equipoise.quant.lossless.atomic import new_file
from equipoise.quant.lossless.blocks import checksum
from equipoise.quant.lossless.container import (
    RAW_BLOCK_BYTES,
    header_text,
    is_encoded,
    is_lossless,
    reserved_header_bytes,
)
from equipoise.quant.lossless.layout import INDEX_DTYPE, TensorLayout, largest_bytes
from equipoise.quant.lossless.tensor import encode_blocks, index_row

__all__ = ["SafetensorsSource", "Written", "write_lossless"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of a file, in bytes, headers included; BF16 counted apart."""

    original_bytes: int
    stored_bytes: int
    bf16_bytes: int
    bf16_stored_bytes: int


class SafetensorsSource:
    """A safetensors file open for reads at any offset, by several threads."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["SafetensorsSource"]:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise CheckpointError(f"cannot read {path}: {e.strerror}") from e
        try:
            yield cls(path, descriptor)
        finally:
            os.close(descriptor)

    def read(self, begin: int, end: int) -> bytes:
        try:
            data = os.pread(self._descriptor, end - begin, begin)
        except OSError as e:
            raise CheckpointError(f"cannot read {self.path}: {e.strerror}") from e
        if len(data) != end - begin:
            raise CheckpointError(f"{self.path} was truncated while it was read; download it again")
        return data

    def values(self, info: TensorInfo, begin: int, end: int) -> NDArray[np.uint16]:
        """Elements [begin, end) of a flat BF16 tensor."""
        return np.frombuffer(self.read(info.begin + 2 * begin, info.begin + 2 * end), "<u2")


def write_lossless(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    threads: int = 1,
    tick: Callable[[int], None] = lambda _: None,
) -> Written:
    """Write ``destination``, a lossless file, from the safetensors file ``source``.

    Each tensor passes through in blocks: memory is some MB a thread, whatever the size of the file.
    ``destination`` appears whole or not at all. ``tick`` is told the number of source bytes just done.

    Raises
    ------
    CheckpointError
        The source is damaged, or the destination cannot be written.
    UsageError
        The destination exists, or the source is a lossless file already.
    """
    shard = read_shard(Path(source))
    if is_lossless(shard):
        raise UsageError(f"{source} is a lossless file already")
    with SafetensorsSource.open(shard.path) as original, new_file(Path(destination)) as file:
        header = original.read(8, 8 + struct.unpack("<Q", original.read(0, 8))[0])
        try:
            header.decode()
        except UnicodeDecodeError as e:
            raise CheckpointError(f"{source}: its header is not UTF-8 ({e}); download it again") from e
        return _write(shard, header, original, file, threads=threads, tick=tick)


def _write(
    shard: Shard,
    header: bytes,
    original: SafetensorsSource,
    file: BufferedRandom,
    *,
    threads: int,
    tick: Callable[[int], None],
) -> Written:
    largest = {name: largest_bytes(info.shape) for name, info in shard.tensors.items() if is_encoded(info)}
    reserved = reserved_header_bytes(shard, header, largest)
    file.seek(8 + reserved)
    stored: dict[str, int] = {}
    checksums: dict[str, tuple[int, ...]] = {}
    for name, info in shard.tensors.items():
        if name in largest:
            stored[name] = _write_encoded(info, original, file, threads)
        else:
            checksums[name] = _copy(info, original, file)
        tick(info.nbytes)
    end = file.tell()
    text = header_text(shard, header, stored, checksums)
    assert len(text) <= reserved
    file.seek(0)
    file.write(struct.pack("<Q", reserved) + text.ljust(reserved))
    file.seek(end)
    bf16 = sum(info.nbytes for info in shard.tensors.values() if info.dtype == "BF16")
    kept = sum(t.nbytes for name, t in shard.tensors.items() if t.dtype == "BF16" and name not in stored)
    return Written(
        original_bytes=shard.size,
        stored_bytes=end,
        bf16_bytes=bf16,
        bf16_stored_bytes=kept + sum(stored.values()),
    )


def _write_encoded(info: TensorInfo, original: SafetensorsSource, file: BufferedRandom, threads: int) -> int:
    at = file.tell()
    coding, blocks, encoded = encode_blocks(
        lambda begin, end: original.values(info, begin, end), info.shape, threads=threads
    )
    index = np.zeros(blocks, INDEX_DTYPE)
    empty = TensorLayout(
        shape=info.shape, columns=coding.columns, block_elements=coding.block_elements, index=index
    )
    file.seek(at + empty.header_bytes)
    for i, block in enumerate(encoded):
        index[i] = index_row(block)
        file.writelines(block.streams)
    layout = TensorLayout(
        shape=info.shape, columns=coding.columns, block_elements=coding.block_elements, index=index
    )
    file.write(bytes(layout.nbytes - int(layout.starts[-1])))
    file.seek(at)
    file.write(layout.header())
    file.seek(at + layout.nbytes)
    return layout.nbytes


def _copy(info: TensorInfo, original: SafetensorsSource, file: BufferedRandom) -> tuple[int, ...]:
    sums = []
    for begin in range(info.begin, info.end, RAW_BLOCK_BYTES):
        data = original.read(begin, min(begin + RAW_BLOCK_BYTES, info.end))
        sums.append(checksum(data))
        file.write(data)
    return tuple(sums)
