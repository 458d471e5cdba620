"""``convert`` a BF16 checkpoint to a compressed format, and ``dequantize`` one back to BF16."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.weights.configs import (
    hf_quant_config,
    quantization_config,
    quantization_of,
    with_quantization,
    without_quantization,
)
from equipoise.quant.weights.declared import scheme_of
from equipoise.quant.weights.engine import Progress, run_parallel
from equipoise.quant.weights.formats import WEIGHT_FORMATS, WeightFormat
from equipoise.quant.weights.jobs import AmaxJob, ConvertJob, DequantizeJob, Tick
from equipoise.quant.weights.making import Conversion, LosslessPlan, Prepared, make, open_source
from equipoise.quant.weights.names import FORMAT_NAMES, LOSSLESS_FORMAT
from equipoise.quant.weights.schemes import StoredWeight, stored_weights
from equipoise.quant.weights.selection import Selection, check_against_config, merged_with, module_of, select

__all__ = [
    "Conversion",
    "LosslessPlan",
    "convert",
    "dequantize",
    "is_lossless_checkpoint",
    "merged_amax",
    "serving_notes",
]


def convert(
    source: str | Path,
    target: str | Path,
    *,
    format_name: str,
    ignore: Sequence[str] = (),
    workers: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Convert the linear layers of a BF16 checkpoint.

    Memory is a few slabs of 4 MB a worker. The source is only read.

    Parameters
    ----------
    source, target : path
        ``target`` must not exist; its parent must.
    format_name : str
        One of FORMAT_NAMES.
    ignore : sequence of str
        Patterns of further modules to keep, in compressed-tensors' syntax; each must match.
    workers : int or None
        Processes; None for one a core.
    resume : bool
        Continue the unfinished ``target.partial`` of the same source and format.
    progress : callable or None
        Called with (source bytes done, in all).

    Raises
    ------
    UsageError, CheckpointError
        See ``select``, ``check_against_config``, ``Target``. Before anything is written, but for what only
        shows on reading or writing.
    """
    if format_name not in FORMAT_NAMES:
        raise UsageError(f"--format {format_name!r} is unknown; one of {', '.join(FORMAT_NAMES)}")
    checkpoint = open_source(source)
    if is_lossless_checkpoint(checkpoint):
        raise UsageError(
            f"{checkpoint.path} is {LOSSLESS_FORMAT}; restore it with `equipoise quant dequantize`"
        )
    if format_name == LOSSLESS_FORMAT:
        if ignore:
            raise UsageError(f"{LOSSLESS_FORMAT} changes no value, so --ignore has nothing to keep")
        plan: LosslessPlan = lossless_codec().convert_plan(checkpoint)
        note = "no server loads this format; restore it with `equipoise quant dequantize`"
        prepared = _lossless(checkpoint, LOSSLESS_FORMAT, plan, (note,))
    else:
        prepared = _prepare_quantized(checkpoint, WEIGHT_FORMATS[format_name], tuple(ignore), workers)
    return make(prepared, Path(target), workers=workers, resume=resume, progress=progress)


