"""An overlay of a checkpoint: its files linked, but for the shards and the config that a control changes.

The source is only read. A changed shard is a copy (shared blocks where the file system can) whose altered
tensors are overwritten in place: dtypes, shapes and header stay, so index and loaders see no difference.
Servers load every tensor of every listed shard, in any order; an extra shard with second copies would leave
it to chance which one counts.
"""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import read_json, read_shard
from equipoise.quant.controls import ControlPlan, Edit, turned_config

__all__ = ["RECORD_NAME", "Overlay", "expected_config", "planted_fault", "write_overlay"]

RECORD_NAME = "equipoise_control.json"
MAX_RECORD_BYTES = 1 << 20
_BLOCK_BYTES = 16 << 20
_NO_SHARING = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A written overlay. ``relative_rms`` is each altered tensor's change, as stored, relative to itself."""

    path: Path
    linked: int
    written: tuple[str, ...]
    relative_rms: dict[str, float]


def write_overlay(plan: ControlPlan, out: Path, *, link: Literal["symbolic", "hard"] = "symbolic") -> Overlay:
    """Write the overlay to ``out``, which appears whole or not at all.

    Raises
    ------
    UsageError
        ``out`` exists, or lies in the source.
    CheckpointError
        A file cannot be read, linked or written (disk full); nothing is left behind.
    """
    source = plan.checkpoint.path.resolve()
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} exists; a control is never written over something: choose another --out")
    if source in (out.resolve(), *out.resolve().parents):
        raise UsageError(f"{out} lies in the source checkpoint, which is left as it is: choose another --out")
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        achieved: dict[str, float] = {}
        for shard in plan.shards:
            _copy(source / shard, partial / shard)
            achieved |= _overwrite(partial / shard, [e for e in plan.edits if e.info.shard == shard])
        _write(partial / "config.json", json.dumps(plan.config, indent=2) + "\n")
        _write(partial / RECORD_NAME, json.dumps(_record(plan, achieved), indent=2) + "\n")
        linked = _link_rest(source, partial, link)
        _sync(partial)
        partial.rename(out)
        _sync(out.parent)
    except OSError as e:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"the overlay {out} could not be written: {e.strerror} ({e.filename or out}); "
            f"{plan.copied_bytes:,} bytes are copied, nothing was left behind"
        ) from e
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Overlay(path=out, linked=linked, written=(*plan.shards, "config.json"), relative_rms=achieved)


def planted_fault(folder: Path) -> str:
    """The fault of an overlay, as in the served model's name (``noise-k-0.5``); "" for any other checkpoint.

    Raises
    ------
    CheckpointError
        Its record cannot be read.
    """
    path = folder / RECORD_NAME
    if not path.exists():
        return ""
    label = read_json(path, max_bytes=MAX_RECORD_BYTES).get("control")
    if not isinstance(label, str) or not label:
        raise CheckpointError(f"{path} does not name its control; make the overlay again")
    return label


def expected_config(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config that an overlay should have, given its source's: turned where its record says so.

    Raises
    ------
    CheckpointError
        Its record cannot be read.
    """
    path = folder / RECORD_NAME
    record = read_json(path, max_bytes=MAX_RECORD_BYTES)
    if record.get("kind") != "rope-theta":
        return config
    strength = record.get("strength")
    if not isinstance(strength, (int, float)):
        raise CheckpointError(f"{path} states no strength; make the overlay again")
    return turned_config(config, float(strength), source="the baseline's config.json")


def _record(plan: ControlPlan, achieved: dict[str, float]) -> dict[str, Any]:
    return {
        "control": plan.spec.label,
        "kind": plan.spec.kind,
        "strength": plan.spec.strength,
        "seed": plan.spec.seed,
        "layers": list(plan.layers),
        "shards_written": list(plan.shards),
        "relative_rms": achieved,
        "source": plan.checkpoint.path.resolve().name,
    }


def _copy(source: Path, target: Path) -> None:
    """Bytes of one file; blocks are shared where both lie on a file system that can."""
    with source.open("rb") as reader, target.open("xb") as writer:
        left = os.fstat(reader.fileno()).st_size
        try:
            while left:
                count = os.copy_file_range(reader.fileno(), writer.fileno(), min(left, 1 << 30))
                if not count:
                    break
                left -= count
        except OSError as e:
            if e.errno not in _NO_SHARING:
                raise
        if left:
            writer.seek(0, os.SEEK_END)
            reader.seek(writer.tell())
            shutil.copyfileobj(reader, writer, _BLOCK_BYTES)


def _overwrite(path: Path, edits: list[Edit]) -> dict[str, float]:
    """Multiply the rows of some tensors of a shard of ours; by tensor, the relative RMS change as stored."""
    tensors = read_shard(path).tensors  # the copy must be what was planned for
    achieved = {}
    with path.open("r+b") as f:
        for edit in edits:
            if tensors.get(edit.name) != edit.info:
                raise CheckpointError(f"{path}: tensor {edit.name} changed while it was copied; try again")
            f.seek(edit.info.begin)
            before = _decode(f.read(edit.info.nbytes), edit.info.dtype)
            rows = before.reshape(edit.info.shape[0], -1).astype(np.float64)
            with np.errstate(over="ignore"):
                raw = _encode(rows * edit.factors[:, None], edit.info.dtype)
            after = _decode(raw, edit.info.dtype).reshape(rows.shape)
            if not np.isfinite(after).all():
                raise CheckpointError(f"{edit.name} overflows {edit.info.dtype}: lower --strength")
            length = float(np.sqrt(np.sum(rows**2)))
            achieved[edit.name] = float(np.sqrt(np.sum((after - rows) ** 2))) / length if length else 0.0
            f.seek(edit.info.begin)
            f.write(raw)
        f.flush()
        os.fsync(f.fileno())
    return achieved


def _decode(raw: bytes, dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, {"F16": "<f2", "F32": "<f4"}[dtype]).astype(np.float32)


def _encode(values: npt.NDArray[np.float64], dtype: str) -> bytes:
    """Rounded to nearest, ties to even; too large is infinite, and the caller refuses it."""
    if dtype != "BF16":
        return values.astype({"F16": "<f2", "F32": "<f4"}[dtype]).tobytes()
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def _link_rest(source: Path, target: Path, link: str) -> int:
    """Every other file of the folder itself; pickles, hidden files and folders are not served."""
    count = 0
    for path in sorted(source.iterdir()):
        if path.name[0] == "." or path.suffix in _PICKLES or not path.is_file():
            continue
        if (target / path.name).exists():
            continue
        real = path.resolve()  # a hub cache links its files already
        if link == "hard":
            os.link(real, target / path.name)
        else:
            (target / path.name).symlink_to(real)
        count += 1
    return count


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
