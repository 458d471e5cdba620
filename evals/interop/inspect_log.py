"""inspect logs: ``.eval`` (a zip file of JSON members) and ``.json`` (one document).

A sample (one item, one epoch)::

    {"id": "q0", "epoch": 1, "input": "What is 0+1?", "target": "1", "messages": [...],
     "output": {"choices": [{"message": {...}, "stop_reason": "stop"}], "completion": "1", "usage": {...}},
     "scores": {"match": {"value": "C", "answer": "1"}}, "error": null, "limit": null, ...}

Epochs are repeats; reducers are ignored. A sample with an error, a time limit or an operator's limit is
errored; one that met its token, context, message, turn or cost limit, or ended with ``max_tokens``, is
truncated; ``content_filter`` is refused; an empty answer that scored 0 is errored.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.bounded import MAX_ROWS, json_object, read_json, read_member
from equipoise.evals.interop.columns import as_text, cluster_of, identifier
from equipoise.evals.interop.result_set import (
    ItemResult,
    ReadOptions,
    ResultSet,
    TaskResults,
    excerpt,
    short_id,
)
from equipoise.evals.interop.scores import INSPECT_WORDS, ScoreError, to_score
from equipoise.evals.types import ScoreStatus

__all__ = ["find_logs", "is_inspect_log", "read_inspect"]

_TRUNCATING_LIMITS = frozenset({"token", "context", "message", "turn", "cost"})
_TRUNCATED_STOPS = frozenset({"max_tokens", "model_length"})
_CONFIG = ("limit", "max_tokens", "token_limit", "message_limit", "time_limit", "working_limit")

UNKNOWN = (
    "inspect logs the input and the target, not the prompt after the server's chat template",
    "a scorer that calls an infrastructure error a wrong answer without logging an error is not recognised",
)


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
        model, results = _read_eval(log, options) if log.suffix == ".eval" else _read_json(log, options)
        if results.task in tasks:
            raise UsageError(
                f"{path}: task {results.task!r} was run twice: give {files[results.task]} or {log}"
            )
        tasks[results.task], files[results.task] = results, log
        models[model] = log
    if len(models) > 1:
        raise UsageError(f"{path} holds logs of several models ({', '.join(models)}): give one log file")
    return ResultSet(
        source=str(path), format="inspect", model=next(iter(models)), tasks=tasks, unknown=UNKNOWN
    )


def _read_eval(path: Path, options: ReadOptions) -> tuple[str, TaskResults]:
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


def _read_json(path: Path, options: ReadOptions) -> tuple[str, TaskResults]:
    log = json_object(read_json(path), str(path))
    samples = log.get("samples")
    if not isinstance(log.get("eval"), Mapping):
        raise UsageError(f"{path} is no inspect log: it has no key 'eval'")
    if not isinstance(samples, list):
        raise UsageError(f"{path} has no samples; run inspect with --log-samples")
    return _results(path, log, ((f"{path}, sample {i}", s) for i, s in enumerate(samples)), options)


def _results(
    path: Path, header: Mapping[str, Any], samples: Iterator[tuple[str, Any]], options: ReadOptions
) -> tuple[str, TaskResults]:
    spec = json_object(header.get("eval"), f"{path}, key 'eval'")
    scorer = options.metric
    notes: list[str] = []
    items = []
    for where, value in samples:
        sample = json_object(value, where)
        if scorer is None:
            scorer, notes = _choose_scorer(header, sample)
        items.append(_item(sample, scorer, where, options.cluster_column))
    if not items:
        raise UsageError(f"{path} has no samples; run inspect with --log-samples")
    status = str(header.get("status", "started"))
    if status != "success":
        notes.append(f"the log's status is {status!r}: samples that it lacks count as missing")
    config = _mapping(spec.get("config"))
    planned = _mapping(spec.get("dataset")).get("sample_ids")
    epochs = config.get("epochs")
    return str(spec.get("model", "")), TaskResults(
        task=str(spec.get("task", "")),
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


def _choose_scorer(header: Mapping[str, Any], sample: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """The log's first scorer, and what was left aside; None as long as no sample has scores."""
    listed = _mapping(header.get("results")).get("scores")
    names = [str(s["scorer"]) for s in listed or [] if isinstance(s, Mapping) and "scorer" in s]
    names = list(dict.fromkeys(names)) or list(sample.get("scores") or {})
    if not names:
        return None, []
    notes = [f"scorer {names[0]} is compared; also logged: {', '.join(names[1:])} (--metric)"]
    return names[0], notes if len(names) > 1 else []


