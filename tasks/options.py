"""A plan's ``options`` of a task: fields of its dataclass, by name and type."""

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Task
from equipoise.tasks.card import WithOptions
from equipoise.tasks.rows import RowSource

__all__ = ["options_of", "where_data_is", "with_options"]


def options_of(task: Task) -> dict[str, Any]:
    """The options that a task has, with their present values."""
    names = task.option_names if isinstance(task, WithOptions) else ()
    return {name: getattr(task, name) for name in names}


def with_options(task: Task, options: Mapping[str, Any]) -> Task:
    """The task with some of its options changed.

    A number may be given for a float, a list for a tuple, whose elements must be of the type of those there.

    Raises
    ------
    UsageError
        An option that the task does not have (the nearest is named), or of another type; what the task's own
        ``__post_init__`` raises as ValueError.
    """
    known = options_of(task)
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}"
            raise UsageError(f"task {task.name!r} has no option {name!r}; {hint}")
        changes[name] = _like(known[name], value, f"task {task.name!r}, option {name!r}")
    if not changes:
        return task
    values: Any = task  # a frozen dataclass, whose fields its options are
    try:
        changed: Task = replace(values, **changes)
        return changed
    except ValueError as e:
        raise UsageError(f"task {task.name!r}: {e}") from e


def where_data_is(task: Task) -> Task:
    """The task with those of its labelled sources whose files are in ``EQUIPOISE_DATA``, if only some are."""
    directory = os.environ.get("EQUIPOISE_DATA")
    sources: Sequence[RowSource] = getattr(task, "sources", ())
    labels = [s.label for s in sources if s.label]
    if not directory or not labels:
        return task
    here = [s.label for s in sources if s.label and (Path(directory) / s.local).is_file()]
    if not here or len(here) == len(labels):
        return task
    for name, value in options_of(task).items():
        if isinstance(value, tuple) and {str(v) for v in value} == set(labels):
            return with_options(task, {name: [v for v in value if str(v) in here]})
    return task


def _like(present: Any, value: Any, where: str) -> Any:
    """``value`` as the type of the present one."""
    if isinstance(present, tuple):
        if not isinstance(value, list | tuple) or not value:
            raise UsageError(f"{where}: must be a list of at least one value, not {value!r}")
        return tuple(_like(present[0], v, where) for v in value) if present else tuple(value)
    if isinstance(present, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if present is not None and type(value) is not type(present):
        raise UsageError(f"{where}: must be of type {type(present).__name__}, not {value!r}")
    return value
