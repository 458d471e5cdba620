"""A journal's samples in formats that other tools read: JSON lines and parquet."""

import itertools
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.evals.errors import JournalError
from equipoise.evals.journal import Journal
from equipoise.evals.sample_json import sample_to_json
from equipoise.evals.types import Sample

__all__ = ["export_jsonl", "export_parquet"]

_ROWS = 1000  # samples in memory at a time

_SCHEMA = pa.schema(
    [
        ("model", pa.string()),
        ("arm", pa.string()),
        ("task", pa.string()),
        ("item_id", pa.string()),
        ("repeat", pa.int32()),
        ("content_hash", pa.string()),
        ("text", pa.string()),  # of the last output
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int64()),  # over all outputs
        ("completion_tokens", pa.int64()),
        ("turns", pa.int32()),
        ("attempts", pa.int32()),
        ("started_unix_s", pa.float64()),
        ("latency_s", pa.float64()),
        ("error", pa.string()),
        ("sample_json", pa.string()),  # everything, logprobs included
    ]
)


def export_jsonl(journal: Journal, path: Path) -> int:
    """Write one sample a line, in the order of their keys; how many there were.

    Raises
    ------
    JournalError
        The file cannot be written; an earlier one of that name is left as it was.
    """
    new = path.with_name(path.name + ".new")
    try:
        with new.open("w", encoding="ascii") as out:
            n = 0
            for sample in journal.samples():
                out.write(sample_to_json(sample) + "\n")
                n += 1
        os.replace(new, path)
    except OSError as e:
        raise JournalError(f"{path}: cannot export ({e.strerror}); give a writable path") from e
    return n


def export_parquet(journal: Journal, path: Path) -> int:
    """Write a table with one row a sample; how many there were.

    Lone surrogates, which parquet cannot hold, are escaped in ``text`` and whole in ``sample_json``.

    Raises
    ------
    JournalError
        The file cannot be written; an earlier one of that name is left as it was.
    """
    new = path.with_name(path.name + ".new")
    samples = journal.samples()
    n = 0
    try:
        with pq.ParquetWriter(new, _SCHEMA, compression="zstd") as out:
            while rows := [_row(s) for s in itertools.islice(samples, _ROWS)]:
                out.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
                n += len(rows)
        os.replace(new, path)
    except OSError as e:
        raise JournalError(f"{path}: cannot export ({e}); give a writable path") from e
    return n


def _row(sample: Sample) -> dict[str, str | int | float | None]:
    last = sample.outputs[-1] if sample.outputs else None
    return {
        "model": sample.key.model,
        "arm": sample.key.arm,
        "task": sample.key.task,
        "item_id": sample.key.item_id,
        "repeat": sample.key.repeat,
        "content_hash": sample.content_hash,
        "text": None if last is None else _utf8(last.text),
        "finish_reason": None if last is None else _utf8(last.finish_reason),
        "prompt_tokens": sum(o.prompt_tokens for o in sample.outputs),
        "completion_tokens": sum(o.completion_tokens for o in sample.outputs),
        "turns": len(sample.outputs),
        "attempts": sample.attempts,
        "started_unix_s": sample.started_unix_s,
        "latency_s": sample.latency_s,
        "error": _utf8(sample.error),
        "sample_json": sample_to_json(sample),
    }


def _utf8(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
