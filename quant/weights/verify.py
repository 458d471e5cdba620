"""Proof of a conversion: both checkpoints are read again and compared, tensor by tensor.

Nothing of the conversion's own report is believed. Config and tensors must tell the same story, every
tensor of the source must be there once, what stays must be identical bit for bit, and each quantized value
must be within half a step of the original.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import Checkpoint, TensorInfo
from equipoise.quant.weights.compare import CompareJob, TensorCheck
from equipoise.quant.weights.configs import quantization_of
from equipoise.quant.weights.convert import is_lossless_checkpoint, lossless_codec
from equipoise.quant.weights.declared import Scheme, scheme_of
from equipoise.quant.weights.engine import Progress, run_parallel
from equipoise.quant.weights.jobs import Tick
from equipoise.quant.weights.names import LOSSLESS_FORMAT
from equipoise.quant.weights.schemes import StoredWeight, stored_weights
from equipoise.quant.weights.selection import check_against_config, matches, merged_with, module_of, select
from equipoise.quant.weights.shards import ShardReader

__all__ = ["TensorCheck", "Verification", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The whole result: ``problems`` of the checkpoint itself, and a check for each tensor."""

    source: Path
    target: Path
    format: str
    problems: tuple[str, ...]
    checks: tuple[TensorCheck, ...]

    @property
    def passed(self) -> bool:
        return not self.problems and not any(check.problem for check in self.checks)


def verify(
    source: str | Path, target: str | Path, *, workers: int | None = None, progress: Progress | None = None
) -> Verification:
    """Compare a conversion (or its way back) with its source.

    Which way it went is read off the two configs: quantized target, quantized source (then each decoded
    value must be what decoding gives), or lossless.

    Raises
    ------
    UsageError
        Neither is quantized.
    CheckpointError
        One of them cannot be read, or the target's config contradicts its tensors.
    """
    before, after = Checkpoint.open(source), Checkpoint.open(target)
    if is_lossless_checkpoint(after) or is_lossless_checkpoint(before):
        return _verify_lossless(before, after, workers, progress)
    problems: list[str] = [*_stray(after)]
    quantized: dict[str, StoredWeight] = {}
    decoded: dict[str, StoredWeight] = {}
    if quantization_of(after.config) is not None:
        scheme = scheme_of(after)
        quantized, used = stored_weights(after, scheme)
        problems += _against_rules(before, after, scheme, quantized)
        problems += _unequal_merged_scales(after, quantized)
        rest = after.tensors.keys() - used
    elif quantization_of(before.config) is not None:
        scheme = scheme_of(before)
        decoded, used = stored_weights(before, scheme)
        rest = after.tensors.keys() - decoded.keys()
    else:
        raise UsageError(f"neither {before.path} nor {after.path} is quantized; there is nothing to verify")
    jobs = _jobs(before, after, quantized, decoded)
    extra = sorted(rest - before.tensors.keys())
    problems += [f"{name} is in {after.path} and not in the source" for name in extra]
    expected = before.tensors.keys() if not decoded else (before.tensors.keys() - used) | decoded.keys()
    covered = {name for job in jobs for name in job.names}
    problems += [f"{name} is missing from {after.path}" for name in sorted(expected - covered)]
    total = sum(job.input_bytes for job in jobs)
    results = run_parallel(_run, jobs, total_bytes=total, workers=workers, progress=progress)
    return Verification(
        source=before.path,
        target=after.path,
        format=scheme.described,
        problems=tuple(problems),
        checks=tuple(check for result in results for check in result),
    )


def _stray(after: Checkpoint) -> list[str]:
    found = [f"{name} in {file} is not in the index: loaders ignore it" for file, name in after.unindexed]
    found += [f"{file} is not in the index: loaders ignore it" for file in after.unlisted_files]
    total = after.index_metadata.get("total_size", after.weight_bytes)
    if total != after.weight_bytes:
        found.append(f"the index says total_size {total}, and the tensors have {after.weight_bytes:,} bytes")
    return found


def _declared_ignore(after: Checkpoint) -> tuple[str, ...]:
    declared = quantization_of(after.config) or {}
    for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"):
        if isinstance(entries := declared.get(key), list):
            return tuple(str(entry) for entry in entries)
    return ()


def _is_ignored(entry: str, module: str) -> bool:
    """One entry of any of the ignore lists: a pattern, a glob, a name, or the name of a parent."""
    if entry.endswith("*") and not entry.startswith("re:"):
        return module.startswith(entry[:-1])
    return matches(entry, module) or module.startswith(entry + ".")


