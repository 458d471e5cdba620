"""What convert, dequantize and the lossless format share: a prepared conversion, carried out and reported."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import equipoise
from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.weights.configs import HF_QUANT_CONFIG
from equipoise.quant.weights.engine import REPORT_NAME, Outcome, Progress, Target
from equipoise.quant.weights.jobs import ShardJob
from equipoise.quant.weights.tiles import EncodeCounts

__all__ = ["Conversion", "LosslessPlan", "Prepared", "make", "open_source"]

MAX_SMALL_FILE_BYTES = 64_000_000  # Kimi's tokenizer has 2.8 MB, GLM's 20
_WEIGHT_FILE = re.compile(r".*\.(safetensors|bin|pt|pth|ckpt|gguf|h5|msgpack|onnx|index\.json)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A conversion that was checked and not begun.

    ``jobs`` is called when the target is secured; it may read the source. ``config`` becomes config.json.
    """

    checkpoint: Checkpoint
    format: str
    jobs: Callable[[], Sequence[ShardJob]]
    config: Mapping[str, Any]
    converted: int
    kept: int
    ignore: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    hf_quant_config: Mapping[str, Any] | None = None
    keep_hf_quant_config: bool = False  # the source's own


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessPlan:
    """What a lossless codec hands over: its jobs, and what config.json is to say."""

    jobs: Sequence[ShardJob]
    config: Mapping[str, Any]
    converted: int
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What was made. ``counts`` are summed over the encoded tensors; ``dropped`` are tensors left behind."""

    source: Path
    target: Path
    format: str
    converted: int  # tensors
    kept: int
    dropped: tuple[str, ...]
    source_bytes: int
    target_bytes: int
    counts: EncodeCounts
    not_copied: tuple[str, ...]  # files and folders of the source
    notes: tuple[str, ...]
    outcome: Outcome = field(repr=False)


def open_source(source: str | Path) -> Checkpoint:
    """Open a checkpoint that is about to be converted.

    Raises
    ------
    CheckpointError
        As ``Checkpoint.open``; and tensors or files that its index does not list.
    """
    checkpoint = Checkpoint.open(source)
    if checkpoint.unindexed or checkpoint.unlisted_files:
        stray = [name for _, name in checkpoint.unindexed] + list(checkpoint.unlisted_files)
        raise CheckpointError(
            f"{checkpoint.path}: {len(stray)} tensors or files are not in its index, e.g. {stray[0]}; "
            "loaders ignore them, so it is unclear what belongs: remove them, or download it again"
        )
    return checkpoint


def make(
    prepared: Prepared, target: Path, *, workers: int | None, resume: bool, progress: Progress | None
) -> Conversion:
    """Carry it out: ``target`` appears whole, or ``target.partial`` stays for a resumed run."""
    checkpoint = prepared.checkpoint
    if target.resolve().is_relative_to(checkpoint.path.resolve()):
        raise UsageError(
            f"{target} is inside the source {checkpoint.path}, which is only read; choose another DST"
        )
    to = Target(path=target, plan=_identity(prepared))
    with to.open(resume=resume) as partial:
        outcome = to.fill(prepared.jobs(), workers=workers, progress=progress)
        files, not_copied = _small_files(checkpoint, prepared.keep_hf_quant_config)
        files["config.json"] = _json_bytes(prepared.config)
        if prepared.hf_quant_config is not None:
            files[HF_QUANT_CONFIG] = _json_bytes(prepared.hf_quant_config)
        result = Conversion(
            source=checkpoint.path,
            target=target,
            format=prepared.format,
            converted=prepared.converted,
            kept=prepared.kept,
            dropped=prepared.dropped,
            source_bytes=checkpoint.weight_bytes,
            target_bytes=sum((partial / record.file).stat().st_size for record in outcome.records),
            counts=_sum(outcome),
            not_copied=not_copied,
            notes=prepared.notes,
            outcome=outcome,
        )
        index = checkpoint.has_index or len(checkpoint.shards) > 1
        to.complete(outcome, index=index, files=files, report=_report(to, result))
    return result


def _identity(prepared: Prepared) -> dict[str, Any]:
    """What a resumed run must share: the source's files by size, time and header, the format, the version."""
    shards = {}
    for file, shard in sorted(prepared.checkpoint.shards.items()):
        status = shard.path.stat()
        entries = [[n, i.dtype, list(i.shape), i.begin] for n, i in shard.tensors.items()]
        digest = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
        shards[file] = [status.st_size, status.st_mtime_ns, digest]
    config = json.dumps(prepared.checkpoint.config, sort_keys=True)
    return {
        "version": equipoise.__version__,
        "format": prepared.format,
        "ignore": list(prepared.ignore),
        "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "shards": shards,
    }


def _small_files(
    checkpoint: Checkpoint, keep_hf_quant_config: bool
) -> tuple[dict[str, bytes | Path], tuple[str, ...]]:
    """Tokenizer, chat template and the like, to be copied; and the names of what is not.

    Not README.md: it is the model card of the source, whose numbers are not the result's.
    """
    files: dict[str, bytes | Path] = {}
    left: list[str] = []
    for path in sorted(checkpoint.path.iterdir()):
        if path.name in ("config.json", REPORT_NAME) or _WEIGHT_FILE.match(path.name):
            continue
        if path.name == HF_QUANT_CONFIG and not keep_hf_quant_config:
            continue
        small = path.is_file() and path.stat().st_size <= MAX_SMALL_FILE_BYTES
        if small and not path.name.startswith(".") and path.name != "README.md":
            files[path.name] = path
        else:
            left.append(path.name)
    return files, tuple(left)


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _sum(outcome: Outcome) -> EncodeCounts:
    total = EncodeCounts()
    for record in outcome.records:
        for counts in record.counts.values():
            total += counts
    return total


def _report(to: Target, result: Conversion) -> dict[str, Any]:
    """What stays beside the weights: where they come from, checksums, what encoding did to each tensor."""
    return {
        "plan": dict(to.plan),
        "format": result.format,
        "source": result.source.name,
        "converted": result.converted,
        "kept": result.kept,
        "dropped": list(result.dropped),
        "counts": asdict(result.counts),
        "notes": list(result.notes),
        "shards": [
            {"file": r.file, "size": r.size, "crc32": dict(r.crc32),
             "counts": {name: asdict(c) for name, c in r.counts.items()}}
            for r in result.outcome.records
        ],
    }  # fmt: skip
