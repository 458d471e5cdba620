"""The neutral form of an existing result set: what was asked, what it scored, what is not known.

Readers make it, pairing consumes it. An answer that never came has ``score`` None and a reason; whether
the tool that wrote the log had counted it as wrong does not matter here.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from equipoise.evals.errors import UsageError
from equipoise.evals.types import ScoreStatus

__all__ = [
    "MAX_TEXT_CHARS",
    "ItemResult",
    "ReadOptions",
    "ResultSet",
    "TaskResults",
    "choose_tasks",
    "excerpt",
    "short_id",
]

MAX_TEXT_CHARS = 600  # of a prompt, target or answer: enough to read a flip
MAX_ID_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult:
    """One answer to one item.

    Attributes
    ----------
    score
        In [0, 1], as the tool gave it; None where there is no usable answer.
    status
        TRUNCATED ran into a budget (it counts as wrong when paired, whatever the tool scored);
        ERRORED and REFUSED have no score.
    reason
        Why there is no score, in a few words; equal reasons are counted together.
    content_hash
        Of what was asked; None if the log does not say. Comparable only within one ``hash_kind``.
    cluster_id
        None: the item is its own cluster.
    prompt, target, answer
        The first `MAX_TEXT_CHARS` characters, for the flips that a report shows.
    """

    item_id: str
    score: float | None
    status: ScoreStatus = ScoreStatus.SCORED
    reason: str = ""
    repeat: int = 0
    content_hash: str | None = None
    cluster_id: str | None = None
    prompt: str | None = None
    target: str | None = None
    answer: str | None = None
    finish_reason: str = ""
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResults:
    """All answers of one result set to one task.

    Attributes
    ----------
    task
        The task's name in the log; "" if the log does not name it.
    metric
        What the scores are, as the log calls it.
    planned_ids, planned_repeats
        What the log says was to be asked, if it says so: what is absent then is missing.
    hash_kind
        How ``content_hash`` was made; hashes of different kinds are not compared.
    truncation_known
        Whether the log tells a truncated answer from a finished one.
    settings
        Facts that should agree between two sets (few-shot count, sampling parameters, versions).
    notes
        What a reader had to choose or leave out, one sentence each.
    """

    task: str
    metric: str
    items: tuple[ItemResult, ...]
    planned_ids: tuple[str, ...] = ()
    planned_repeats: int | None = None
    hash_kind: str = ""
    truncation_known: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSet:
    """One model's results as one log, directory or file has them.

    ``unknown`` names what this format cannot tell, one sentence each.
    """

    source: str
    format: str
    model: str
    tasks: Mapping[str, TaskResults]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What the user chose; None leaves the choice to the reader, which says what it chose.

    Attributes
    ----------
    tasks
        Names or patterns of the tasks to read; empty for all.
    metric
        The metric of lm-eval (``NAME`` or ``NAME,FILTER``), the scorer of inspect (``NAME`` or
        ``NAME.KEY``), the score field of sgl-eval.
    score_is
        The score is 1 where the score column has exactly this value, else 0.
    row_ids
        Rows of a table without an item column are known by their number (two score columns of one file).
    item_column, score_column, task_column, cluster_column, repeat_column, hash_column
        Columns of tables; nested ones as dotted paths. ``cluster_column`` also works on the samples of
        lm-eval, inspect and sgl-eval.
    """

    tasks: tuple[str, ...] = ()
    metric: str | None = None
    item_column: str | None = None
    score_column: str | None = None
    score_is: str | None = None
    task_column: str | None = None
    cluster_column: str | None = None
    repeat_column: str | None = None
    hash_column: str | None = None
    row_ids: bool = False


def choose_tasks(names: Iterable[str], patterns: Sequence[str], source: str) -> list[str]:
    """The names that match one of ``patterns``; all of them if there are none.

    Raises
    ------
    UsageError
        A pattern matches no task of ``source``.
    """
    names = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            there = ", ".join(name or "one without a name" for name in names)
            raise UsageError(f"{source} has no task {pattern!r}; there are {there} (--task)")
    return [n for n in names if not patterns or any(fnmatchcase(n, p) for p in patterns)]


def excerpt(text: str | None) -> str | None:
    """The start of a text, for a report; a cut shows as an ellipsis."""
    if text is None or len(text) <= MAX_TEXT_CHARS:
        return text
    return text[: MAX_TEXT_CHARS - 1] + "…"


def short_id(value: str) -> str:
    """An id of bounded length: a long one keeps its start and a digest of the whole."""
    if len(value) <= MAX_ID_CHARS:
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{value[: MAX_ID_CHARS - 18]}… {digest[:16]}"
