"""Plain tables of (item, score): CSV, TSV, JSON lines, and JSON documents of rows.

A JSON document is a list of rows, an object ``{item: row}`` or ``{item: score}``, or holds one of these
at the path given after the file (``FILE:PATH``); in other files what follows the colon is the score column.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
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
from equipoise.evals.interop.columns import ABSENT, as_text, cluster_of, find, identifier
from equipoise.evals.interop.result_set import (
    ItemResult,
    ReadOptions,
    ResultSet,
    TaskResults,
    choose_tasks,
    excerpt,
    short_id,
)
from equipoise.evals.interop.scores import ScoreError, is_value, to_score
from equipoise.evals.types import ScoreStatus

__all__ = ["ITEM_COLUMNS", "SCORE_COLUMNS", "read_table"]

#: tried in this order where no column is named
ITEM_COLUMNS = (
    "item_id",
    "item",
    "id",
    "sample_id",
    "question_id",
    "example_id",
    "doc_id",
    "data_index",
    "key",
)
SCORE_COLUMNS = ("score", "correct", "is_correct", "exact_match", "accuracy", "acc", "passed", "value")
_TRUNCATED = frozenset({"length", "max_tokens", "model_length"})
_ANSWERS = ("response", "completion", "output", "generation", "solution")

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
    columns: _Columns | None = None
    items: dict[str, list[ItemResult]] = {}
    for number, (where, row) in enumerate(rows, 1):
        if columns is None:
            columns = _Columns(row, where, options, score_column)
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


class _Columns:
    """Which columns of a table mean what, settled by its first row."""

    def __init__(
        self, row: Mapping[str, Any], where: str, options: ReadOptions, score_column: str | None
    ) -> None:
        item_id = _optional(row, where, "item", options.item_column, ITEM_COLUMNS)
        self.row_ids = item_id is None and options.row_ids
        self.item_id = "" if self.row_ids else _named(row, where, "item", item_id, ITEM_COLUMNS)
        self.score = _named(row, where, "score", score_column, SCORE_COLUMNS)
        self.task = _optional(row, where, "task", options.task_column, ("task",))
        self.cluster = _optional(row, where, "cluster", options.cluster_column, ("cluster_id",))
        self.repeat = _optional(row, where, "repeat", options.repeat_column, ("repeat", "epoch"))
        self.hash = _optional(row, where, "hash", options.hash_column, ("content_hash",))
        self.error = _first(row, ("error",))
        self.finish = None if self.score == "finish_reason" else _first(row, ("finish_reason", "stop_reason"))
        beside = self.score.rpartition(".")[0]  # of a nested score, its neighbours
        self.answer = _first(row, _ANSWERS) or next(
            (f"{beside}.{a}" for a in _ANSWERS if beside and find(row, f"{beside}.{a}") is not ABSENT), None
        )
        self.prompt = _first(row, ("prompt", "question", "problem"))
        self.target = _first(row, ("target", "expected_answer", "ground_truth"))
        self.tokens = _first(row, ("completion_tokens",))
        self.score_is = options.score_is
        found = {k: getattr(self, k) for k in ("task", "cluster", "repeat", "hash", "error", "finish")}
        named = ", ".join(f"{k} from column {v!r}" for k, v in found.items() if v)
        chosen = "row numbers" if self.row_ids else f"column {self.item_id!r}"
        self.notes = (f"items from {chosen}, scores from {self.score!r}" + (f", {named}" if named else ""),)

    def task_of(self, row: Mapping[str, Any], where: str) -> str:
        return identifier(find(row, self.task), where, f"task (column {self.task!r})") if self.task else ""

    def item(self, row: Mapping[str, Any], where: str, number: int) -> ItemResult:
        item_id = (
            str(number)
            if self.row_ids
            else short_id(identifier(find(row, self.item_id), where, f"item id (column {self.item_id!r})"))
        )
        answer = None if self.answer is None else as_text(find(row, self.answer))
        score, status, reason = self._scored(row, item_id, where, answer)
        tokens = find(row, self.tokens) if self.tokens else None
        return ItemResult(
            item_id=item_id,
            repeat=self._repeat(row, where),
            score=score,
            status=status,
            reason=reason,
            content_hash=as_text(find(row, self.hash)) if self.hash else None,
            cluster_id=cluster_of(row, self.cluster, where),
            prompt=excerpt(as_text(find(row, self.prompt))) if self.prompt else None,
            target=excerpt(as_text(find(row, self.target))) if self.target else None,
            answer=excerpt(answer),
            finish_reason=str(find(row, self.finish) or "")[:40] if self.finish else "",
            completion_tokens=int(str(tokens)) if str(tokens).isdecimal() else None,
        )

    def _scored(
        self, row: Mapping[str, Any], item_id: str, where: str, answer: str | None
    ) -> tuple[float | None, ScoreStatus, str]:
        if self.error and find(row, self.error) not in (ABSENT, None, "", False, 0):
            return None, ScoreStatus.ERRORED, "error column is set"
        value = find(row, self.score)
        try:
            if value is ABSENT:
                score, reason = None, "no score"
            else:
                score, reason = to_score(value) if self.score_is is None else is_value(value, self.score_is)
        except ScoreError as e:
            raise UsageError(
                f"{where}: item {item_id!r}, column {self.score!r}: {e}; "
                "give scores from 0 to 1, or say what counts as right with --score-is"
            ) from e
        if self.finish and find(row, self.finish) in _TRUNCATED:
            return score, ScoreStatus.TRUNCATED, ""
        if score is None:
            return None, ScoreStatus.ERRORED, reason
        if score == 0.0 and self.answer and not (answer or "").strip():
            return None, ScoreStatus.ERRORED, "empty answer"
        return score, ScoreStatus.SCORED, ""

    def _repeat(self, row: Mapping[str, Any], where: str) -> int:
        if self.repeat is None:
            return 0
        value = find(row, self.repeat)
        text = str(value).removesuffix(".0")
        if not text.isdecimal():
            raise UsageError(f"{where}: repeat {value!r} is not a whole number (column {self.repeat!r})")
        return int(text)


def _named(row: Mapping[str, Any], where: str, what: str, wanted: str | None, usual: Sequence[str]) -> str:
    found = _optional(row, where, what, wanted, usual)
    if found is None:
        raise UsageError(f"{where}: no {what} column; there are {_names(row)}; name it with --{what}-column")
    return found


def _optional(
    row: Mapping[str, Any], where: str, what: str, wanted: str | None, usual: Sequence[str]
) -> str | None:
    if wanted is None:
        return _first(row, usual)
    if find(row, wanted) is ABSENT:
        raise UsageError(f"{where}: no {what} column {wanted!r}; there are {_names(row)}")
    return wanted


def _first(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((n for n in names if n in row), None)


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(str(k)[:60] for k in list(row)[:30])


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
