"""The exponents of BF16 weights, without loss, near their entropy.

Weights of a layer look like Gaussian noise of one scale: of 256 exponents about 7 carry nearly all, and
the entropy is 2.5 to 3 bits. Each exponent becomes its distance below a *base*, 0 to 14, or 15, an *escape*,
whose exponent is kept apart. Two distances make one byte, and the bytes are Huffman-coded by zstd: a code
for pairs wastes less on whole bits than a code for single exponents, and is twice as fast. The base is one
for all, or one a row where rows differ in scale.

zstd is told to look for nearly no matches: in noise those it finds are chance, and cost more than they save.
"""

import threading
from dataclasses import dataclass

import numpy as np
import zstandard
from numpy.typing import NDArray

from equipoise.kernels.bf16_split import ESCAPE, Split, count_escapes, join, split

__all__ = [
    "Buffer",
    "Bytes",
    "CodecError",
    "ExponentStreams",
    "Values",
    "choose_bases",
    "decode_exponents",
    "encode_exponents",
    "exponent_streams",
    "join_streams",
    "pack",
    "plain_streams",
    "unpack",
]

Bytes = NDArray[np.uint8]
Values = NDArray[np.uint16]
Buffer = bytes | memoryview

_SAMPLES = 2048  # exponents from which a base is chosen; any base is correct, a good one is small
_COLUMN_SAMPLES = 64
_SHORTEST_PACKED = 32  # bytes; below this a frame's own header eats the gain
_SMALLEST_SAVING = 1 / 256  # else the bytes stay as they are, and cost nothing to read

_PARAMETERS = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST,
    min_match=7,
    hash_log=6,
    chain_log=6,
    search_log=1,
    target_length=0,  # anything else switches Huffman coding off
    window_log=17,
    write_content_size=True,
    write_checksum=False,
)


class CodecError(ValueError):
    """Bytes that no encoder of ours wrote. The caller knows their file, tensor and block, and names them."""


