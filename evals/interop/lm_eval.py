"""lm-eval logs: ``samples_TASK_TIME.jsonl`` and ``results_TIME.json``, as ``--log_samples`` writes them.

A row of a samples file (one document, one filter)::

    {"doc_id": 0, "doc": {...}, "target": "1", "arguments": {"gen_args_0": {"arg_0": "Q: ...", ...}},
     "resps": [["1"]], "filtered_resps": ["1"], "filter": "strict-match", "metrics": ["exact_match"],
     "doc_hash": "96e2...", "prompt_hash": "6a08...", "target_hash": "6b86...", "exact_match": 1.0}

lm-eval writes a null answer as an empty text (or as ``LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER``) and scores it
as any other: an empty answer that scored 0 is read as errored here. It does not log why a generation
ended, so a truncated answer cannot be told from a finished one. Rows that our own export wrote say both, and
clusters and repeats, under ``equipoise``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.bounded import iter_json_lines, json_object, read_json
from equipoise.evals.interop.columns import ABSENT, as_text, cluster_of, find, identifier
from equipoise.evals.interop.own_rows import EXTRAS, with_extras
from equipoise.evals.interop.result_set import (
    ItemResult,
    ReadOptions,
    ResultSet,
    TaskResults,
    choose_tasks,
    excerpt,
)
from equipoise.evals.interop.scores import ScoreError, to_score
from equipoise.evals.types import ScoreStatus

__all__ = ["find_samples", "is_lm_eval_row", "read_lm_eval"]

_TIME = r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}(?:\.\d+)?"
_SAMPLES = re.compile(rf"samples_(?P<task>.+)_(?P<time>{_TIME})\.jsonl")
_RESULTS = re.compile(rf"(?:.*_)?results_(?P<time>{_TIME})\.json|.+_(?P<stem_time>{_TIME})\.json")
_DEPTH = ("*", "*/*", "*/*/*")
_SETTINGS = ("num_fewshot", "generation_kwargs", "repeats", "description", "fewshot_delimiter")
_RUN_SETTINGS = ("chat_template_sha", "system_instruction_sha", "fewshot_as_multiturn", "lm_eval_version")

UNKNOWN = (
    "lm-eval does not log why a generation ended: truncated answers count as the tool scored them",
    "lm-eval writes a null answer as an empty text, or as a placeholder if one is set: only empty ones "
    "are recognised and counted as errored",
)


def is_lm_eval_row(row: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like a line of a samples file."""
    return {"doc_id", "resps", "metrics", "doc_hash"} <= row.keys()


def find_samples(directory: Path) -> list[Path]:
    """The samples files at most two folders below ``directory``."""
    return sorted(
        p for pattern in _DEPTH for p in directory.glob(pattern) if _SAMPLES.fullmatch(p.name) and p.is_file()
    )


def read_lm_eval(path: Path, options: ReadOptions) -> ResultSet:
    """Read a directory, one samples file, or one ``results_TIME.json`` with the samples beside it.

    Raises
    ------
    UsageError
        No samples, several models, a task with several time stamps, an unknown metric or a bad row.
    """
    samples = _chosen(path)
    folders = {p.parent for p in samples.values()}
    if len(folders) > 1:
        names = ", ".join(sorted(str(f) for f in folders))
        raise UsageError(f"{path} holds results of several models: give one of {names}")
    (folder,) = folders
    results = _results_by_time(folder)
    tasks, models, notes = {}, set(), []
    for task in choose_tasks(samples, options.tasks, str(path)):
        file = samples[task]
        time = _time(file)
        summary = results.get(time, {})
        if not summary:
            notes.append(f"no results_{time}.json beside {file.name}: settings are not known")
        models.add(str(summary.get("model_name") or folder.name))
        tasks[task] = _read_task(task, file, summary, options)
    return ResultSet(
        source=str(path),
        format="lm-eval",
        model=", ".join(sorted(models)),
        tasks=tasks,
        unknown=(*(() if all(t.truncation_known for t in tasks.values()) else UNKNOWN), *notes),
    )


def _chosen(path: Path) -> dict[str, Path]:
    """The samples file of each task."""
    if path.is_file() and not (named := _SAMPLES.fullmatch(path.name)) and path.suffix == ".jsonl":
        return {path.stem: path}
    if path.is_file() and named:
        return {named["task"]: path}
    found = find_samples(path.parent if path.is_file() else path)
    if path.is_file():  # a results file: the samples of its time
        found = [p for p in found if p.parent == path.parent and _time(p) in path.name]
    if not found:
        raise UsageError(f"{path}: no samples_*.jsonl there; run lm-eval with --log_samples")
    chosen: dict[str, Path] = {}
    for file in found:
        named = _SAMPLES.fullmatch(file.name)
        assert named is not None, "find_samples matched it"
        other = chosen.get(named["task"])
        if other is not None and other.parent == file.parent:
            raise UsageError(
                f"{path}: task {named['task']!r} was run more than once ({other.name} and {file.name}); "
                f"name the run you mean: give its results file, e.g. {file.parent}/results_{_time(file)}.json"
            )
        if other is not None:
            raise UsageError(
                f"{path} holds results of several models: give one of {other.parent} and {file.parent}"
            )
        chosen[named["task"]] = file
    return chosen


def _time(file: Path) -> str:
    named = _SAMPLES.fullmatch(file.name)
    return named["time"] if named else ""


