"""How one encoded tensor lies in its bytes, version 1, all numbers little-endian.

::

    magic "EQ.BF16L"   8 bytes
    version            u16
    rank               u8, then one zero byte
    columns            u32   length of a row with a base of its own; 0: one base a block
    block_elements     u32   values in each block but the last
    shape              u64 x rank
    index              24 bytes a block: lengths of its four streams (u32 each), checksum of its values (u64)
    checksum           u64   XXH3-64 of everything above
    blocks             each: bases, pairs, escapes, signs and mantissas
    padding            zeros up to a multiple of 8 bytes

A reader believes nothing: every length is checked against the bytes that are there before memory is claimed
for it. A tensor of n blocks has an index of 24 n bytes, and no block is over 2 MiB decoded, so that no header
can claim more than 87,382 times its own bytes.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from equipoise.quant.lossless.blocks import BlockEntry, checksum, largest_block_bytes
from equipoise.quant.lossless.exponents import Buffer, CodecError

__all__ = [
    "BLOCK_ELEMENTS",
    "INDEX_DTYPE",
    "MAX_BLOCK_ELEMENTS",
    "VERSION",
    "Read",
    "TensorLayout",
    "block_count",
    "header_bytes",
    "largest_bytes",
    "read_layout",
]

MAGIC = b"EQ.BF16L"
VERSION = 1
MAX_RANK = 16
BLOCK_ELEMENTS = 1 << 19  # 1 MiB of BF16: of 2**16 to 2**19 the fastest, at the same ratio
MAX_BLOCK_ELEMENTS = 1 << 20

INDEX_DTYPE = np.dtype(
    [("bases", "<u4"), ("pairs", "<u4"), ("escapes", "<u4"), ("sign_mantissa", "<u4"), ("checksum", "<u8")]
)
_FIXED = struct.Struct("<8sHBxII")
_STREAMS = ("bases", "pairs", "escapes", "sign_mantissa")

Read = Callable[[int, int], Buffer]  # read(begin, end) -> exactly these bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """Where everything is. ``starts`` are offsets of the blocks and of the end of the last one."""

    shape: tuple[int, ...]
    columns: int
    block_elements: int
    index: NDArray[np.void]  # [blocks], INDEX_DTYPE
    starts: NDArray[np.int64] = field(init=False)  # [blocks + 1]

    def __post_init__(self) -> None:
        lengths = sum(self.index[name].astype(np.int64) for name in _STREAMS)
        starts = np.full(len(self.index) + 1, self.header_bytes, np.int64)
        np.add(starts[1:], np.cumsum(lengths), out=starts[1:])
        object.__setattr__(self, "starts", starts)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def header_bytes(self) -> int:
        return header_bytes(len(self.shape), len(self.index))

    @property
    def nbytes(self) -> int:
        """All of it, padding too."""
        return int(self.starts[-1] + -self.starts[-1] % 8)

    def entry(self, block: int) -> BlockEntry:
        row = self.index[block]
        return BlockEntry(**{name: int(row[name]) for name in (*_STREAMS, "checksum")})

    def block_range(self, block: int) -> tuple[int, int]:
        """The elements [begin, end) of a block."""
        begin = block * self.block_elements
        return begin, min(begin + self.block_elements, self.numel)

    def header(self) -> bytes:
        fixed = _FIXED.pack(MAGIC, VERSION, len(self.shape), self.columns, self.block_elements)
        head = fixed + struct.pack(f"<{len(self.shape)}Q", *self.shape) + self.index.tobytes()
        return head + struct.pack("<Q", checksum(head))


def header_bytes(rank: int, blocks: int) -> int:
    return _FIXED.size + 8 * rank + INDEX_DTYPE.itemsize * blocks + 8


def block_count(numel: int, block_elements: int) -> int:
    return -(-numel // block_elements)


def largest_bytes(shape: tuple[int, ...]) -> int:
    """No tensor of this shape is encoded in more."""
    numel = math.prod(shape)
    # Blocks of whole rows are at least half as long as those without.
    total = header_bytes(len(shape), block_count(numel, BLOCK_ELEMENTS // 2)) + largest_block_bytes(numel)
    return total + -total % 8


def read_layout(read: Read, size: int) -> TensorLayout:
    """Read and check the header and index of an encoded tensor of ``size`` bytes.

    Raises
    ------
    CodecError
        Another version, or anything that contradicts itself or does not fit in ``size``.
    """
    if size < _FIXED.size:
        raise CodecError(f"{size} bytes are too few for a header")
    magic, version, rank, columns, block_elements = _FIXED.unpack(read(0, _FIXED.size))
    if magic != MAGIC:
        raise CodecError("it does not begin as an encoded tensor does")
    if version != VERSION:
        raise CodecError(
            f"it has version {version} of the encoding, and this program reads {VERSION}: use its program"
        )
    if rank > MAX_RANK or header_bytes(rank, 0) > size:
        raise CodecError(f"a rank of {rank} does not fit in {size:,} bytes")
    shape = struct.unpack(f"<{rank}Q", read(_FIXED.size, _FIXED.size + 8 * rank))
    numel = math.prod(shape)
    if not 1 <= block_elements <= MAX_BLOCK_ELEMENTS:
        raise CodecError(f"blocks of {block_elements:,} values; at most {MAX_BLOCK_ELEMENTS:,} are allowed")
    if columns and (block_elements % columns or numel % columns):
        raise CodecError(f"rows of {columns:,} values do not divide blocks of {block_elements:,}")
    blocks = block_count(numel, block_elements)
    total = header_bytes(rank, blocks)
    if total > size:
        raise CodecError(
            f"its header claims {2 * numel:,} bytes, whose index alone would take {total:,} "
            f"of the {size:,} there are"
        )
    head = read(0, total)
    if struct.unpack("<Q", head[-8:])[0] != checksum(head[:-8]):
        raise CodecError("the checksum of its header and index does not match: altered or damaged")
    index = np.frombuffer(head, INDEX_DTYPE, blocks, _FIXED.size + 8 * rank)
    layout = TensorLayout(shape=shape, columns=columns, block_elements=block_elements, index=index)
    lengths = np.diff(layout.starts)
    counts = np.full(blocks, block_elements, np.int64)
    if blocks:
        counts[-1] = numel - (blocks - 1) * block_elements
    if too_long := np.flatnonzero(lengths > largest_block_bytes(1) * counts).tolist():
        b = too_long[0]
        raise CodecError(f"block {b} claims {lengths[b]:,} bytes for {counts[b]:,} values")
    if layout.nbytes != size:
        raise CodecError(f"its index describes {layout.nbytes:,} bytes, but it has {size:,}")
    return layout