class _Coders(threading.local):
    """zstd contexts are not to be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(compression_params=_PARAMETERS)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 20)


_CODERS = _Coders()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentStreams:
    """What `encode_exponents` makes of a plane of n exponents.

    ``bases`` holds one exponent a row or one for all. ``pairs`` holds two distances a byte: of the first half
    of the plane in the low bits, of the second half in the high ones. ``escapes`` are the exponents that have
    no distance, in their order. Each is packed (see `pack`).
    Empty ``pairs`` for n > 0 say that every exponent is in ``escapes``.
    """

    bases: Buffer
    pairs: Buffer
    escapes: Buffer

    @property
    def nbytes(self) -> int:
        return len(self.bases) + len(self.pairs) + len(self.escapes)


def pack(data: Bytes) -> Buffer:
    """zstd where it makes the data smaller, else the data themselves; the length tells which."""
    if data.size >= _SHORTEST_PACKED:
        frame = _CODERS.compressor.compress(data.data)
        if len(frame) < data.size - int(data.size * _SMALLEST_SAVING):
            return frame
    return data.data


def unpack(stored: Buffer, count: int, what: str) -> Bytes:
    """The ``count`` bytes that `pack` was given. Read-only.

    Raises
    ------
    CodecError
        They are not that; checked before memory for them is claimed.
    """
    if len(stored) == count:
        return np.frombuffer(stored, np.uint8)
    if len(stored) > count:
        raise CodecError(f"{what}: {len(stored):,} bytes are stored for {count:,}")
    try:
        claimed = zstandard.get_frame_parameters(stored).content_size
        if claimed != count:
            raise CodecError(f"{what}: a zstd frame of {claimed:,} bytes where {count:,} are due")
        data = _CODERS.decompressor.decompress(stored, max_output_size=count, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise CodecError(f"{what}: {e}") from e
    if len(data) != count:
        raise CodecError(f"{what}: {len(data):,} bytes decoded where {count:,} are due")
    return np.frombuffer(data, np.uint8)


def choose_bases(plane: Bytes | Values, *, columns: int = 0, shift: int = 0) -> Bytes:
    """The base of each row, or of all, from a sample of the exponents.

    Parameters
    ----------
    plane : uint8 or uint16 [n], n > 0
        Exponents, or numbers of which ``shift`` to the right leaves them in the low 8 bits.
    columns : int
        0 for one base; else the length of a row, which divides n.
    """
    if not columns:
        sample = (plane[:: max(1, plane.size // _SAMPLES)] >> shift).astype(np.uint8)
        return np.array([_window_top(sample)], np.uint8)
    rows = plane.reshape(-1, columns)[:, :: max(1, columns // _COLUMN_SAMPLES)]
    return _row_bases((rows >> shift).astype(np.uint8))


def exponent_streams(bases: Bytes, parts: Split) -> ExponentStreams:
    """Pack what `split` made of exponents."""
    return ExponentStreams(bases=pack(bases), pairs=pack(parts.pairs), escapes=pack(parts.escapes))


def plain_streams(plane: Bytes) -> ExponentStreams:
    """All exponents as escapes: for what has no base worth the name."""
    return ExponentStreams(bases=b"", pairs=b"", escapes=pack(plane))


def encode_exponents(plane: Bytes, *, columns: int = 0) -> ExponentStreams:
    """Encode a plane of exponents by itself.

    Parameters
    ----------
    plane : uint8 [n], contiguous
    columns : int
        0 for one base; else the length of a row, which divides n, and each row has its own base.

    Notes
    -----
    Never more than n bytes.
    """
    if plane.size == 0:
        return plain_streams(plane)
    bases = choose_bases(plane, columns=columns)
    streams = exponent_streams(bases, split(plane.astype(np.uint16) << np.uint16(7), bases))
    return streams if streams.nbytes < plane.size else plain_streams(plane)


def decode_exponents(streams: ExponentStreams, count: int, *, columns: int = 0) -> Bytes:
    """The plane [count] that `encode_exponents` was given.

    Raises
    ------
    CodecError
        The streams are damaged in a way that shows; bytes of the right form are not recognised as altered.
    """
    values = np.empty(count, np.uint16)
    join_streams(streams, np.zeros(count, np.uint8), values, columns=columns)
    return (values >> 7).astype(np.uint8)


def join_streams(streams: ExponentStreams, rest: Bytes, out: Values, *, columns: int = 0) -> None:
    """Exponents from their streams, signs and mantissas from ``rest`` [n], to BF16 in ``out`` [n].

    Raises
    ------
    CodecError
        As `decode_exponents`.
    """
    count = out.size
    if not streams.pairs:
        if streams.bases:
            raise CodecError("bases without pairs")
        plane = unpack(streams.escapes, count, "exponents")
        np.copyto(out, plane)
        out <<= 7
        out |= rest & 0x7F
        out |= (rest & np.uint16(0x80)) << 8
        return
    bases = unpack(streams.bases, count // columns if columns else 1, "bases")
    pairs = unpack(streams.pairs, (count + 1) // 2, "exponent pairs")
    escapes = unpack(streams.escapes, count_escapes(pairs), "escapes")
    if not join(Split(pairs=pairs, escapes=escapes, rest=rest), bases, out):
        raise CodecError(f"{escapes.size:,} escapes, but the pairs ask for another number")


def _row_bases(sample: Bytes) -> Bytes:
    """Of [rows, sampled columns]: the row's mean exponent, plus what suits most rows."""
    means = np.rint(sample.mean(axis=1, dtype=np.float32)).astype(np.int16)
    above = np.clip(sample - means[:, None] + 128, 0, 255).astype(np.uint8).ravel()
    top = _window_top(above[:: max(1, above.size // _SAMPLES)])
    bases: Bytes = np.clip(means + (top - 128), 0, 255).astype(np.uint8)
    return bases


def _window_top(exponents: Bytes) -> int:
    """The highest of the 15 neighbouring exponents that hold most of the sample."""
    held = np.cumsum(np.bincount(exponents, minlength=256))
    held[ESCAPE:] -= held[:-ESCAPE].copy()
    return int(np.argmax(held))
