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

__all__ = [
    "Buffer",
    "Bytes",
    "CodecError",
    "ExponentStreams",
    "decode_exponents",
    "encode_exponents",
    "pack",
    "unpack",
]

Bytes = NDArray[np.uint8]
Buffer = bytes | memoryview

ESCAPE = 15
_SAMPLES = 4096  # exponents from which a base is chosen; any base is correct, a good one is small
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


def encode_exponents(plane: Bytes, *, columns: int = 0) -> ExponentStreams:
    """Encode a plane of exponents.

    Parameters
    ----------
    plane : uint8 [n], contiguous
    columns : int
        0 for one base; else the length of a row, which divides n, and each row has its own base.

    Notes
    -----
    Never more than n bytes.
    """
    count = plane.size
    if count == 0:
        return ExponentStreams(bases=b"", pairs=b"", escapes=b"")
    bases = _row_bases(plane, columns) if columns else _one_base(plane)
    distance = np.empty(count, np.uint8)
    rows = distance.reshape(len(bases), -1)
    np.subtract(bases[:, None], plane.reshape(rows.shape), out=rows)  # above the base it wraps: an escape
    escaped = np.flatnonzero(distance >= ESCAPE)
    escapes = plane[escaped]
    distance[escaped] = ESCAPE
    half = (count + 1) // 2
    pairs = distance[:half].copy()
    pairs[: count - half] |= distance[half:] * np.uint8(16)
    streams = ExponentStreams(bases=pack(bases), pairs=pack(pairs), escapes=pack(escapes))
    if streams.nbytes < count:
        return streams
    return ExponentStreams(bases=b"", pairs=b"", escapes=pack(plane))


def decode_exponents(streams: ExponentStreams, count: int, *, columns: int = 0) -> Bytes:
    """The plane [count] that `encode_exponents` was given.

    Raises
    ------
    CodecError
        The streams are damaged in a way that shows; bytes of the right form are not recognised as altered.
    """
    if not streams.pairs:
        if streams.bases:
            raise CodecError("bases without pairs")
        return unpack(streams.escapes, count, "exponents")
    bases = unpack(streams.bases, count // columns if columns else 1, "bases")
    half = (count + 1) // 2
    pairs = unpack(streams.pairs, half, "exponent pairs")
    distance = np.empty(count, np.uint8)
    np.bitwise_and(pairs, ESCAPE, out=distance[:half])
    np.right_shift(pairs[: count - half], 4, out=distance[half:])
    escaped = np.flatnonzero(distance == ESCAPE)
    escapes = unpack(streams.escapes, escaped.size, "escapes")
    rows = distance.reshape(len(bases), -1)
    np.subtract(bases[:, None], rows, out=rows)
    distance[escaped] = escapes
    return distance


def _one_base(plane: Bytes) -> Bytes:
    return np.array([_window_top(plane[:: max(1, plane.size // _SAMPLES)])], np.uint8)


def _row_bases(plane: Bytes, columns: int) -> Bytes:
    """A base a row: the row's mean exponent, plus what suits most rows."""
    rows = plane.reshape(-1, columns)
    sample = rows[:, :: max(1, columns // _COLUMN_SAMPLES)]
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
