"""Which column of a table means what, and a row as a result."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.columns import ABSENT, as_text, cluster_of, find, identifier, token_count
from equipoise.evals.interop.result_set import ItemResult, ReadOptions, excerpt, short_id
from equipoise.evals.interop.scores import ScoreError, is_value, to_score
from equipoise.evals.types import ScoreStatus

__all__ = ["ITEM_COLUMNS", "SCORE_COLUMNS", "TableColumns"]

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
#: which answer a row is: in every row or in none
_WHICH = MappingProxyType({"task": ("task",), "cluster": ("cluster_id",), "repeat": ("repeat", "epoch")})
#: what else is known of it; JSON rows often have these only where there is something to say
_ABOUT = MappingProxyType(
    {
        "hash": ("content_hash",),
        "error": ("error",),
        "finish": ("finish_reason", "stop_reason"),
        "prompt": ("prompt", "question", "problem"),
        "target": ("target", "expected_answer", "ground_truth"),
        "tokens": ("completion_tokens",),
    }
)
_ANSWERS = ("response", "completion", "output", "generation", "solution")
MAX_REPEAT_DIGITS = 9


class TableColumns:
    """Which columns of a table mean what: settled by its first row; those of `_ABOUT` may come later."""

    def __init__(
        self, row: Mapping[str, Any], where: str, options: ReadOptions, score_column: str | None
    ) -> None:
        item_id = _optional(row, where, "item", options.item_column, ITEM_COLUMNS)
        self.row_ids = item_id is None and options.row_ids
        self.item_id = "" if self.row_ids else _named(row, where, "item", item_id, ITEM_COLUMNS)
        self.score = _named(row, where, "score", score_column, SCORE_COLUMNS)
        self.task = _optional(row, where, "task", options.task_column, _WHICH["task"])
        self.cluster = _optional(row, where, "cluster", options.cluster_column, _WHICH["cluster"])
        self.repeat = _optional(row, where, "repeat", options.repeat_column, _WHICH["repeat"])
        self.hash = _optional(row, where, "hash", options.hash_column, _ABOUT["hash"])
        self.error: str | None = None
        self.finish: str | None = None
        self.prompt: str | None = None
        self.target: str | None = None
        self.tokens: str | None = None
        beside = self.score.rpartition(".")[0]  # of a nested score, its neighbours
        self.answer = _first(row, _ANSWERS) or next(
            (f"{beside}.{a}" for a in _ANSWERS if beside and find(row, f"{beside}.{a}") is not ABSENT), None
        )
        self.score_is = options.score_is
        self._seen = set(row)
        self._settle(row)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which columns were taken; complete after the last row."""
        found = {k: getattr(self, k) for k in ("task", "cluster", "repeat", "hash", "error", "finish")}
        named = ", ".join(f"{k} from column {v!r}" for k, v in found.items() if v)
        chosen = "row numbers" if self.row_ids else f"column {self.item_id!r}"
        return (f"items from {chosen}, scores from {self.score!r}" + (f", {named}" if named else ""),)

    def see(self, row: Mapping[str, Any], where: str) -> None:
        """Take up columns that the rows before did not have.

        Raises
        ------
        UsageError
            They say which answer a row is, so that the rows before cannot do without.
        """
        if not row.keys() - self._seen:
            return
        self._seen.update(row)
        for what, names in _WHICH.items():
            late = _first(row, names) if getattr(self, what) is None else None
            if late is not None:
                raise UsageError(
                    f"{where}: the {what} column {late!r}, which the rows before lack; give it in every row "
                    f"or in none, or name another with --{what}-column"
                )
        self._settle(row)

    def _settle(self, row: Mapping[str, Any]) -> None:
        for what, names in _ABOUT.items():
            if getattr(self, what) is None and not (what == "finish" and self.score == "finish_reason"):
                setattr(self, what, _first(row, names))

    def task_of(self, row: Mapping[str, Any], where: str) -> str:
        return identifier(find(row, self.task), where, f"task (column {self.task!r})") if self.task else ""

    def item(self, row: Mapping[str, Any], where: str, number: int) -> ItemResult:
        item_id = (
            str(number)
            if self.row_ids
            else short_id(identifier(find(row, self.item_id), where, f"item id (column {self.item_id!r})"))
        )
        answer_column = self.answer or _first(row, _ANSWERS)
        answer = as_text(find(row, answer_column)) if answer_column else None
        finish = self._finish_of(row)
        score, status, reason = self._scored(row, item_id, where, finish)
        if status is ScoreStatus.SCORED and score == 0.0 and answer_column and not (answer or "").strip():
            score, status, reason = None, ScoreStatus.ERRORED, "empty answer"
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
            finish_reason=finish[:40],
            completion_tokens=token_count(find(row, self.tokens)) if self.tokens else None,
        )

    def _scored(
        self, row: Mapping[str, Any], item_id: str, where: str, finish: str
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
        if finish in _TRUNCATED:
            return score, ScoreStatus.TRUNCATED, ""
        if score is None:
            return None, ScoreStatus.ERRORED, reason
        return score, ScoreStatus.SCORED, ""

    def _finish_of(self, row: Mapping[str, Any]) -> str:
        value = find(row, self.finish) if self.finish else ""
        if isinstance(value, Mapping):  # SGLang's own: {"type": "length", "length": 512}
            value = value.get("type")
        return value if isinstance(value, str) else ""

    def _repeat(self, row: Mapping[str, Any], where: str) -> int:
        if self.repeat is None:
            return 0
        value = find(row, self.repeat)
        text = str(value).removesuffix(".0")
        if not text.isdecimal() or len(text) > MAX_REPEAT_DIGITS:
            raise UsageError(
                f"{where}: repeat {str(value)[:40]!r} is not a whole number (column {self.repeat!r})"
            )
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