def _against_rules(
    before: Checkpoint, after: Checkpoint, scheme: Scheme, stored: Mapping[str, StoredWeight]
) -> list[str]:
    """Config against tensors, and tensors against the rules of the family."""
    check_against_config(before)
    problems: list[str] = []
    entries = _declared_ignore(after)
    selection = select(before, scheme.described)
    for name in selection.converted + tuple(m + ".weight" for m in selection.kept):
        module = module_of(name)
        ignored = any(_is_ignored(entry, module) for entry in entries)
        if name in stored and ignored:
            problems.append(f"{name} is quantized, but config.json says it is not")
        elif name not in stored and not ignored:
            problems.append(f"{name} is not quantized, but config.json does not say so")
        if name in stored and module in selection.kept:
            problems.append(f"{name} is quantized, but must stay ({selection.kept[module]})")
    for key in ("model_type", "architectures", "vocab_size", "hidden_size", "num_hidden_layers"):
        if before.config.get(key) != after.config.get(key):
            problems.append(f"config.json: {key} is not the source's")
    return problems


def _unequal_merged_scales(after: Checkpoint, stored: Mapping[str, StoredWeight]) -> list[str]:
    """NVFP4: projections that a server merges must share their tensor scale; it applies one to all."""
    found: list[str] = []
    with ShardReader(after.path) as reader:
        for name, weight in stored.items():
            modules = merged_with(module_of(name))
            if "weight_scale_2" not in weight.parts or modules[0] != module_of(name):
                continue
            siblings = [stored[m + ".weight"] for m in modules if m + ".weight" in stored]
            scales = {float(reader.read_whole(s.parts["weight_scale_2"])) for s in siblings}
            if len(scales) > 1:
                found.append(f"{name} and what a server merges with it have different weight_scale_2")
    return found


def _run(job: CompareJob, tick: Tick) -> list[TensorCheck]:
    return job.run(tick)


def _jobs(
    before: Checkpoint,
    after: Checkpoint,
    quantized: Mapping[str, StoredWeight],
    decoded: Mapping[str, StoredWeight],
) -> list[CompareJob]:
    jobs = []
    lead = after if decoded else before
    for shard in lead.shards.values():
        names = [n for n in shard.tensors if lead.tensors.get(n) is shard.tensors[n]]
        same = [n for n in names if n in before.tensors and n in after.tensors]
        same = [n for n in same if n not in quantized and n not in decoded]
        jobs.append(
            CompareJob(
                before=before.path,
                after=after.path,
                identical={n: (before.tensors[n], after.tensors[n]) for n in same},
                quantized={n: (before.tensors[n], quantized[n]) for n in names if n in quantized},
                decoded={n: (decoded[n], after.tensors[n]) for n in names if n in decoded},
            )
        )
    return [job for job in jobs if job.names]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LosslessJob:
    """A lossless shard against the plain one of its name."""

    stored: Path
    plain: Path
    tensors: Mapping[str, TensorInfo]  # of the plain one

    @property
    def input_bytes(self) -> int:
        return sum(info.nbytes for info in self.tensors.values())

    def run(self, tick: Tick) -> tuple[list[TensorCheck], str]:
        try:
            lossless_codec().verify_lossless(self.stored, self.plain)
        except CheckpointError as e:
            return [], str(e)
        finally:
            tick(self.input_bytes)
        same = [
            TensorCheck(name=name, kind="identical", n=info.numel, sqnr_db=None, worst=0.0, problem="")
            for name, info in self.tensors.items()
        ]
        return same, ""


def _run_lossless(job: _LosslessJob, tick: Tick) -> tuple[list[TensorCheck], str]:
    return job.run(tick)


def _verify_lossless(
    before: Checkpoint, after: Checkpoint, workers: int | None, progress: Progress | None
) -> Verification:
    stored, plain = (before, after) if is_lossless_checkpoint(before) else (after, before)
    problems = [f"{file} is on one side only" for file in sorted(stored.shards.keys() ^ plain.shards.keys())]
    jobs = [
        _LosslessJob(stored=stored.path / file, plain=plain.path / file, tensors=plain.shards[file].tensors)
        for file in sorted(stored.shards.keys() & plain.shards.keys())
    ]
    total = sum(job.input_bytes for job in jobs)
    results = run_parallel(_run_lossless, jobs, total_bytes=total, workers=workers, progress=progress)
    return Verification(
        source=before.path,
        target=after.path,
        format=LOSSLESS_FORMAT,
        problems=(*problems, *(problem for _, problem in results if problem)),
        checks=tuple(check for checks, _ in results for check in checks),
    )
