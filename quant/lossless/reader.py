"""Reading a lossless file: one tensor, some rows of it, or the original file byte for byte."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import DTYPE_BITS, Shard, TensorInfo, read_shard
from equipoise.quant.lossless.atomic import new_file
from equipoise.quant.lossless.blocks import checksum
from equipoise.quant.lossless.container import RAW_BLOCK_BYTES, Contents, read_contents
from equipoise.quant.lossless.layout import TensorLayout
from equipoise.quant.lossless.tensor import decode_elements, open_layout, row_range

__all__ = ["LosslessFile", "LosslessTensor"]

_CHUNK_BLOCKS = 16  # blocks that `chunks` decodes at a time: 16 MiB

# What numpy has for the format's dtypes; the others come as their bytes.
_NUMPY = {
    "BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "I8": "i1", "I16": "<i2",
    "I32": "<i4", "I64": "<i8", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessTensor:
    """A tensor of the original. ``nbytes`` are its own, ``stored_bytes`` those it takes here."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    stored_bytes: int
    encoded: bool


class LosslessFile:
    """An open lossless file. Close it, or use it in a ``with`` statement; may be read by several threads."""

    def __init__(self, contents: Contents, descriptor: int) -> None:
        self._contents = contents
        self._descriptor = descriptor
        self._layouts: dict[str, TensorLayout] = {}
        self.path: Path = contents.stored.path
        self.tensors: Mapping[str, LosslessTensor] = {
            name: LosslessTensor(
                dtype=info.dtype,
                shape=info.shape,
                nbytes=info.nbytes,
                stored_bytes=contents.stored.tensors[name].nbytes,
                encoded=name not in contents.checksums,
            )
            for name, info in contents.original.tensors.items()
        }

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "LosslessFile":
        """Read and check the header.

        Raises
        ------
        CheckpointError
            Not a lossless file, of another version, damaged or truncated.
        """
        contents = read_contents(read_shard(Path(path)))
        try:
            return cls(contents, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as e:
            raise CheckpointError(f"cannot read {path}: {e.strerror}") from e

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "LosslessFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def original(self) -> Shard:
        """The header of the file it was made from; offsets are of that file."""
        return self._contents.original

    @property
    def original_header(self) -> bytes:
        return self._contents.original_header

    @property
    def original_bytes(self) -> int:
        return self._contents.original.size

    @property
    def stored_bytes(self) -> int:
        return self._contents.stored.size

    def decode(self, name: str, rows: tuple[int, int] | None = None, *, threads: int = 1) -> NDArray[Any]:
        """A tensor, or its rows [i, j) along the first dimension; only their blocks are read.

        Returns
        -------
        ndarray
            BF16 as uint16 bit patterns; dtypes that numpy has not (float8 ...) as bytes, uint8, those smaller
            than a byte flat.

        Raises
        ------
        CheckpointError
            A block is damaged; names file, tensor and block.
        UsageError
            No such tensor or rows.
        """
        info = self._info(name)
        begin, end, shape = row_range(info.shape, rows)
        if name not in self._contents.checksums:
            return self._decode_elements(name, begin, end, threads).reshape(shape)
        bits = DTYPE_BITS[info.dtype]
        if begin * bits % 8 or end * bits % 8:
            raise UsageError(f"{self.path}: rows {rows} of {name} do not begin and end at whole bytes")
        flat = self._raw(name, begin * bits // 8, end * bits // 8)
        return flat.view(_NUMPY.get(info.dtype, "u1")).reshape(shape if bits >= 8 else -1)

    def elements(self, name: str, begin: int, end: int, *, threads: int = 1) -> NDArray[np.uint16]:
        """Elements [begin, end) of a BF16 tensor, flat, as bit patterns."""
        info = self._info(name)
        assert info.dtype == "BF16", name
        assert 0 <= begin <= end <= info.numel, (begin, end)
        if name in self._contents.checksums:
            return self._raw(name, 2 * begin, 2 * end).view("<u2")
        return self._decode_elements(name, begin, end, threads)

    def chunks(self, name: str, *, threads: int = 1) -> Iterator[NDArray[Any]]:
        """A tensor in order, some 16 MiB at a time: bit patterns of BF16, bytes of the others.

        What is yielded may be overwritten by the next.
        """
        info = self._info(name)
        if name in self._contents.checksums:
            for begin in range(0, info.nbytes, RAW_BLOCK_BYTES):
                yield self._raw(name, begin, min(begin + RAW_BLOCK_BYTES, info.nbytes))
            return
        step = _CHUNK_BLOCKS * self._layout(name).block_elements
        buffer = np.empty(min(step, info.numel), "<u2")
        for begin in range(0, info.numel, step):
            end = min(begin + step, info.numel)
            yield self._decode_elements(name, begin, end, threads, out=buffer[: end - begin])

    def restore(
        self,
        destination: str | os.PathLike[str],
        *,
        threads: int = 1,
        tick: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Write the original file, byte for byte; it appears whole or not at all.

        ``tick`` is told the number of bytes just written.

        Raises
        ------
        CheckpointError
            A block is damaged, or the disk is full.
        UsageError
            ``destination`` exists.
        """
        header = self.original_header
        with new_file(Path(destination)) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for name in self.tensors:
                for chunk in self.chunks(name, threads=threads):
                    file.write(chunk.data)
                    tick(chunk.nbytes)

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise UsageError(f"{self.path} has no tensor {name}")
        return self._contents.original.tensors[name]

    def _read(self, begin: int, end: int) -> bytes:
        """Bytes [begin, end) of the file."""
        try:
            data = os.pread(self._descriptor, end - begin, begin)
        except OSError as e:
            raise CheckpointError(f"cannot read {self.path}: {e.strerror}") from e
        if len(data) != end - begin:
            raise CheckpointError(f"{self.path} was truncated while it was read; restore it from its source")
        return data

    def _layout(self, name: str) -> TensorLayout:
        if name not in self._layouts:
            source, stored = f"{self.path}: tensor {name}", self._contents.stored.tensors[name]
            layout = open_layout(
                lambda b, e: self._read(stored.begin + b, stored.begin + e), stored.nbytes, source
            )
            shape = self._info(name).shape
            if layout.shape != shape:
                raise CheckpointError(
                    f"{source} is encoded with shape {list(layout.shape)}, but the original's header says "
                    f"{list(shape)}; restore the file from its source"
                )
            self._layouts[name] = layout
        return self._layouts[name]

    def _decode_elements(
        self, name: str, begin: int, end: int, threads: int, out: NDArray[np.uint16] | None = None
    ) -> NDArray[np.uint16]:
        at = self._contents.stored.tensors[name].begin
        return decode_elements(
            self._layout(name),
            lambda b, e: self._read(at + b, at + e),
            begin,
            end,
            source=f"{self.path}: tensor {name}",
            threads=threads,
            out=out,
        )

    def _raw(self, name: str, begin: int, end: int) -> NDArray[np.uint8]:
        """Bytes [begin, end) of a tensor that is kept as it was, every block of them checked."""
        stored, sums = self._contents.stored.tensors[name], self._contents.checksums[name]
        out = np.empty(end - begin, np.uint8)
        for block in range(begin // RAW_BLOCK_BYTES, -(-end // RAW_BLOCK_BYTES) if end > begin else 0):
            first = block * RAW_BLOCK_BYTES
            last = min(first + RAW_BLOCK_BYTES, stored.nbytes)
            data = self._read(stored.begin + first, stored.begin + last)
            if checksum(data) != sums[block]:
                raise CheckpointError(
                    f"{self.path}: tensor {name}, block {block} of {len(sums)}: its checksum does not match: "
                    "the bytes were altered or damaged; restore the file from its source"
                )
            low, high = max(begin, first), min(end, last)
            out[low - begin : high - begin] = np.frombuffer(data, np.uint8)[low - first : high - first]
        return out
