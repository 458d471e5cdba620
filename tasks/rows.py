"""Rows of a public data set: from a directory the user names, else from the hub at a pinned revision.

``EQUIPOISE_DATA`` (``--data-dir``) names a directory with the file that a source lists as ``local``; without
it the rows come through ``datasets``. Rows are untrusted: plain JSON or tab-separated text, sizes bounded,
never code.
"""

import csv
import gzip
import io
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from equipoise.evals.errors import UsageError

__all__ = ["Row", "RowSource", "load_rows", "read_rows", "sample_rows"]

MAX_FILE_BYTES = 1 << 30  # of text, after decompression
MAX_LINE_BYTES = 64 << 20
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Where a data set lives.

    ``local`` is relative to ``EQUIPOISE_DATA``: JSON Lines (``.jsonl``, ``.jsonl.gz``), one JSON value
    (``.json``: a list of rows, an object with ``examples``, or JSON Lines after all) or tab-separated values
    without a header (``.tsv``; fields ``0``, ``1``...). The rest pins the hub's copy; ``hub_file`` reads one
    file of a repository that is no data set by itself; an empty ``hub`` means that it has none. ``label``
    tells the sources of one task apart.
    """

    local: str
    hub: str
    config: str
    split: str
    revision: str
    licence: str
    citation: str
    label: str = ""
    hub_file: str = ""


def load_rows(source: RowSource) -> tuple[Sequence[Row], bool]:
    """All rows of a source, and whether they came from ``EQUIPOISE_DATA``.

    Raises
    ------
    UsageError
        The file is missing, too large or not in its format, or the hub cannot be reached.
    """
    directory = os.environ.get("EQUIPOISE_DATA")
    if directory:
        return list(read_rows(Path(directory) / source.local)), True
    if not source.hub:
        raise UsageError(
            f"{source.local} is in no data set of the hub: set EQUIPOISE_DATA (--data-dir) to a directory "
            f"that holds it; it is part of {source.citation}"
        )
    where = f"{source.hub} ({source.hub_file or source.split}, revision {source.revision[:8]})"
    try:
        if source.hub_file:
            from huggingface_hub import hf_hub_download

            path = hf_hub_download(source.hub, source.hub_file, repo_type="dataset", revision=source.revision)
            return list(read_rows(Path(path))), True  # in the form of the file, as a local one
        from datasets import load_dataset  # slow import, needed here only

        rows = load_dataset(source.hub, source.config, split=source.split, revision=source.revision)
    except Exception as e:
        raise UsageError(
            f"{where} cannot be loaded: {type(e).__name__}: {str(e)[:200]}; set EQUIPOISE_DATA (--data-dir) "
            f"to a directory with {source.local}, run where the hub can be reached, or with HF_HUB_OFFLINE=1 "
            "and a filled cache"
        ) from e
    return list(rows), False


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, by its suffix.

    Raises
    ------
    UsageError
        Names the file, and the line where there is one.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise UsageError(f"{path}: {size} bytes, at most {MAX_FILE_BYTES} are read")
        with path.open("rb") as raw:
            if path.suffix == ".gz":
                with gzip.open(raw) as unpacked:
                    yield from _parse(path, Path(path.stem), unpacked)  # type: ignore[arg-type]
            else:
                yield from _parse(path, path, raw)
    except gzip.BadGzipFile as e:
        raise UsageError(f"{path}: not a gzip file ({e})") from e
    except (EOFError, OSError) as e:
        why = getattr(e, "strerror", None) or str(e)
        raise UsageError(f"{path}: {why}; EQUIPOISE_DATA must name a directory that holds it") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"{path}: not UTF-8 text ({e.reason} at byte {e.start})") from e


def _parse(path: Path, name: Path, raw: BinaryIO) -> Iterator[Row]:
    if name.suffix == ".tsv":
        for fields in csv.reader(io.StringIO(_text(path, raw)), delimiter="\t", quoting=csv.QUOTE_NONE):
            yield {str(i): value for i, value in enumerate(fields)}
    elif name.suffix == ".json":
        yield from _json_rows(path, _text(path, raw))
    else:
        yield from _json_lines(path, raw)


def _text(path: Path, raw: BinaryIO) -> str:
    data = raw.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: more than {MAX_FILE_BYTES} bytes when decompressed")
    return data.decode("utf-8")


def _json_rows(path: Path, text: str) -> Iterator[Row]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        yield from _json_lines(path, io.BytesIO(text.encode()))
        return
    if isinstance(value, dict) and isinstance(value.get("examples"), list):
        value = value["examples"]
    if not isinstance(value, list):
        value = [value]
    for number, row in enumerate(value):
        yield _object(path, f"row {number}", row)


def _json_lines(path: Path, raw: BinaryIO) -> Iterator[Row]:
    number = total = 0
    while line := raw.readline(MAX_LINE_BYTES + 1):
        number += 1
        total += len(line)
        if len(line) > MAX_LINE_BYTES or total > MAX_FILE_BYTES:
            raise UsageError(
                f"{path}:{number}: a line of more than {MAX_LINE_BYTES} or a file of more than "
                f"{MAX_FILE_BYTES} bytes"
            )
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise UsageError(f"{path}:{number}: not JSON ({e}); the file must be JSON Lines") from e
        yield _object(path, f"line {number}", row)


def _object(path: Path, where: str, row: Any) -> Row:
    if not isinstance(row, dict):
        raise UsageError(f"{path}: {where}: a row must be a JSON object")
    return row


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
