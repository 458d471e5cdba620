"""inspect logs: ``.eval`` (a zip file of JSON members) and ``.json`` (one document).

Epochs are repeats; reducers are ignored. `inspect_sample` reads one sample.
"""

import zipfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.bounded import MAX_ROWS, json_object, read_json, read_member
from equipoise.evals.interop.columns import as_text
from equipoise.evals.interop.inspect_sample import mapping, read_sample
from equipoise.evals.interop.result_set import (
    ReadOptions,
    ResultSet,
    TaskResults,
    choose_tasks,
    short_id,
)

__all__ = ["find_logs", "is_inspect_log", "read_inspect"]

_CONFIG = ("limit", "max_tokens", "token_limit", "message_limit", "time_limit", "working_limit")

UNKNOWN = (
    "inspect logs the input and the target, not the prompt after the server's chat template",
    "a scorer that calls an infrastructure error a wrong answer without logging an error is not recognised",
)


#: task, model, and the results; None if the task is not wanted
_Read = tuple[str, str, TaskResults | None]


def find_logs(directory: Path) -> list[Path]:
    """The ``.eval`` logs in a directory; if there are none, its ``.json`` logs."""
    found = sorted(directory.glob("*.eval"))
    return found or sorted(p for p in directory.glob("*.json") if is_inspect_log(p))


def is_inspect_log(path: Path) -> bool:
    """Whether a file begins like an inspect log; reads its first bytes only."""
    try:
        with path.open("rb") as f:
            head = f.read(4096)
    except OSError:
        return False
    if path.suffix == ".eval":
        return head.startswith(b"PK")
    text = head.decode("utf-8", "replace").lstrip("\ufeff \n\r\t")
    return text.startswith("{") and '"version"' in text[:200] and '"eval"' in text and '"task"' in text


def read_inspect(path: Path, options: ReadOptions) -> ResultSet:
    """Read one log, or every log of a directory, one task each.

    Raises
    ------
    UsageError
        No log, a damaged one, a task logged twice, several models, an unknown scorer or a bad value.
    """
    logs = find_logs(path) if path.is_dir() else [path]
    if not logs:
        raise UsageError(f"{path}: no inspect log (.eval or .json) there; give the log file itself")
    tasks: dict[str, TaskResults] = {}
    files: dict[str, Path] = {}
    models: dict[str, Path] = {}
    for log in logs:
        read = _read_eval if log.suffix == ".eval" else _read_json
        task, model, results = read(log, options)
        if task in files:
            raise UsageError(f"{path}: task {task!r} was run twice: give {files[task]} or {log}")
        files[task] = log
        if results is not None:
            tasks[task] = results
            models[model] = log
    choose_tasks(files, options.tasks, str(path))
    if len(models) > 1:
        raise UsageError(f"{path} holds logs of several models ({', '.join(models)}): give one log file")
    return ResultSet(
        source=str(path), format="inspect", model=next(iter(models)), tasks=tasks, unknown=UNKNOWN
    )


def _read_eval(path: Path, options: ReadOptions) -> _Read:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {info.filename for info in archive.infolist()}
            if len(names) > MAX_ROWS:
                raise UsageError(f"{path}: more than {MAX_ROWS:,} members; split the log")
            start = next((n for n in ("header.json", "_journal/start.json") if n in names), None)
            if start is None:
                raise UsageError(
                    f"{path} is no inspect log: it has neither header.json nor _journal/start.json"
                )
            header = json_object(read_member(archive, start, path), f"{path}, member {start}")
            samples = (
                (f"{path}, member {n}", read_member(archive, n, path))
                for n in sorted(names)
                if n.startswith("samples/") and n.endswith(".json")
            )
            return _results(path, header, samples, options)
    except (OSError, zipfile.BadZipFile) as e:
        raise UsageError(f"{path} cannot be read as an inspect .eval log ({e}); copy it again") from e


def _read_json(path: Path, options: ReadOptions) -> _Read:
    log = json_object(read_json(path), str(path))
    samples = log.get("samples")
    if not isinstance(log.get("eval"), Mapping):
        raise UsageError(f"{path} is no inspect log: it has no key 'eval'")
    if not isinstance(samples, list):
        raise UsageError(f"{path} has no samples; run inspect with --log-samples")
    return _results(path, log, ((f"{path}, sample {i}", s) for i, s in enumerate(samples)), options)


def _results(
    path: Path, header: Mapping[str, Any], samples: Iterator[tuple[str, Any]], options: ReadOptions
) -> _Read:
    spec = json_object(header.get("eval"), f"{path}, key 'eval'")
    task, model = str(spec.get("task", "")), str(spec.get("model", ""))
    if options.tasks and not any(fnmatchcase(task, p) for p in options.tasks):
        return task, model, None
    scorer = options.metric
    notes: list[str] = []
    items = []
    for where, value in samples:
        sample = json_object(value, where)
        if scorer is None:
            scorer, notes = _choose_scorer(header, sample)
        items.append(read_sample(sample, scorer, where, options.cluster_column))
    if not items:
        raise UsageError(f"{path} has no samples; run inspect with --log-samples")
    status = str(header.get("status", "started"))
    if status != "success":
        notes.append(f"the log's status is {status!r}: samples that it lacks count as missing")
    config = mapping(spec.get("config"))
    planned = mapping(spec.get("dataset")).get("sample_ids")
    epochs = config.get("epochs")
    results = TaskResults(
        task=task,
        metric=scorer or "",
        items=tuple(items),
        planned_ids=tuple(short_id(str(i)) for i in planned) if isinstance(planned, list) else (),
        planned_repeats=epochs if isinstance(epochs, int) and epochs > 0 else None,
        hash_kind="inspect",
        truncation_known=True,
        settings={
            **{k: str(config[k]) for k in _CONFIG if config.get(k) is not None},
            **{
                k: as_text(spec[k]) or ""
                for k in ("task_version", "task_args", "model_generate_config")
                if spec.get(k)
            },
        },
        notes=tuple(notes),
    )
    return task, model, results


def _choose_scorer(header: Mapping[str, Any], sample: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """The log's first scorer, and what was left aside; None as long as no sample has scores."""
    listed = mapping(header.get("results")).get("scores")
    names = [str(s["scorer"]) for s in listed or [] if isinstance(s, Mapping) and "scorer" in s]
    names = list(dict.fromkeys(names)) or list(sample.get("scores") or {})
    if not names:
        return None, []
    notes = [f"scorer {names[0]} is compared; also logged: {', '.join(names[1:])} (--metric)"]
    return names[0], notes if len(names) > 1 else []
