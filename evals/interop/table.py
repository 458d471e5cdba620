"""Plain tables of (item, score): CSV, TSV, JSON lines, and JSON documents of rows.

A JSON document is a list of rows, an object ``{item: row}`` or ``{item: score}``, or holds one of these
at the path given after the file (``FILE:PATH``); in other files what follows the colon is the score column.
"""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.bounded import (
    MAX_LINE_BYTES,
    MAX_ROWS,
    decode,
    iter_json_lines,
    iter_lines,
    json_object,
    read_json,
)
from equipoise.evals.interop.columns import find
from equipoise.evals.interop.result_set import (
    ItemResult,
    ReadOptions,
    ResultSet,
    TaskResults,
    choose_tasks,
)
from equipoise.evals.interop.table_columns import TableColumns

__all__ = ["read_table"]

UNKNOWN = (
    "a plain table does not say what was asked: items are paired by id"
    " (add a column content_hash, or name one with --hash-column)",
    "an answer that a tool failed to get and scored 0 looks like a wrong one, unless the table has a"
    " column error, or an empty response column",
)

_Row = tuple[str, Mapping[str, Any]]


def read_table(path: Path, options: ReadOptions, selector: str = "") -> ResultSet:
    """Read one table; ``selector`` is what followed the colon.

    Raises
    ------
    UsageError
        No item or score column, an unknown path, a value that is no score in [0, 1], a malformed row.
    """
    rows, score_column = _rows(path, selector)
    score_column = options.score_column or score_column
    columns: TableColumns | None = None
    items: dict[str, list[ItemResult]] = {}
    for number, (where, row) in enumerate(rows, 1):
        if columns is None:
            columns = TableColumns(row, where, options, score_column)
        columns.see(row, where)
        task = columns.task_of(row, where)
        items.setdefault(task, []).append(columns.item(row, where, number))
    if columns is None:
        raise UsageError(f"{path} has no rows; nothing can be compared")
    chosen = choose_tasks(items, options.tasks, str(path))
    return ResultSet(
        source=f"{path}:{selector or options.score_column}" if selector or options.row_ids else str(path),
        format="table",
        model=selector or (options.row_ids and options.score_column) or path.stem,
        tasks={
            task: TaskResults(
                task=task,
                metric="score" if options.score_is is None else f"is {options.score_is}",
                items=tuple(found),
                hash_kind="column" if columns.hash else "",
                truncation_known=columns.finish is not None,
                notes=columns.notes,
            )
            for task, found in items.items()
            if task in chosen
        },
        unknown=UNKNOWN if columns.hash is None else UNKNOWN[1:],
    )


def _rows(path: Path, selector: str) -> tuple[Iterator[_Row], str | None]:
    """The rows, and the score column if the selector names one."""
    if path.suffix.lower() in (".csv", ".tsv"):
        return _csv_rows(path), selector or None
    if path.suffix.lower() == ".json":
        return _document_rows(path, selector)
    return iter_json_lines(path), selector or None


def _document_rows(path: Path, selector: str) -> tuple[Iterator[_Row], str | None]:
    value = read_json(path)
    where, column = str(path), selector or None
    if selector and isinstance(value, Mapping):
        inner = find(value, selector)
        if isinstance(inner, list | Mapping):
            value, where, column = inner, f"{path}:{selector}", None
        elif not isinstance(next(iter(value.values()), None), Mapping):
            names = ", ".join(list(value)[:30])
            raise UsageError(f"{path} has nothing at {selector!r}; there are {names}")
    if isinstance(value, list):
        if len(value) > MAX_ROWS:
            raise UsageError(f"{where}: more than {MAX_ROWS:,} rows; split the file")
        return ((f"{where}[{i}]", json_object(v, f"{where}[{i}]")) for i, v in enumerate(value)), column
    if isinstance(value, Mapping):
        if value and all(isinstance(v, list) for v in value.values()):
            raise UsageError(f"{where} holds several lists; name one: {path}:{next(iter(value))}")
        return ((f"{where}, key {k[:60]!r}", _keyed(k, v)) for k, v in value.items()), column
    raise UsageError(f"{where} is neither a list of rows nor an object of rows by item id")


def _keyed(key: str, value: Any) -> Mapping[str, Any]:
    """A row of ``{item: row}`` or ``{item: score}``; the key is the item's id."""
    return {**value, "item_id": key} if isinstance(value, Mapping) else {"item_id": key, "score": value}


def _csv_rows(path: Path) -> Iterator[_Row]:
    limit = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        lines = (decode(line, f"{path}:{number}") for number, line in iter_lines(path))
        reader = csv.reader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        header = next(reader, None)
        if header is None:
            return
        if len(set(header)) != len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise UsageError(f"{path}: column {twice!r} is there twice; rename one")
        for cells in reader:
            where = f"{path}:{reader.line_num}"
            if not cells:  # a blank line
                continue
            if len(cells) != len(header):
                raise UsageError(f"{where}: {len(cells)} cells, but the header has {len(header)}")
            yield where, dict(zip(header, cells, strict=True))
    except csv.Error as e:
        raise UsageError(f"{path} is not valid CSV ({e}); check quotes and line ends") from e
    finally:
        csv.field_size_limit(limit)
