"""Safetensors shards read and written slab by slab: buffers of a few megabytes, whatever a tensor's size.

Shapes are known before anything is computed, so the header and all offsets are written first and every slab
goes straight to its place. Memory maps are avoided: their pages count as resident memory.
"""

import contextlib
import errno
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from equipoise.evals.errors import CheckpointError
from equipoise.quant.checkpoint import DTYPE_BITS, Shard, TensorInfo, read_shard

__all__ = [
    "TORCH_DTYPES",
    "Layout",
    "ShardReader",
    "ShardWriter",
    "checksums",
    "plan_layout",
    "slabs_of_bytes",
    "storage_error",
]

TORCH_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu, "I16": torch.int16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "F32": torch.float32, "F64": torch.float64,
    "I64": torch.int64,
}  # fmt: skip
COPY_BYTES = 4 * 1024 * 1024
# The order of the safetensors library: wide dtypes come first, so that every tensor is aligned.
_ORDER = (
    "U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E5M2FNUZ",
    "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2", "I8", "U8", "F6_E3M2", "F6_E2M3", "F4", "BOOL",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A shard to be written: its header's bytes and where each tensor goes."""

    header: bytes
    tensors: Mapping[str, TensorInfo]
    size: int  # bytes of the whole file


def plan_layout(file: str, entries: Iterable[tuple[str, str, tuple[int, ...]]]) -> Layout:
    """Order and place tensors (name, dtype, shape) as the safetensors library does, byte for byte."""
    ordered = sorted(entries, key=lambda e: (_ORDER.index(e[1]), e[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape in ordered:
        nbytes = DTYPE_BITS[dtype] // 8
        for size in shape:
            nbytes *= size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    tensors = {
        name: TensorInfo(
            dtype=dtype,
            shape=shape,
            shard=file,
            begin=begin + header[name]["data_offsets"][0],
            end=begin + header[name]["data_offsets"][1],
        )
        for name, dtype, shape in ordered
    }
    return Layout(header=struct.pack("<Q", len(text)) + text, tensors=tensors, size=begin + position)


def storage_error(path: Path, e: OSError) -> CheckpointError:
    """What to say when the disk, a quota or a limit stops a write."""
    full = e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "free space there and run again with --resume" if full else "then run again with --resume"
    return CheckpointError(f"cannot write {path}: {e.strerror}; {remedy}")


@dataclass(slots=True)
class ShardReader:
    """Reads rows of tensors from the shards of one folder; keeps files open until closed."""

    folder: Path
    files: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files.clear()

    def read_bytes(self, info: TensorInfo, begin: int, end: int, buffer: str = "bytes") -> torch.Tensor:
        """Bytes [begin, end) of a tensor as uint8, in a buffer that the next call of that name overwrites.

        Raises
        ------
        CheckpointError
            The file ends before the bytes its header promised, or cannot be read.
        """
        held = self.buffers.get(buffer)
        if held is None or held.numel() < end - begin:
            held = torch.empty(end - begin, dtype=torch.uint8)
            self.buffers[buffer] = held
        target = held[: end - begin]
        path = self.folder / info.shard
        try:
            if info.shard not in self.files:
                self.files[info.shard] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            view = memoryview(target.numpy())
            done = 0
            while done < len(view):
                got = os.preadv(self.files[info.shard], [view[done:]], info.begin + begin + done)
                if got == 0:
                    raise CheckpointError(f"{path} became shorter while it was read; download it again")
                done += got
        except OSError as e:
            raise CheckpointError(f"cannot read {path}: {e.strerror}") from e
        return target

    def read_rows(self, info: TensorInfo, top: int, bottom: int, buffer: str = "rows") -> torch.Tensor:
        """Rows [top, bottom) along the first axis, in a buffer that the next call of that name overwrites."""
        shape = info.shape
        row_bytes = info.nbytes // shape[0] if shape[0] else 0
        raw = self.read_bytes(info, top * row_bytes, bottom * row_bytes, buffer)
        return raw.view(TORCH_DTYPES[info.dtype]).view(bottom - top, *shape[1:])

    def read_whole(self, info: TensorInfo) -> torch.Tensor:
        """A small tensor, whole, in memory of its own."""
        raw = self.read_bytes(info, 0, info.nbytes, "whole").clone()
        return raw.view(TORCH_DTYPES[info.dtype]).view(info.shape)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


class ShardWriter:
    """Writes a planned shard under a temporary name; the file has its own name only when it is whole.

    Use as a context manager and call :meth:`finish`; without that, or after an error, nothing is left.
    """

    def __init__(self, path: Path, layout: Layout, *, reserve: bool = True) -> None:
        self.path, self.layout = path, layout
        self.temporary = path.with_name(path.name + ".tmp")
        self.crc: dict[str, int] = dict.fromkeys(layout.tensors, 0)
        self.written: dict[str, int] = dict.fromkeys(layout.tensors, 0)
        try:
            self.descriptor = os.open(
                self.temporary, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o644
            )
        except OSError as e:
            raise storage_error(self.temporary, e) from e
        try:
            if reserve:
                self._reserve(layout.size)
            self._put(memoryview(layout.header), 0)
        except BaseException:
            self._discard()
            raise

    def _reserve(self, size: int) -> None:
        """Take the disk space at once: a full disk shows before hours of work, not after."""
        try:
            os.posix_fallocate(self.descriptor, 0, size)
        except OSError as e:
            if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise storage_error(self.temporary, e) from e

    def _put(self, data: memoryview, offset: int) -> None:
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self.descriptor, data[done:], offset + done)
        except OSError as e:
            raise storage_error(self.temporary, e) from e

    def append(self, name: str, tensor: torch.Tensor) -> None:
        """The next bytes of a tensor; its slabs come in order, tensors in any order."""
        info = self.layout.tensors[name]
        data = _bytes_of(tensor)
        if self.written[name] + len(data) > info.nbytes:
            raise AssertionError(f"{name}: more bytes than its shape {info.shape} holds")
        self._put(data, info.begin + self.written[name])
        self.crc[name] = zlib.crc32(data, self.crc[name])
        self.written[name] += len(data)

    def finish(self) -> None:
        """Flush to disk and give the file its name."""
        for name, info in self.layout.tensors.items():
            if self.written[name] != info.nbytes:
                raise AssertionError(f"{name}: {self.written[name]} of {info.nbytes} bytes written")
        try:
            os.ftruncate(self.descriptor, self.layout.size)
            os.fsync(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1
            self.temporary.replace(self.path)
        except OSError as e:
            raise storage_error(self.path, e) from e

    def _discard(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        with contextlib.suppress(FileNotFoundError):
            self.temporary.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor >= 0:
            self._discard()


def slabs_of_bytes(nbytes: int) -> Iterator[tuple[int, int]]:
    """[begin, end) pieces of COPY_BYTES."""
    for begin in range(0, nbytes, COPY_BYTES):
        yield begin, min(nbytes, begin + COPY_BYTES)


def checksums(path: Path) -> tuple[Shard, dict[str, int]]:
    """The header of a shard and the CRC-32 of each tensor, by reading it all.

    A CRC guards against accidents (a killed run, a damaged disk), not against an adversary.
    """
    shard = read_shard(path)
    found: dict[str, int] = {}
    with ShardReader(path.parent) as reader:
        for name, info in shard.tensors.items():
            crc = 0
            for begin, end in slabs_of_bytes(info.nbytes):
                crc = zlib.crc32(memoryview(reader.read_bytes(info, begin, end).numpy()), crc)
            found[name] = crc
    return shard, found
