"""What a safetensors checkpoint holds, from its headers alone: no torch, nothing loaded, no pickle.

A checkpoint comes from elsewhere and is not trusted. Sizes are bounded before anything is read, an index
can name files of its own folder only, and a shard must be exactly as long as its header says. The format:
https://github.com/huggingface/safetensors#format
"""

import json
import math
import os
import re
import stat
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from equipoise.evals.errors import CheckpointError

__all__ = ["DTYPE_BITS", "INDEX_NAME", "Checkpoint", "Shard", "TensorInfo", "parse_header", "read_shard"]

INDEX_NAME = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
MAX_INDEX_BYTES = 256_000_000  # Kimi K2's index, the largest known, has about 20 MB
MAX_CONFIG_BYTES = 16_000_000
MAX_RANK = 16

# Bits, because three dtypes of the format are smaller than a byte.
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64,
}  # fmt: skip

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_NUMBERED = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5,6})-of-(?P<count>\d{5,6})\.safetensors$")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor as its shard's header states it; ``begin`` and ``end`` are offsets in the file, in bytes."""

    dtype: str  # as safetensors spells it: "BF16", "F8_E4M3", "I32" ...
    shape: tuple[int, ...]
    shard: str  # file name inside the checkpoint's folder
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The header of one file. ``tensors`` are in the order of their bytes."""

    path: Path
    size: int  # bytes of the whole file
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A folder of safetensors shards with its config.

    ``unindexed`` are tensors (shard, name) that are in a shard but that the index does not list, or lists
    under another shard; ``unlisted_files`` are safetensors files that the index never mentions. Loaders
    ignore both, silently.
    """

    path: Path
    config: Mapping[str, Any]
    shards: Mapping[str, Shard]
    tensors: Mapping[str, TensorInfo]
    has_index: bool
    unindexed: tuple[tuple[str, str], ...] = ()
    unlisted_files: tuple[str, ...] = ()
    index_metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors, headers not counted."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def largest_tensor_bytes(self) -> int:
        return max((t.nbytes for t in self.tensors.values()), default=0)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, require_config: bool = True) -> "Checkpoint":
        """Read config, index and every shard's header.

        Raises
        ------
        CheckpointError
            The folder, its config, its index or a shard is missing, damaged, oversized or contradictory,
            or the weights are pickles. Names the file and the remedy.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a folder; give the folder that holds config.json")
        config_path = folder / "config.json"
        if config_path.exists() or require_config:
            config = read_json(config_path, max_bytes=MAX_CONFIG_BYTES)
        else:
            config = {}
        present = sorted(p.name for p in folder.iterdir() if p.name.endswith(".safetensors"))
        index_path = folder / INDEX_NAME
        if not index_path.exists():
            names = _without_index(folder, present)
            shards = {name: read_shard(folder / name) for name in names}
            tensors: dict[str, TensorInfo] = {}
            for shard in shards.values():
                for name, info in shard.tensors.items():
                    if name in tensors:
                        raise CheckpointError(
                            f"{folder}: tensor {name} is in {tensors[name].shard} and {info.shard}, and no "
                            f"{INDEX_NAME} says which counts; remove one, or download the checkpoint again"
                        )
                    tensors[name] = info
            return cls(path=folder, config=config, shards=shards, tensors=tensors, has_index=False)
        weight_map, index_metadata = _read_index(index_path)
        shards = {}
        for name in sorted(set(weight_map.values())):
            if not (folder / name).exists():
                raise CheckpointError(
                    f"{folder}: {INDEX_NAME} names {name}, which is missing; download the checkpoint again"
                )
            shards[name] = read_shard(folder / name)
        tensors = {}
        for name, file in weight_map.items():
            if name not in shards[file].tensors:
                raise CheckpointError(
                    f"{index_path}: tensor {name} should be in {file}, whose header does not have it; "
                    "index and shards are not of one checkpoint: download it again"
                )
            tensors[name] = shards[file].tensors[name]
        unindexed = tuple(
            (file, name)
            for file, shard in shards.items()
            for name in shard.tensors
            if weight_map.get(name) != file
        )
        return cls(
            path=folder,
            config=config,
            shards=shards,
            tensors=tensors,
            has_index=True,
            unindexed=unindexed,
            unlisted_files=tuple(n for n in present if n not in shards),
            index_metadata=index_metadata,
        )


def _without_index(folder: Path, present: list[str]) -> list[str]:
    if not present:
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLES)
        if pickles:
            raise CheckpointError(
                f"{folder} holds pickles ({', '.join(pickles[:3])}), which can run code when read and are "
                "refused; convert it to safetensors where you trust it"
            )
        raise CheckpointError(f"{folder} holds no *.safetensors; give the folder of a downloaded checkpoint")
    for name in present:
        if matched := _NUMBERED.match(name):
            count, width = int(matched["count"]), len(matched["number"])
            expected = {
                f"{matched['stem']}-{i:0{width}d}-of-{matched['count']}.safetensors"
                for i in range(1, min(count, 100_000) + 1)
            }
            missing = sorted(expected - set(present))
            if missing:
                raise CheckpointError(
                    f"{folder}: shard {missing[0]} is missing; download the checkpoint again"
                )
    return present


def read_json(path: Path, *, max_bytes: int) -> dict[str, Any]:
    """A JSON object of bounded size; duplicate keys refused.

    Raises
    ------
    CheckpointError
        Missing, too large, not JSON, or not an object.
    """
    try:
        with path.open("rb") as f:
            raw = f.read(max_bytes + 1)
    except OSError as e:
        raise CheckpointError(f"cannot read {path}: {e.strerror}; is the download complete?") from e
    if len(raw) > max_bytes:
        raise CheckpointError(
            f"{path} has over {max_bytes:,} bytes, far more than such a file needs; refused"
        )
    return _json_object(raw, str(path))


def _json_object(raw: bytes, what: str) -> dict[str, Any]:
    def no_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in pairs:
            if key in out:
                raise ValueError(f"key {key!r} occurs twice")
            out[key] = value
        return out

    try:
        value = json.loads(raw, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as e:
        raise CheckpointError(f"{what} is not readable JSON ({e}); download it again") from e
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} holds a {type(value).__name__}, not an object; download it again")
    return value


def _read_index(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    index = read_json(path, max_bytes=MAX_INDEX_BYTES)
    weight_map, metadata = index.get("weight_map"), index.get("metadata") or {}
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map; download it again")
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path}: metadata is not an object; download it again")
    for name, file in weight_map.items():
        if not isinstance(file, str) or file in ("", ".", "..") or re.search(r"[/\\\0]", file):
            raise CheckpointError(
                f"{path}: tensor {name} is mapped to {file!r}, which is not a plain file name; an index may "
                "only name files of its own folder: do not trust this checkpoint"
            )
        if not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{path}: tensor {name} is mapped to {file}; only .safetensors is read (pickles can run code)"
            )
    return weight_map, metadata


def read_shard(path: Path) -> Shard:
    """Read and check the header of one safetensors file.

    Raises
    ------
    CheckpointError
        Not a regular file, truncated, longer than its header says, or a header that is oversized,
        malformed or inconsistent (unknown dtype, shape against bytes, overlapping or missing ranges).
    """

    def refuse(problem: str) -> NoReturn:
        raise CheckpointError(f"{path}: {problem}; the file is damaged: download it again")

    try:
        with path.open("rb") as f:
            status = os.fstat(f.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path} is not a regular file; refused")
            start = f.read(8)
            if len(start) < 8:
                refuse(f"{len(start)} bytes are too few for a safetensors header")
            (header_bytes,) = struct.unpack("<Q", start)
            if start[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05") and (
                header_bytes > MAX_HEADER_BYTES
            ):
                raise CheckpointError(
                    f"{path} is a pickle or zip archive under the name of a safetensors file; refused: "
                    "pickles can run code when read"
                )
            if header_bytes > MAX_HEADER_BYTES:
                refuse(f"its header claims {header_bytes:,} bytes, over the format's limit")
            if 8 + header_bytes > status.st_size:
                refuse(f"its header claims {header_bytes:,} bytes, but the file has {status.st_size:,}")
            raw = f.read(header_bytes)
    except OSError as e:
        raise CheckpointError(f"cannot read {path}: {e.strerror}") from e
    if len(raw) != header_bytes:
        refuse("it ends within its header")
    return parse_header(raw, path=path, size=status.st_size)


def parse_header(raw: bytes, *, path: Path, size: int | None) -> Shard:
    """Check a header apart from its file: ``raw`` without the length before it.

    Parameters
    ----------
    size : int or None
        Bytes of the whole file that it belongs to; None: as many as it describes.

    Raises
    ------
    CheckpointError
        As `read_shard`.
    """

    def refuse(problem: str) -> NoReturn:
        raise CheckpointError(f"{path}: {problem}; the file is damaged: download it again")

    if not raw.startswith(b"{"):
        refuse("it has no safetensors header")
    header = _json_object(raw, f"{path}: the header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        refuse("its __metadata__ is not a map of strings")
    data_begin = 8 + len(raw)
    infos = {name: _tensor_info(name, entry, path, data_begin, refuse) for name, entry in header.items()}
    ordered = dict(sorted(infos.items(), key=lambda item: (item[1].begin, item[1].end)))
    position = data_begin
    for name, info in ordered.items():
        if info.begin != position:
            refuse(f"tensor {name} begins at byte {info.begin:,} where {position:,} is due (hole or overlap)")
        position = info.end
    if size is not None and position != size:
        refuse(f"its header describes {position:,} bytes, but the file has {size:,}")
    return Shard(path=path, size=position, tensors=ordered, metadata=metadata)


def _tensor_info(name: str, entry: Any, path: Path, data_begin: int, refuse: Any) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        refuse(f"the entry of tensor {name} is malformed")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        refuse(f"tensor {name} has the unknown dtype {dtype!r}")
    if not _naturals(shape) or len(shape) > MAX_RANK or not _naturals(offsets) or len(offsets) != 2:
        refuse(f"tensor {name} has the shape {shape!r} at offsets {offsets!r}")
    begin, end = offsets
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or end - begin != bits // 8:
        refuse(
            f"tensor {name} {dtype}{shape} needs {bits // 8:,} bytes, but its offsets span {end - begin:,}"
        )
    return TensorInfo(
        dtype=dtype, shape=tuple(shape), shard=path.name, begin=data_begin + begin, end=data_begin + end
    )


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x < 2**63 for x in value)