def dequantize(
    source: str | Path,
    target: str | Path,
    *,
    workers: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Decode a quantized checkpoint (ours or the field's, see :mod:`declared`) to BF16.

    A decoded value is ``code * scale`` in float32, rounded once to bfloat16. Scales of activations and of
    the KV cache are dropped, and named in the result. A lossless checkpoint comes back byte for byte.
    """
    checkpoint = open_source(source)
    if is_lossless_checkpoint(checkpoint):
        prepared = _lossless(checkpoint, "bf16", lossless_codec().restore_plan(checkpoint), ())
    else:
        prepared = _prepare_dequantized(checkpoint)
    return make(prepared, Path(target), workers=workers, resume=resume, progress=progress)


def is_lossless_checkpoint(checkpoint: Checkpoint) -> bool:
    declared = quantization_of(checkpoint.config)
    return declared is not None and declared.get("quant_method") == LOSSLESS_FORMAT


def lossless_codec() -> ModuleType:
    """``equipoise.quant.lossless``, whose packages may be missing."""
    try:
        return import_module("equipoise.quant.lossless")
    except ImportError as e:
        raise UsageError(f"{LOSSLESS_FORMAT} needs {e.name}; install equipoise[quant]") from e


def _lossless(
    checkpoint: Checkpoint, format_name: str, plan: LosslessPlan, notes: tuple[str, ...]
) -> Prepared:
    return Prepared(
        checkpoint=checkpoint,
        format=format_name,
        jobs=lambda: plan.jobs,
        config=plan.config,
        converted=plan.converted,
        kept=plan.kept,
        notes=notes,
        keep_hf_quant_config=True,
    )


def _prepare_quantized(
    checkpoint: Checkpoint, fmt: WeightFormat, ignore: tuple[str, ...], workers: int | None
) -> Prepared:
    selection = select(checkpoint, fmt.name, ignore)
    check_against_config(checkpoint)
    for name in selection.converted:
        try:
            fmt.parts(checkpoint.tensors[name].shape)
        except CheckpointError as e:
            raise CheckpointError(f"{checkpoint.path}: {name}: {e}") from e

    def jobs() -> Sequence[ConvertJob]:
        amax = merged_amax(checkpoint, selection, workers) if fmt.needs_amax else {}
        chosen = frozenset(selection.converted)
        return [
            ConvertJob(
                folder=checkpoint.path,
                file=file,
                tensors=dict(shard.tensors),
                format=fmt,
                converted=chosen & shard.tensors.keys(),
                amax={name: amax[name] for name in shard.tensors if name in amax},
            )
            for file, shard in checkpoint.shards.items()
        ]

    return Prepared(
        checkpoint=checkpoint,
        format=fmt.name,
        jobs=jobs,
        config=with_quantization(checkpoint.config, quantization_config(fmt.name, selection)),
        converted=len(selection.converted),
        kept=len(checkpoint.tensors) - len(selection.converted),
        ignore=ignore,
        notes=serving_notes(checkpoint, selection, fmt.name),
        hf_quant_config=hf_quant_config(fmt.name, selection),
    )


def _prepare_dequantized(checkpoint: Checkpoint) -> Prepared:
    scheme = scheme_of(checkpoint)
    stored, used = stored_weights(checkpoint, scheme)
    homes: dict[str, dict[str, StoredWeight]] = {}
    parts: set[tuple[str, int, int]] = set()
    for name, weight in stored.items():
        homes.setdefault(next(iter(weight.parts.values())).shard, {})[name] = weight
        parts |= {(i.shard, i.begin, i.end) for i in weight.parts.values()}
    places = {name: (i.shard, i.begin, i.end) for name, i in checkpoint.tensors.items()}

    def jobs() -> Sequence[DequantizeJob]:
        made = []
        for file, shard in checkpoint.shards.items():
            copied = {name: info for name, info in shard.tensors.items() if name not in used}
            decoded = homes.get(file, {})
            if copied or decoded:  # a shard of scales alone has no successor
                made.append(DequantizeJob(folder=checkpoint.path, file=file, copied=copied, decoded=decoded))
        return made

    return Prepared(
        checkpoint=checkpoint,
        format="bf16",
        jobs=jobs,
        config=without_quantization(checkpoint.config),
        converted=len(stored),
        kept=len(checkpoint.tensors) - len(used),
        dropped=tuple(sorted(name for name in used if places[name] not in parts)),
    )


def _amax_of(job: AmaxJob, tick: Tick) -> dict[str, float]:
    return job.run(tick)


def merged_amax(checkpoint: Checkpoint, selection: Selection, workers: int | None) -> dict[str, float]:
    """Each converted tensor's largest magnitude, the same for those that a server merges into one matrix.

    SGLang keeps one tensor scale for gate and up (and for q, k and v): with different ones it would apply
    the larger to both.
    """
    converted = frozenset(selection.converted)
    jobs = [
        AmaxJob(folder=checkpoint.path, tensors={n: i for n, i in shard.tensors.items() if n in converted})
        for shard in checkpoint.shards.values()
    ]
    total = sum(job.input_bytes for job in jobs)
    own: dict[str, float] = {}
    for found in run_parallel(_amax_of, jobs, total_bytes=total, workers=workers):
        own.update(found)
    return {
        name: max(own.get(module + ".weight", 0.0) for module in merged_with(module_of(name))) for name in own
    }


def serving_notes(checkpoint: Checkpoint, selection: Selection, format_name: str) -> tuple[str, ...]:
    """What a server will object to, though the checkpoint is sound."""
    notes: list[str] = []
    if format_name == "fp8-block":
        odd = [
            name
            for name in selection.converted
            if len(merged_with(module_of(name))) > 1 and checkpoint.tensors[name].shape[0] % 128
        ]
        if odd:
            notes.append(
                f"{len(odd)} projections that SGLang merges have rows that are no multiple of 128, e.g. "
                f"{odd[0]} {list(checkpoint.tensors[odd[0]].shape)}: SGLang refuses to load them in blocks"
            )
    if format_name == "mxfp4" and not selection.traits.experts:
        notes.append("SGLang 0.5.23 loads MXFP4 for experts only, and this model has none")
    return tuple(notes)
