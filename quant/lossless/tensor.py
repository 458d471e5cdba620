"""One BF16 tensor, encoded in blocks: any run of its values is decoded without the rest."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.lossless.blocks import EncodedBlock, decode_block, encode_block
from equipoise.quant.lossless.entropy import entropy_bits
from equipoise.quant.lossless.exponents import Buffer, CodecError
from equipoise.quant.lossless.layout import (
    BLOCK_ELEMENTS,
    INDEX_DTYPE,
    Read,
    TensorLayout,
    block_count,
    header_bytes,
    largest_bytes,
    read_layout,
)
from equipoise.quant.lossless.parallel import in_order

__all__ = [
    "Coding",
    "EncodedTensor",
    "choose_coding",
    "decode_elements",
    "decode_tensor",
    "encode_blocks",
    "encode_tensor",
    "index_row",
    "open_layout",
    "row_range",
]

Values = NDArray[np.uint16]
ReadValues = Callable[[int, int], Values]  # read(begin, end) -> these elements of the flat tensor

_SAMPLED_RUNS = 32
_RUN_ELEMENTS = 512
_SHORTEST_ROW = 64  # a base a row costs 8 bits; group scales have rows of 64 to 224
_BITS_WORTH_A_BASE = 0.02
_NOISY_MANTISSA_BITS = 7.8  # of 8: above it, compressing signs and mantissas would save nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """How a whole tensor is coded; see `encode_block` for ``columns`` and ``pack_mantissas``."""

    columns: int
    pack_mantissas: bool
    block_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTensor:
    """A tensor in memory, encoded."""

    layout: TensorLayout
    data: memoryview  # as layout.py describes it

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape

    @property
    def nbytes(self) -> int:
        return len(self.data)

    @classmethod
    def from_bytes(cls, data: Buffer, *, source: str = "encoded tensor") -> "EncodedTensor":
        """Check what came from elsewhere.

        Raises
        ------
        CheckpointError
            Another version, damage, or claims that the bytes do not bear out; begins with ``source``.
        """
        view = memoryview(data).cast("B")
        layout = open_layout(lambda begin, end: view[begin:end], len(view), source)
        return cls(layout=layout, data=view)


def choose_coding(read: ReadValues, shape: tuple[int, ...]) -> Coding:
    """Look at a sample of the tensor: do rows differ in scale, are signs and mantissas noise?"""
    numel = math.prod(shape)
    width = shape[-1] if shape else 1
    by_rows = len(shape) > 1 and _SHORTEST_ROW <= width <= BLOCK_ELEMENTS
    run = width if by_rows else min(numel, _RUN_ELEMENTS)
    runs = numel // run
    if numel <= _SAMPLED_RUNS * _RUN_ELEMENTS:
        sample = read(0, runs * run).reshape(runs, run)
    else:
        starts = np.linspace(0, runs - 1, min(_SAMPLED_RUNS, runs)).astype(np.int64) * run
        sample = np.stack([read(s, s + run)[:: max(1, run // _RUN_ELEMENTS)] for s in starts.tolist()])
    exponents = (sample >> 7 & 0xFF).astype(np.int16)
    columns = 0
    if by_rows:
        above = exponents - np.rint(exponents.mean(axis=1, keepdims=True)).astype(np.int16)
        saved = entropy_bits(exponents) - entropy_bits(above + 256) - 8 / width
        columns = width if saved > _BITS_WORTH_A_BASE else 0
    rest_bits = entropy_bits(sample >> 8 & 0x80 | sample & 0x7F)
    # The estimate is low by (values - 1) / (2 n ln 2), values of 256 that occur.
    bias = 255 / (2 * max(1, sample.size) * math.log(2))
    return Coding(
        columns=columns,
        pack_mantissas=sample.size < 1 << 12 or rest_bits + bias < _NOISY_MANTISSA_BITS,
        block_elements=BLOCK_ELEMENTS // columns * columns if columns else BLOCK_ELEMENTS,
    )


def encode_blocks(
    read: ReadValues, shape: tuple[int, ...], *, threads: int = 1
) -> tuple[Coding, int, Iterator[EncodedBlock]]:
    """The coding, the number of blocks, and the blocks in order, few in memory at a time."""
    numel = math.prod(shape)
    if numel == 0:
        return Coding(columns=0, pack_mantissas=False, block_elements=BLOCK_ELEMENTS), 0, iter(())
    coding = choose_coding(read, shape)

    def encode(begin: int) -> EncodedBlock:
        values = read(begin, min(begin + coding.block_elements, numel))
        return encode_block(values, columns=coding.columns, pack_mantissas=coding.pack_mantissas)

    begins = range(0, numel, coding.block_elements)
    return coding, len(begins), in_order(encode, begins, min(threads, len(begins)))


def encode_tensor(values: Values, *, threads: int = 1) -> EncodedTensor:
    """Encode BF16 bit patterns, uint16 of any shape.

    Raises
    ------
    UsageError
        Another dtype: a cast would not be lossless.
    """
    if values.dtype != np.uint16:
        raise UsageError(f"BF16 bit patterns are uint16, not {values.dtype}; view them, do not cast them")
    flat = np.ascontiguousarray(values, dtype="<u2").reshape(-1)
    coding, blocks, encoded = encode_blocks(lambda b, e: flat[b:e], values.shape, threads=threads)
    index = np.zeros(blocks, INDEX_DTYPE)
    begin = end = header_bytes(values.ndim, blocks)
    data = np.empty(largest_bytes(values.shape), np.uint8)  # pages that stay unused are never mapped
    for i, block in enumerate(encoded):
        index[i] = index_row(block)
        for stream in block.streams:
            begin, end = end, end + len(stream)
            data[begin:end] = np.frombuffer(stream, np.uint8)
    layout = TensorLayout(
        shape=values.shape, columns=coding.columns, block_elements=coding.block_elements, index=index
    )
    data[: layout.header_bytes] = np.frombuffer(layout.header(), np.uint8)
    data[end : layout.nbytes] = 0
    return EncodedTensor(layout=layout, data=data[: layout.nbytes].data)


def index_row(block: EncodedBlock) -> tuple[int, ...]:
    e = block.entry
    return (e.bases, e.pairs, e.escapes, e.sign_mantissa, e.checksum)


def open_layout(read: Read, size: int, source: str) -> TensorLayout:
    """`read_layout`, with errors that name ``source``."""
    try:
        return read_layout(read, size)
    except CodecError as e:
        raise CheckpointError(f"{source}: {e}") from e


def decode_elements(
    layout: TensorLayout,
    read: Read,
    begin: int,
    end: int,
    *,
    source: str,
    threads: int = 1,
    out: Values | None = None,
) -> Values:
    """Values [begin, end) of the flat tensor, in ``out`` if given; reads and decodes their blocks only.

    Raises
    ------
    CheckpointError
        A block is damaged; names ``source`` and the block.
    """
    result = np.empty(end - begin, "<u2") if out is None else out
    if begin == end:
        return result

    def decode(block: int) -> None:
        first, last = layout.block_range(block)
        whole = begin <= first and last <= end
        target = result[first - begin : last - begin] if whole else np.empty(last - first, "<u2")
        data = read(int(layout.starts[block]), int(layout.starts[block + 1]))
        try:
            decode_block(data, layout.entry(block), target, columns=layout.columns)
        except CodecError as e:
            raise CheckpointError(
                f"{source}, block {block} of {len(layout.index)}: {e}; restore the file from its source"
            ) from e
        if not whole:
            low, high = max(begin, first), min(end, last)
            result[low - begin : high - begin] = target[low - first : high - first]

    blocks = range(begin // layout.block_elements, block_count(end, layout.block_elements))
    for _ in in_order(decode, blocks, min(threads, len(blocks))):
        pass
    return result


def row_range(shape: tuple[int, ...], rows: tuple[int, int] | None) -> tuple[int, int, tuple[int, ...]]:
    """Elements [begin, end) and shape of rows [i, j) along the first dimension; None is the whole.

    Raises
    ------
    UsageError
        The tensor has no such rows.
    """
    if rows is None:
        return 0, math.prod(shape), shape
    first, last = rows
    if not shape or not 0 <= first <= last <= shape[0]:
        raise UsageError(f"rows {first} to {last} of a tensor of shape {list(shape)}: it has no such rows")
    stride = math.prod(shape[1:])
    return first * stride, last * stride, (last - first, *shape[1:])


def decode_tensor(
    encoded: EncodedTensor,
    *,
    rows: tuple[int, int] | None = None,
    threads: int = 1,
    out: Values | None = None,
) -> Values:
    """The bit patterns that `encode_tensor` was given, or its rows [i, j).

    ``out``, uint16, contiguous and of the shape of the result, spares a large new buffer, whose pages cost
    time when they are first written.

    Raises
    ------
    CheckpointError
        A block is damaged.
    UsageError
        There are no such rows, or ``out`` does not fit.
    """
    begin, end, shape = row_range(encoded.shape, rows)
    if out is not None and (out.shape != shape or out.dtype != np.uint16 or not out.flags.c_contiguous):
        raise UsageError(f"out must be contiguous uint16 {list(shape)}, not {out.dtype} {list(out.shape)}")
    values = decode_elements(
        encoded.layout,
        lambda b, e: encoded.data[b:e],
        begin,
        end,
        source="encoded tensor",
        threads=threads,
        out=None if out is None else out.reshape(-1),
    )
    return values.reshape(shape)