def _results_by_time(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for file in folder.glob("*.json"):
        if named := _RESULTS.fullmatch(file.name):
            found[named["time"] or named["stem_time"]] = json_object(read_json(file), str(file))
    return found


def _read_task(task: str, file: Path, summary: Mapping[str, Any], options: ReadOptions) -> TaskResults:
    """One pass: metric and filter are as asked, else the first of each in the file."""
    wanted, _, filter_ = (options.metric or "").partition(",")
    filters: dict[str, list[str]] = {}  # name -> metrics that are scores; in the file one follows another
    metric = ""
    items = []
    ours = True
    for where, row in _rows(file):
        name = str(row.get("filter", "none"))
        if name not in filters:
            filters[name] = _usable(row)
            if name == (filter_ or next(iter(filters))):
                metric, filter_ = _choose_metric(row, filters[name], wanted, where), name
        if name == filter_:
            items.append(_item(row, metric, where, options.cluster_column))
            ours = ours and isinstance(row.get(EXTRAS), Mapping)
    if not filters:
        raise UsageError(f"{file} has no samples; run the task again")
    if filter_ not in filters:
        raise UsageError(f"{file}: no filter {filter_!r}; there are {', '.join(filters)} (--metric)")
    if find(summary, f"higher_is_better.{task}.{metric}") is False:
        raise UsageError(f"task {task!r}: of metric {metric!r} lower is better; choose another with --metric")
    others = [f"{m},{f}" for f, there in filters.items() for m in there if (m, f) != (metric, filter_)]
    said = f"metric {metric},{filter_} is compared; also logged: {', '.join(others)} (--metric)"
    return TaskResults(
        task=task,
        metric=metric if filter_ == "none" else f"{metric},{filter_}",
        items=tuple(items),
        hash_kind="lm-eval",
        truncation_known=ours and bool(items),
        settings=_settings(task, summary),
        notes=(said,) if others and not options.metric else (),
    )


def _settings(task: str, summary: Mapping[str, Any]) -> dict[str, str]:
    config = find(summary, f"configs.{task}")
    settings = {k: str(config[k]) for k in _SETTINGS if isinstance(config, Mapping) and k in config}
    settings |= {k: str(summary[k]) for k in _RUN_SETTINGS if summary.get(k) is not None}
    version = find(summary, f"versions.{task}")
    return settings if version is ABSENT else settings | {"task version": str(version)}


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, row in iter_json_lines(file):
        if not is_lm_eval_row(row):
            raise UsageError(f"{where} is no lm-eval sample (doc_id, resps, metrics and doc_hash are needed)")
        yield where, row


def _usable(row: Mapping[str, Any]) -> list[str]:
    """The metrics of a row that are scores in [0, 1]."""
    return [m for m in _metrics(row) if _scores(row.get(m))]


def _metrics(row: Mapping[str, Any]) -> list[str]:
    return [str(m) for m in row["metrics"]] if isinstance(row["metrics"], list) else []


def _choose_metric(row: Mapping[str, Any], usable: Sequence[str], wanted: str, where: str) -> str:
    there = _metrics(row)
    if wanted and wanted not in there:
        raise UsageError(f"{where}: no metric {wanted!r}; there are {', '.join(there)} (--metric)")
    if not wanted and not usable:
        raise UsageError(
            f"{where}: none of the metrics {', '.join(there)} is a score in [0, 1] for each item; "
            "such a task (perplexity, lists) cannot be compared here"
        )
    return wanted or usable[0]


def _scores(value: Any) -> bool:
    try:
        to_score(value)
    except ScoreError:
        return False
    return True


def _item(row: Mapping[str, Any], metric: str, where: str, cluster_column: str | None) -> ItemResult:
    item_id = identifier(row["doc_id"], where, "doc_id")
    try:
        score, reason = to_score(row.get(metric))
    except ScoreError as e:
        raise UsageError(
            f"{where}: item {item_id!r}, metric {metric!r}: {e}; choose another with --metric"
        ) from e
    answers = _answers(row["resps"])
    status = ScoreStatus.SCORED
    if score is None:
        status = ScoreStatus.ERRORED
    elif score == 0.0 and answers is not None and not any(a.strip() for a in answers):
        score, status, reason = None, ScoreStatus.ERRORED, "empty answer"
    found = ItemResult(
        item_id=item_id,
        score=score,
        status=status,
        reason=reason,
        content_hash=" ".join(
            f"{part} {str(row.get(f'{part}_hash'))[:16]}" for part in ("doc", "prompt", "target")
        ),
        cluster_id=cluster_of(row, cluster_column, where),
        prompt=excerpt(_prompt(row)),
        target=excerpt(as_text(row.get("target"))),
        answer=excerpt(answers[0] if answers else as_text(row.get("filtered_resps"))),
    )
    extras = row.get(EXTRAS)
    return found if not isinstance(extras, Mapping) else with_extras(found, extras, row.get(metric), where)


def _answers(resps: Any) -> Sequence[str] | None:
    """The generated texts; None for log-likelihoods, whose responses are lists of numbers."""
    if not isinstance(resps, list):
        return None
    inner = [text for request in resps for text in (request if isinstance(request, list) else [request])]
    return inner if all(isinstance(text, str) for text in inner) else None


def _prompt(row: Mapping[str, Any]) -> str | None:
    return as_text(find(row, "arguments.gen_args_0.arg_0"))
