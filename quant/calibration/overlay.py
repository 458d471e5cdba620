"""A checkpoint with KV scales, made of links to another: one more shard, an index, a config.

No torch: the shard holds a few float32 numbers, which are written here as safetensors stores them.
"""

import json
import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import INDEX_NAME, Checkpoint

__all__ = ["write_overlay"]

_COPY_BELOW_BYTES = 16_000_000  # tokenizers and templates are copied, larger files linked
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_SHARD = "model-kv-scales.safetensors"


def write_overlay(
    source: Path,
    out: Path,
    *,
    scales: Mapping[str, float],
    config: Mapping[str, Any] | None = None,
    files: Mapping[str, Any],
) -> None:
    """Write ``out`` beside itself and rename it: it appears whole or not at all.

    Parameters
    ----------
    source : Path
        A checkpoint folder; only read. Its shards are linked by absolute path, so it must stay.
    scales : mapping
        Tensor name -> scale; none makes an overlay without a shard of its own.
    config : mapping or None
        The config.json to write; None keeps the source's.
    files : mapping
        More JSON files by name, which replace the source's.

    Raises
    ------
    UsageError
        ``out`` exists, or lies in ``source``.
    CheckpointError
        The source is damaged, has such tensors already, or ``out`` cannot be written.
    """
    checkpoint = Checkpoint.open(source)
    _refuse_target(source, out)
    if taken := sorted(set(scales) & set(checkpoint.tensors)):
        raise CheckpointError(f"{source} has {taken[0]} already; calibrate the checkpoint without scales")
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        skipped = {INDEX_NAME, *files} | ({"config.json"} if config is not None else set())
        weight_map = _link(checkpoint, temporary, skipped)
        if scales:
            _write(temporary / _SHARD, _safetensors(scales))
            weight_map |= dict.fromkeys(scales, _SHARD)
        total = checkpoint.weight_bytes + 4 * len(scales)
        index = {"metadata": {**checkpoint.index_metadata, "total_size": total}, "weight_map": weight_map}
        _write_json(temporary / INDEX_NAME, index)
        if config is not None:
            _write_json(temporary / "config.json", config)
        for name, content in files.items():
            _write_json(temporary / name, content)
        Checkpoint.open(temporary)  # what a loader will see
        _sync(temporary)
        temporary.rename(out)
        _sync(out.parent)
    except OSError as e:
        raise CheckpointError(f"cannot write {out}: {e.strerror}; nothing was left behind") from e
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _refuse_target(source: Path, out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} exists; nothing is overwritten: choose another --out or remove it")
    if out.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"{out} lies in {source}, which is never written to: choose another --out")


def _link(checkpoint: Checkpoint, target: Path, skipped: set[str]) -> dict[str, str]:
    """Link shards and copy small files; the weight map of the source under the names used here."""
    names = {shard: shard for shard in checkpoint.shards}
    if list(names) == ["model.safetensors"]:
        # Loaders that find this name look no further, and would never see the index.
        names = {"model.safetensors": "model-00001-of-00001.safetensors"}
    for shard, name in names.items():
        (target / name).symlink_to((checkpoint.path / shard).resolve())
    for path in sorted(checkpoint.path.iterdir()):
        unused = path.name in skipped or path.suffix in (*_PICKLES, ".safetensors")
        if unused or path.name.startswith(".") or not path.is_file():
            continue
        if path.stat().st_size < _COPY_BELOW_BYTES:
            shutil.copyfile(path, target / path.name)
        else:
            (target / path.name).symlink_to(path.resolve())
    return {tensor: names[info.shard] for tensor, info in checkpoint.tensors.items()}


def _safetensors(scales: Mapping[str, float]) -> bytes:
    """float32 [1] for each name; https://github.com/huggingface/safetensors#format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for i, name in enumerate(scales):
        header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    values: Sequence[float] = list(scales.values())
    return struct.pack("<Q", len(raw)) + raw + struct.pack(f"<{len(values)}f", *values)


def _write_json(path: Path, content: Any) -> None:
    _write(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