def _item(
    sample: Mapping[str, Any], scorer: str | None, where: str, cluster_column: str | None
) -> ItemResult:
    item_id = short_id(identifier(sample.get("id"), where, "sample id"))
    epoch = sample.get("epoch", 1)
    if not isinstance(epoch, int) or epoch < 1:
        raise UsageError(f"{where}: epoch {epoch!r} is not a number from 1")
    output = _mapping(sample.get("output"))
    stop, answer, called_tool = _reply(output)
    status, reason = _ending(sample, stop)
    score: float | None = None
    logged: Any = None
    if status in (ScoreStatus.SCORED, ScoreStatus.TRUNCATED):
        logged, score, why = _score(sample, scorer, item_id, where)
        empty = not answer.strip() and not called_tool
        if status is ScoreStatus.SCORED and score is None:
            status, reason = ScoreStatus.ERRORED, why
        elif status is ScoreStatus.SCORED and score == 0.0 and empty:
            score, status, reason = None, ScoreStatus.ERRORED, "empty answer"
    extracted = _mapping(logged).get("answer")
    tokens = _mapping(output.get("usage")).get("output_tokens")
    return ItemResult(
        item_id=item_id,
        repeat=epoch - 1,
        score=score,
        status=status,
        reason=reason,
        content_hash=_hash(sample),
        cluster_id=cluster_of(sample, cluster_column, where),
        prompt=excerpt(_input_text(sample.get("input"))),
        target=excerpt(as_text(sample.get("target"))),
        answer=excerpt(extracted if isinstance(extracted, str) and extracted else answer),
        finish_reason=stop[:40],
        completion_tokens=tokens if isinstance(tokens, int) else None,
    )


def _reply(output: Mapping[str, Any]) -> tuple[str, str, bool]:
    """Stop reason, text, and whether the reply calls a tool."""
    choices = output.get("choices")
    first = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    called = bool(_mapping(first.get("message")).get("tool_calls"))
    completion = output.get("completion")
    return str(first.get("stop_reason") or ""), completion if isinstance(completion, str) else "", called


def _ending(sample: Mapping[str, Any], stop: str) -> tuple[ScoreStatus, str]:
    """How the sample ended, before its score is looked at."""
    error = sample.get("error")
    if error:
        return ScoreStatus.ERRORED, "sample error"
    if sample.get("invalidation"):
        return ScoreStatus.ERRORED, "sample was invalidated"
    limit = _mapping(sample.get("limit"))
    kind = str(limit.get("type")) if limit else ""
    if kind in _TRUNCATING_LIMITS or stop in _TRUNCATED_STOPS:
        return ScoreStatus.TRUNCATED, f"{kind} limit" if kind else stop
    if kind:
        return ScoreStatus.ERRORED, f"{kind} limit"
    if stop == "content_filter":
        return ScoreStatus.REFUSED, "content filter"
    return ScoreStatus.SCORED, ""


def _score(
    sample: Mapping[str, Any], scorer: str | None, item_id: str, where: str
) -> tuple[Any, float | None, str]:
    """The logged score object, its value as a number, and why there is none."""
    scores = sample.get("scores")
    if not isinstance(scores, Mapping) or not scores or scorer is None:
        return None, None, "no score"
    name, key = scorer, None
    if scorer not in scores and "." in scorer:
        name, _, key = scorer.rpartition(".")
    if name not in scores:
        raise UsageError(f"{where}: no scorer {name!r}; there are {', '.join(scores)} (--metric)")
    logged = scores[name]
    value = _mapping(logged).get("value")
    if key is not None:
        if not isinstance(value, Mapping) or key not in value:
            raise UsageError(f"{where}: the value of scorer {name!r} has no key {key!r} (--metric)")
        value = value[key]
    elif isinstance(value, Mapping):
        raise UsageError(
            f"{where}: scorer {name!r} gives several values; choose one, e.g. "
            f"--metric {name}.{next(iter(value), 'KEY')}"
        )
    try:
        score, why = to_score(value, INSPECT_WORDS)
    except ScoreError as e:
        raise UsageError(
            f"{where}: item {item_id!r}, scorer {name!r}: {e}; choose another with --metric"
        ) from e
    return logged, score, why


def _mapping(value: Any) -> Mapping[str, Any]:
    """``value`` if it is an object; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _hash(sample: Mapping[str, Any]) -> str:
    """Of the input and the choices, and of the target. Message ids are new in every run: left out."""
    asked = json.dumps([_plain(sample.get("input")), sample.get("choices")], sort_keys=True)
    target = json.dumps(sample.get("target"), sort_keys=True)
    digests = (sha256(text.encode()).hexdigest()[:16] for text in (asked, target))
    return "input {} target {}".format(*digests)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [
            {k: v for k, v in m.items() if k not in ("id", "source", "model")}
            if isinstance(m, Mapping)
            else m
            for m in value
        ]
    return value


def _input_text(value: Any) -> str | None:
    if isinstance(value, list):
        texts = [as_text(m.get("content")) or "" for m in value if isinstance(m, Mapping)]
        return "\n".join(texts)
    return as_text(value)
