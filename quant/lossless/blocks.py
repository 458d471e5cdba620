"""A block: some hundred thousand neighbouring BF16 values, coded without looking at any other block."""

from dataclasses import dataclass

import numpy as np
import xxhash

from equipoise.kernels.bf16_split import split
from equipoise.quant.lossless.exponents import (
    Buffer,
    Bytes,
    CodecError,
    ExponentStreams,
    Values,
    choose_bases,
    exponent_streams,
    join_streams,
    pack,
    plain_streams,
    unpack,
)

__all__ = ["BlockEntry", "EncodedBlock", "checksum", "decode_block", "encode_block", "largest_block_bytes"]

_STREAMS = ("bases", "pairs", "escapes", "sign_mantissa")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEntry:
    """What the index keeps of a block: the lengths of its streams, and the checksum of its *values*."""

    bases: int
    pairs: int
    escapes: int
    sign_mantissa: int
    checksum: int  # XXH3-64 of the little-endian values

    @property
    def nbytes(self) -> int:
        return self.bases + self.pairs + self.escapes + self.sign_mantissa


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBlock:
    entry: BlockEntry
    streams: tuple[Buffer, ...]  # in the order of the entry's lengths


def checksum(data: Values | Bytes | Buffer) -> int:
    """XXH3-64: finds damage, not an adversary, who would write a matching one."""
    return int(xxhash.xxh3_64_intdigest(data.data if isinstance(data, np.ndarray) else data))


def largest_block_bytes(count: int) -> int:
    """No block of ``count`` values is longer than they are."""
    return 2 * count


def encode_block(values: Values, *, columns: int = 0, pack_mantissas: bool = False) -> EncodedBlock:
    """Encode BF16 bit patterns.

    Parameters
    ----------
    values : uint16 [n], contiguous, little-endian
    columns : int
        Length of a row with a base of its own, or 0; see `encode_exponents`.
    pack_mantissas : bool
        Try to compress signs and mantissas too. Pointless for trained weights, where they are noise; not
        for scales (all positive) and constants.
    """
    bases = choose_bases(values, columns=columns, shift=7)
    parts = split(values, bases)
    exponents = exponent_streams(bases, parts)
    if exponents.nbytes >= values.size:
        exponents = plain_streams((values >> 7).astype(np.uint8))
    rest = pack(parts.rest) if pack_mantissas else parts.rest.data
    streams = (exponents.bases, exponents.pairs, exponents.escapes, rest)
    lengths = dict(zip(_STREAMS, map(len, streams), strict=True))
    entry = BlockEntry(**lengths, checksum=checksum(values))
    return EncodedBlock(entry=entry, streams=streams)


def decode_block(data: Buffer, entry: BlockEntry, out: Values, *, columns: int = 0) -> None:
    """Decode into ``out``, uint16 [n], contiguous.

    Raises
    ------
    CodecError
        The bytes are damaged: lengths that do not fit, frames that do not decode, or another checksum.
    """
    count, data = out.size, memoryview(data)
    if len(data) != entry.nbytes:
        raise CodecError(f"{len(data):,} bytes where its index says {entry.nbytes:,}")
    ends = np.cumsum((entry.bases, entry.pairs, entry.escapes, entry.sign_mantissa)).tolist()
    exponents = ExponentStreams(
        bases=data[: ends[0]], pairs=data[ends[0] : ends[1]], escapes=data[ends[1] : ends[2]]
    )
    rest = unpack(data[ends[2] :], count, "signs and mantissas")
    join_streams(exponents, rest, out, columns=columns)
    if checksum(out) != entry.checksum:
        raise CodecError("its checksum does not match: the bytes were altered or damaged")
