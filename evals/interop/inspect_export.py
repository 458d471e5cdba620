"""Results as an inspect log ``.eval``: a zip file of JSON members, written one sample at a time.

The form is that of inspect's log version 2: ``header.json``, ``summaries.json``, ``samples/ID_epoch_N.json``.
inspect itself is not needed. What its form has no place for stands in each sample's metadata under
``equipoise``.
"""

import json
import math
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from equipoise.evals.interop.inspect_form import (
    InspectSample,
    Usage,
    digest,
    plain,
    sample_form,
    sample_id,
    summary_form,
    utc,
)
from equipoise.evals.new_file import new_file

__all__ = ["InspectLog", "log_name", "write_inspect"]

LOG_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectLog:
    """One task of one arm. ``planned_ids`` are the items that were to be asked, ``epochs`` times each.

    ``generation`` has inspect's names (``max_tokens``, ``temperature``, ...).
    """

    task: str
    version: str
    model: str
    scorer: str
    planned_ids: Sequence[str]
    epochs: int
    created_unix_s: float
    generation: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The same for every export of these results."""
        return digest(self.model, self.task, str(self.created_unix_s))


def log_name(log: InspectLog) -> str:
    """The file's name as inspect makes them: time, task, id."""
    time = utc(log.created_unix_s)[:19].replace(":", "-")
    return f"{time}+00-00_{re.sub(r'[^A-Za-z0-9-]+', '-', log.task)}_{log.digest}.eval"


def write_inspect(
    path: Path, log: InspectLog, samples: Iterable[InspectSample], *, force: bool = False
) -> int:
    """Write the log; how many samples it has.

    Raises
    ------
    UsageError
        The file exists and ``force`` is not set, or it cannot be written.
    """
    total = _Total()
    moment = datetime.fromtimestamp(max(log.created_unix_s, 315_532_800.0), UTC).timetuple()[:6]
    with (
        new_file(path, force=force) as new,
        tempfile.TemporaryFile() as summaries,
        zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for sample in samples:
            form = sample_form(sample, model=log.model, scorer=log.scorer, log_id=log.digest)
            name = f"samples/{form['id']}_epoch_{form['epoch']}.json"
            _member(archive, name, moment, json.dumps(form, allow_nan=False).encode())
            summaries.write((b"," if total.logged else b"[") + json.dumps(summary_form(form)).encode())
            total.add(sample)
        summaries.write(b"]" if total.logged else b"[]")
        summaries.seek(0)
        _member(archive, "summaries.json", moment, summaries)
        _member(archive, "header.json", moment, json.dumps(_header(log, total), allow_nan=False).encode())
    return total.logged


def _member(archive: zipfile.ZipFile, name: str, moment: tuple[int, ...], data: bytes | IO[bytes]) -> None:
    year, month, day, hour, minute, second = moment
    info = zipfile.ZipInfo(name, (year, month, day, hour, minute, second))
    info.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(info, "w") as out:
        if isinstance(data, bytes):
            out.write(data)
        else:
            shutil.copyfileobj(data, out)


class _Total:
    """What the header says of all samples, gathered while they pass by."""

    def __init__(self) -> None:
        self.logged = self.completed = self.scored = 0
        self._sum = self._squares = 0.0
        self.usage = Usage(prompt=0, completion=0)

    def add(self, sample: InspectSample) -> None:
        self.logged += 1
        self.completed += sample.error is None
        if sample.score is not None:
            self.scored += 1
            self._sum += sample.score
            self._squares += sample.score**2
        if sample.usage is not None:
            self.usage = Usage(
                prompt=self.usage.prompt + sample.usage.prompt,
                completion=self.usage.completion + sample.usage.completion,
            )

    def metrics(self) -> dict[str, float]:
        """The mean of what was scored, and its standard error as inspect gives it (clusters ignored)."""
        if not self.scored:
            return {}
        mean = self._sum / self.scored
        if self.scored == 1:
            return {"accuracy": mean}
        spread = max(0.0, self._squares - self.scored * mean**2) / (self.scored - 1)
        return {"accuracy": mean, "stderr": math.sqrt(spread / self.scored)}


def _header(log: InspectLog, total: _Total) -> dict[str, Any]:
    created = utc(log.created_unix_s)
    planned = len(log.planned_ids) * log.epochs
    metrics = {name: {"name": name, "value": value} for name, value in total.metrics().items()}
    header = {
        "version": LOG_VERSION,
        # "started" would have viewers wait for the rest
        "status": "success" if total.logged >= planned else "cancelled",
        "eval": {
            "eval_id": log.digest,
            "run_id": digest(log.model, str(log.created_unix_s)),
            "created": created,
            "task": log.task,
            "task_id": log.digest,
            "task_version": log.version,
            "dataset": {
                "name": log.task,
                "samples": len(log.planned_ids),
                "sample_ids": [sample_id(i) for i in log.planned_ids],
                "shuffled": False,
            },
            "model": log.model,
            "model_generate_config": dict(log.generation),
            "config": {"epochs": log.epochs},
            "packages": dict(log.packages),
            "metadata": dict(log.about),
            "scorers": [{"name": log.scorer}],
        },
        "plan": {"name": "plan", "steps": [], "config": dict(log.generation)},
        "results": {
            "total_samples": planned,
            "completed_samples": total.completed,
            "logged_samples": total.logged,
            "scores": [
                {
                    "name": log.scorer,
                    "scorer": log.scorer,
                    "scored_samples": total.scored,
                    "unscored_samples": total.logged - total.scored,
                    "metrics": metrics,
                }
            ],
        },
        "stats": {
            "started_at": created,
            "completed_at": "",
            "model_usage": {log.model: total.usage.form()},
        },
    }
    form: dict[str, Any] = plain(header)
    return form
