"""A journal's samples in formats that other tools read: JSON lines and parquet."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.evals.journal import Journal
from equipoise.evals.new_file import new_file
from equipoise.evals.sample_json import sample_to_json
from equipoise.evals.types import Sample

__all__ = ["Grade", "Graded", "Progress", "chunks", "export_jsonl", "export_parquet"]

_ROWS = 1000  # samples in memory at a time ...
_CHUNK_CHARS = 64 << 20  # ... or as many as have this much JSON

_SCHEMA = pa.schema(
    [
        ("model", pa.string()),
        ("arm", pa.string()),
        ("task", pa.string()),
        ("item_id", pa.string()),
        ("repeat", pa.int32()),
        ("content_hash", pa.string()),
        ("cluster_id", pa.string()),  # from here on six that are null without scores
        ("status", pa.string()),  # scored, truncated, errored, refused
        ("score", pa.float64()),  # in [0, 1]; null where there is none
        ("extracted", pa.string()),  # what was graded
        ("reason", pa.string()),  # why there is no score
        ("degenerate", pa.bool_()),  # stuck in a loop
        ("text", pa.string()),  # of the last output, as it came
        ("reasoning_chars", pa.int64()),  # of all outputs, thinking and answer told apart
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int64()),  # over all outputs
        ("cached_tokens", pa.int64()),  # null where a server does not tell
        ("completion_tokens", pa.int64()),
        ("turns", pa.int32()),
        ("attempts", pa.int32()),
        ("started_unix_s", pa.float64()),
        ("latency_s", pa.float64()),
        ("error", pa.string()),
        ("sample_json", pa.string()),  # everything, logprobs included
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """What a task says of a sample; the score's names are those of `Score`."""

    status: str
    score: float | None
    extracted: str | None
    reason: str
    cluster_id: str
    degenerate: bool | None
    reasoning_chars: int


#: Grades samples in their order; None for one whose item is not in the plan.
Grade = Callable[[Sequence[Sample]], Sequence[Graded | None]]
#: Is told how many samples more are written.
Progress = Callable[[int], None]


def export_jsonl(
    journal: Journal, path: Path, *, force: bool = False, progress: Progress | None = None
) -> int:
    """Write one sample a line, in the order of their keys; how many there were.

    Raises
    ------
    UsageError
        The file exists and ``force`` is not set, or it cannot be written; an earlier one is left as it was.
    """
    n = 0
    with new_file(path, force=force) as new, new.open("w", encoding="ascii") as out:
        for chunk in chunks(journal.samples()):
            out.writelines(line + "\n" for _, line in chunk)
            n += len(chunk)
            if progress is not None:
                progress(len(chunk))
    return n


def export_parquet(
    journal: Journal,
    path: Path,
    *,
    grade: Grade | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write a table with one row a sample; how many there were.

    Without ``grade`` the columns of scores are null. Lone surrogates, which parquet cannot hold, are escaped
    in the columns of text and whole in ``sample_json``.

    Raises
    ------
    UsageError
        The file exists and ``force`` is not set, or it cannot be written; an earlier one is left as it was.
    """
    n = 0
    with new_file(path, force=force) as new, pq.ParquetWriter(new, _SCHEMA, compression="zstd") as out:
        for chunk in chunks(journal.samples()):
            samples = [sample for sample, _ in chunk]
            grades = [None] * len(chunk) if grade is None else grade(samples)
            rows = [_row(s, line, g) for (s, line), g in zip(chunk, grades, strict=True)]
            out.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
            n += len(rows)
            if progress is not None:
                progress(len(rows))
    return n


def chunks(samples: Iterator[Sample]) -> Iterator[list[tuple[Sample, str]]]:
    """Samples with their JSON, so many at a time that memory stays bounded."""
    chunk: list[tuple[Sample, str]] = []
    chars = 0
    for sample in samples:
        line = sample_to_json(sample)
        chunk.append((sample, line))
        chars += len(line)
        if len(chunk) >= _ROWS or chars >= _CHUNK_CHARS:
            yield chunk
            chunk, chars = [], 0
    if chunk:
        yield chunk


def _row(sample: Sample, line: str, graded: Graded | None) -> dict[str, str | int | float | None]:
    outputs = sample.outputs
    last = outputs[-1] if outputs else None
    cached = [o.cached_tokens for o in outputs if o.cached_tokens is not None]
    return {
        "model": sample.key.model,
        "arm": sample.key.arm,
        "task": sample.key.task,
        "item_id": sample.key.item_id,
        "repeat": sample.key.repeat,
        "content_hash": sample.content_hash,
        "cluster_id": None if graded is None else _utf8(graded.cluster_id),
        "status": None if graded is None else graded.status,
        "score": None if graded is None else graded.score,
        "extracted": None if graded is None else _utf8(graded.extracted),
        "reason": None if graded is None else _utf8(graded.reason),
        "degenerate": None if graded is None else graded.degenerate,
        "text": None if last is None else _utf8(last.text),
        "reasoning_chars": sum(len(o.reasoning or "") for o in outputs)
        if graded is None
        else graded.reasoning_chars,
        "finish_reason": None if last is None else _utf8(last.finish_reason),
        "prompt_tokens": sum(o.prompt_tokens for o in outputs),
        "cached_tokens": sum(cached) if outputs and len(cached) == len(outputs) else None,
        "completion_tokens": sum(o.completion_tokens for o in outputs),
        "turns": len(outputs),
        "attempts": sample.attempts,
        "started_unix_s": sample.started_unix_s,
        "latency_s": sample.latency_s,
        "error": _utf8(sample.error),
        "sample_json": line,
    }


def _utf8(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
