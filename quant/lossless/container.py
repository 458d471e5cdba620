"""The header of a lossless file: a safetensors file that holds another one, version 1.

Names and order of the tensors are the original's. A BF16 tensor of 4 KiB or more is there as U8, the bytes
that layout.py describes; every other tensor is there as it was. ``__metadata__`` has

``equipoise_lossless``
    the version;
``equipoise_lossless_header``
    the original's header, character by character, so that the original file comes back byte for byte;
``equipoise_lossless_checksums``
    JSON: for each tensor kept as it was, XXH3-64 of each 4 MiB of it, in hexadecimal; under the empty name,
    that of the original's header.

Names stay so that a loader which does not know the container fails on shape and dtype, instead of
reporting weights as missing and filling them in.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from equipoise.evals.errors import CheckpointError
from equipoise.quant.checkpoint import MAX_HEADER_BYTES, Shard, TensorInfo, parse_header
from equipoise.quant.lossless.blocks import checksum

__all__ = [
    "CONTAINER_VERSION",
    "RAW_BLOCK_BYTES",
    "SMALLEST_ENCODED_BYTES",
    "Contents",
    "header_text",
    "is_encoded",
    "is_lossless",
    "raw_block_count",
    "read_contents",
    "reserved_header_bytes",
]

CONTAINER_VERSION = 1
RAW_BLOCK_BYTES = 1 << 22
SMALLEST_ENCODED_BYTES = 4096  # below, the codec's own header and a page are all that is at stake

_KEY = "equipoise_lossless"
_HEADER_KEY, _CHECKSUMS_KEY = f"{_KEY}_header", f"{_KEY}_checksums"
_HEX = 16  # digits of a checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a lossless file holds: the ``original``'s header, and each tensor's place in the file.

    ``original.path`` is the lossless file's, for messages; the offsets in it are those of the original.
    """

    original: Shard
    original_header: bytes
    stored: Shard
    checksums: Mapping[str, tuple[int, ...]]  # of tensors kept as they were


def is_lossless(shard: Shard) -> bool:
    """Is this safetensors file one of ours? Its version may be another."""
    return _KEY in shard.metadata


def is_encoded(info: TensorInfo) -> bool:
    """Is a tensor of the original worth encoding?"""
    return info.dtype == "BF16" and info.nbytes >= SMALLEST_ENCODED_BYTES


def raw_block_count(info: TensorInfo) -> int:
    return -(-info.nbytes // RAW_BLOCK_BYTES)


def header_text(
    original: Shard,
    original_header: bytes,
    stored_bytes: Mapping[str, int],
    checksums: Mapping[str, tuple[int, ...]],
) -> bytes:
    """The header of the lossless file, not yet padded.

    Parameters
    ----------
    stored_bytes : mapping
        Length of each encoded tensor.
    checksums : mapping
        Of every other tensor.
    """
    hexadecimal = {name: "".join(f"{c:016x}" for c in sums) for name, sums in checksums.items()}
    hexadecimal[""] = f"{checksum(original_header):016x}"
    metadata = {
        _KEY: str(CONTAINER_VERSION),
        _HEADER_KEY: original_header.decode(),
        _CHECKSUMS_KEY: json.dumps(hexadecimal, separators=(",", ":")),
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    position = 0
    for name, info in original.tensors.items():
        encoded = name in stored_bytes
        size = stored_bytes[name] if encoded else info.nbytes
        header[name] = {
            "dtype": "U8" if encoded else info.dtype,
            "shape": [size] if encoded else list(info.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{original.path}: its header of {len(original_header):,} bytes leaves no room for the lossless "
            f"file's own under the limit of {MAX_HEADER_BYTES:,}; split the file into shards"
        )
    return text


def read_contents(stored: Shard) -> Contents:
    """Check the header of a lossless file.

    Raises
    ------
    CheckpointError
        Not a lossless file, another version, or a header that contradicts itself.
    """
    path = stored.path
    if not is_lossless(stored):
        raise CheckpointError(f"{path} is not a lossless file of ours: its __metadata__ has no {_KEY}")
    if (version := stored.metadata[_KEY]) != str(CONTAINER_VERSION):
        raise CheckpointError(
            f"{path} is a lossless file of version {version[:20]!r}, and this program reads "
            f"{CONTAINER_VERSION}: use the program that wrote it"
        )

    def damaged(problem: str) -> CheckpointError:
        return CheckpointError(f"{path}: {problem}; the file is damaged: restore it from its source")

    header = stored.metadata.get(_HEADER_KEY, "").encode("utf-8", "surrogatepass")
    original = parse_header(header, path=path, size=None)
    checksums = _read_checksums(stored.metadata.get(_CHECKSUMS_KEY, ""), damaged)
    if checksums.pop("", ()) != (checksum(header),):
        raise damaged("the checksum of the original's header does not match")
    if list(original.tensors) != list(stored.tensors):
        raise damaged("its tensors are not those of the original's header")
    for name, info in original.tensors.items():
        there = stored.tensors[name]
        if name in checksums:
            if (there.dtype, there.shape) != (info.dtype, info.shape):
                raise damaged(f"tensor {name} is {there.dtype}{list(there.shape)}, not as the original's")
            if len(checksums[name]) != raw_block_count(info):
                raise damaged(f"tensor {name} has {len(checksums[name])} checksums")
        elif info.dtype != "BF16" or there.dtype != "U8" or there.shape != (there.nbytes,):
            raise damaged(
                f"tensor {name}, {info.dtype}, is neither encoded nor kept with a checksum "
                f"({there.dtype}{list(there.shape)})"
            )
    if extra := sorted(set(checksums) - set(original.tensors)):
        raise damaged(f"it has checksums of {extra[0]}, which it does not hold")
    return Contents(original=original, original_header=header, stored=stored, checksums=checksums)


def _read_checksums(text: str, damaged: Any) -> dict[str, tuple[int, ...]]:
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("not an object")
        found = {}
        for name, digits in value.items():
            if not isinstance(digits, str) or len(digits) % _HEX:
                raise ValueError(f"checksums of {name!r}")
            found[name] = tuple(int(digits[i : i + _HEX], 16) for i in range(0, len(digits), _HEX))
    except (ValueError, RecursionError) as e:
        raise damaged(f"its checksums are not readable ({e})") from e
    return found


def reserved_header_bytes(original: Shard, original_header: bytes, largest: Mapping[str, int]) -> int:
    """An upper bound of the header's length before the encoded lengths are known, a multiple of 8."""
    total = sum(largest.get(name, info.nbytes) for name, info in original.tensors.items())
    digits = len(str(total))
    checksums = {
        name: (0,) * raw_block_count(info) for name, info in original.tensors.items() if name not in largest
    }
    text = header_text(original, original_header, largest, checksums)
    # Each encoded tensor's entry has one length and two offsets, every other entry two offsets.
    return -(-(len(text) + 3 * digits * len(original.tensors)) // 8) * 8
