"""Results in lm-eval's files, which others read: ``results_TIME.json``, ``samples_TASK_TIME.jsonl``.

The form is that of lm-eval 0.4 with ``--log_samples --output_path``. What it has no place for stands in each
row under ``equipoise``: why an answer has no score, whether it was truncated, clusters, repeats. A row
without a score has null as its metric: tools that would count it as wrong stop there instead.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from equipoise.evals.interop.own_rows import EXTRAS
from equipoise.evals.new_file import new_file, refuse_existing
from equipoise.evals.types import ScoreStatus

__all__ = ["ExportedSample", "ExportedTask", "hash_text", "write_lm_eval"]

OutputType = Literal["generate_until", "loglikelihood", "multiple_choice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSample:
    """One answer. ``arguments`` are lm-eval's: a prompt with generation arguments, or with a continuation.

    ``resps`` holds the replies to each argument: texts, or pairs of a logprob and whether it is greedy.
    ``value`` is None where there is no score.
    """

    doc_id: int
    doc: Mapping[str, Any]
    target: str
    arguments: Sequence[tuple[str, Any]]
    resps: Sequence[Sequence[Any]]
    filtered: Sequence[Any]
    value: float | None
    hashes: Mapping[str, str]  # doc_hash, prompt_hash, target_hash
    item_id: str
    content_hash: str
    cluster_id: str
    repeat: int
    status: ScoreStatus
    reason: str
    finish_reason: str
    completion_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTask:
    """All answers of one arm to one task; ``planned`` counts those that were to be given."""

    task: str
    version: str
    metric: str
    output_type: OutputType
    samples: Sequence[ExportedSample]
    planned: int
    filter: str = "none"
    num_fewshot: int = 0
    generation: Mapping[str, Any] = field(default_factory=dict)


def write_lm_eval(
    directory: Path,
    *,
    model: str,
    tasks: Sequence[ExportedTask],
    unix_s: float,
    about: Mapping[str, Any],
    force: bool = False,
) -> Path:
    """Write one arm's files into a folder of ``directory`` that is named after ``model``.

    Parameters
    ----------
    model : str
        What the results are called, such as ``kimi-k2.6:B``.
    unix_s : float
        The time in the files' names.
    about : mapping
        What to say of the model beside its name (lm-eval's ``model_args``).

    Returns
    -------
    Path
        The results file.

    Raises
    ------
    UsageError
        The files exist and ``force`` is not set, or the folder cannot be written.
    """
    folder = directory / re.sub(r'["<>:/|\\?*\[\]]+', "__", model)
    time = datetime.fromtimestamp(unix_s, UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    date_id = time.replace(":", "-")
    results = folder / f"results_{date_id}.json"
    # The results come last: samples of this very time without them are of an export that was cut short.
    refuse_existing(results, force=force)
    for task in tasks:
        rows = (json.dumps(_row(task, s), default=str) + "\n" for s in task.samples)
        _write(folder / f"samples_{task.task}_{date_id}.jsonl", rows, force=True)
    summary = _summary(model, tasks, unix_s, about)
    _write(results, [json.dumps(summary, indent=2, default=str)], force=force)
    return results


def _write(path: Path, parts: Iterable[str], *, force: bool) -> None:
    with new_file(path, force=force) as new, new.open("w", encoding="ascii") as out:
        out.writelines(parts)


def hash_text(text: str) -> str:
    """As lm-eval hashes documents, prompts and targets."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _row(task: ExportedTask, sample: ExportedSample) -> dict[str, Any]:
    return {
        "doc_id": sample.doc_id,
        "doc": dict(sample.doc),
        "target": sample.target,
        "arguments": {
            f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(argument)}
            for i, argument in enumerate(sample.arguments)
        },
        "resps": [[_as_text(r) for r in replies] for replies in sample.resps],
        "filtered_resps": [_as_text(r) for r in sample.filtered],
        "filter": task.filter,
        "metrics": [task.metric],
        **sample.hashes,
        task.metric: sample.value,
        EXTRAS: {
            "item_id": sample.item_id,
            "content_hash": sample.content_hash,
            "cluster_id": sample.cluster_id,
            "repeat": sample.repeat,
            "status": sample.status.value,
            "reason": sample.reason,
            "finish_reason": sample.finish_reason,
            "completion_tokens": sample.completion_tokens,
        },
    }


def _as_text(reply: Any) -> Any:
    """lm-eval writes every leaf of its replies as text."""
    return [str(part) for part in reply] if isinstance(reply, tuple | list) else str(reply)


def _summary(
    model: str, tasks: Sequence[ExportedTask], unix_s: float, about: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "results": {t.task: _aggregated(t) for t in tasks},
        "group_subtasks": {t.task: [] for t in tasks},
        "configs": {t.task: _config(t) for t in tasks},
        "versions": {t.task: t.version for t in tasks},
        "n-shot": {t.task: t.num_fewshot for t in tasks},
        "higher_is_better": {t.task: {t.metric: True} for t in tasks},
        "n-samples": {t.task: {"original": t.planned, "effective": len(_values(t))} for t in tasks},
        "config": {"model": "equipoise", "model_args": dict(about), "batch_size": 1, "limit": None},
        "git_hash": None,
        "date": unix_s,
        "task_hashes": {
            t.task: hash_text("".join("".join(s.hashes.values()) for s in t.samples)) for t in tasks
        },
        "model_source": "equipoise",
        "model_name": model,
        "model_name_sanitized": re.sub(r'["<>:/|\\?*\[\]]+', "__", model),
    }


def _values(task: ExportedTask) -> list[float]:
    return [s.value for s in task.samples if s.value is not None]


def _aggregated(task: ExportedTask) -> dict[str, Any]:
    """The mean of what was scored, with the standard error that lm-eval would give (clusters ignored)."""
    values = _values(task)
    n = len(values)
    mean = sum(values) / n if n else math.nan
    error: float | str = "N/A"
    if n > 1:
        error = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return {
        "alias": task.task,
        "name": task.task,
        "sample_len": n,
        f"{task.metric},{task.filter}": mean if n else "N/A",
        f"{task.metric}_stderr,{task.filter}": error,
    }


def _config(task: ExportedTask) -> dict[str, Any]:
    return {
        "task": task.task,
        "output_type": task.output_type,
        "num_fewshot": task.num_fewshot,
        "metric_list": [{"metric": task.metric, "aggregation": "mean", "higher_is_better": True}],
        "generation_kwargs": dict(task.generation),
        "repeats": 1,
        "metadata": {"version": task.version},
    }
