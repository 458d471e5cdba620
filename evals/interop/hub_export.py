"""Scores as a model repository of the Hugging Face hub keeps them: ``.eval_results/TASK.yaml``.

A file is a list of entries::

    - dataset: {id: openai/gsm8k, task_id: gsm8k, revision: 740312ad...}
      value: 91.2
      date: '2026-01-01T00:00:00Z'
      notes: ...

The hub shows an entry on the model's page and on the leaderboard of the data set if that is registered as a
benchmark; ``task_id`` is one of those in the data set's ``eval.yaml``. No link is written: ``source`` is left
out, and nobody is named. (``model-index`` in a README is the hub's older form.)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from equipoise.evals.errors import UsageError
from equipoise.evals.new_file import new_file

__all__ = ["FOLDER", "HubDataset", "HubResult", "hub_dataset", "write_hub_results"]

FOLDER = ".eval_results"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_TASK_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubDataset:
    """A data set of the hub, and which of its tasks."""

    id: str
    task_id: str
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubResult:
    """One score of one model; ``notes`` is one line without markup."""

    task: str
    dataset: HubDataset
    value: float
    date: str  # ISO 8601
    notes: str


def hub_dataset(text: str) -> HubDataset:
    """``OWNER/NAME`` or ``OWNER/NAME:TASK_ID``, by default the task ``default``.

    Raises
    ------
    UsageError
        It is not of this form.
    """
    repo, _, task_id = text.partition(":")
    task_id = task_id or "default"
    if not _REPO.fullmatch(repo) or not _TASK_ID.fullmatch(task_id):
        raise UsageError(f"{text!r} names no data set of the hub; give OWNER/NAME or OWNER/NAME:TASK_ID")
    return HubDataset(id=repo, task_id=task_id)


def write_hub_results(repository: Path, results: Sequence[HubResult], *, force: bool = False) -> list[Path]:
    """Write one file a task into ``.eval_results`` of a folder that becomes, or joins, a model repository.

    Raises
    ------
    UsageError
        A file exists and ``force`` is not set, or it cannot be written.
    """
    written = []
    for result in results:
        path = repository / FOLDER / f"{result.task}.yaml"
        text = yaml.safe_dump([_entry(result)], sort_keys=False, allow_unicode=False, width=100)
        with new_file(path, force=force) as new:
            new.write_text(text, encoding="ascii")
        written.append(path)
    return written


def _entry(result: HubResult) -> dict[str, Any]:
    dataset = {"id": result.dataset.id, "task_id": result.dataset.task_id}
    if result.dataset.revision:
        dataset["revision"] = result.dataset.revision
    return {"dataset": dataset, "value": result.value, "date": result.date, "notes": result.notes}
