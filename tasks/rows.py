"""Rows of a public data set: from a directory the user names, else from the hub at a pinned revision.

``EQUIPOISE_DATA`` names a directory with the file that a source lists as ``local``; without it the
rows come through ``datasets``. Rows are untrusted: plain JSON, sizes bounded, never code.
"""

import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError

__all__ = ["Row", "RowSource", "load_rows", "sample_rows"]

MAX_FILE_BYTES = 1 << 30
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Where a data set lives.

    ``local`` is relative to ``EQUIPOISE_DATA`` (JSON Lines); the rest pins the hub's copy.
    """

    local: str
    hub: str
    config: str
    split: str
    revision: str
    licence: str
    citation: str


def load_rows(source: RowSource) -> tuple[Sequence[Row], bool]:
    """All rows of a source, and whether they came from ``EQUIPOISE_DATA``.

    Raises
    ------
    UsageError
        The file is missing, too large or not JSON Lines, or the hub cannot be reached.
    """
    directory = os.environ.get("EQUIPOISE_DATA")
    if directory:
        return _read_jsonl(Path(directory) / source.local), True
    try:
        from datasets import load_dataset  # slow import, needed here only

        rows = load_dataset(source.hub, source.config, split=source.split, revision=source.revision)
    except Exception as e:
        raise UsageError(
            f"{source.hub} ({source.split}, revision {source.revision[:8]}) cannot be loaded: "
            f"{type(e).__name__}: {str(e)[:200]}; set EQUIPOISE_DATA to a directory with {source.local}, "
            "or run where the hub can be reached"
        ) from e
    return list(rows), False


def _read_jsonl(path: Path) -> list[Row]:
    try:
        size = path.stat().st_size
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}; EQUIPOISE_DATA must name a directory that holds it") from e
    if size > MAX_FILE_BYTES:
        raise UsageError(f"{path}: {size} bytes, at most {MAX_FILE_BYTES} are read")
    rows: list[Row] = []
    with path.open(encoding="utf-8") as f:
        for number, line in enumerate(f, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as e:
                raise UsageError(f"{path}:{number}: not JSON ({e}); the file must be JSON Lines") from e
            if not isinstance(row, dict):
                raise UsageError(f"{path}:{number}: a row must be a JSON object")
            rows.append(row)
    return rows


def sample_rows(rows: Sequence[Row], n: int, seed: int, *, name: str) -> list[tuple[int, Row]]:
    """``n`` different rows with their positions, drawn by ``seed``.

    A larger ``n`` adds to a smaller one, so that a plan can be extended.

    Raises
    ------
    UsageError
        The set has fewer rows.
    """
    if not rows:
        raise UsageError(f"task {name!r}: its data set has no rows; check the data directory")
    if n > len(rows):
        raise UsageError(f"task {name!r} has {len(rows)} items; the plan asks for {n}")
    order = list(range(len(rows)))
    random.Random(f"{name}-{seed}").shuffle(order)
    return [(i, rows[i]) for i in order[:n]]
