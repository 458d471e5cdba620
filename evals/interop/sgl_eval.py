"""sgl-eval runs: a folder ``sgl_eval_NAME_TIME`` with ``metrics.json`` and one ``output-rsK.jsonl`` a repeat.

A row (one problem, one repeat)::

    {"generation": "... \\boxed{3}", "reasoning_content": null, "id": "aime25-0", "expected_answer": "3",
     "num_generated_tokens": 812, "finish_reason": "stop", "problem": "Find ...",
     "predicted_answer": "3", "symbolic_correct": true}

sgl-eval writes a request that failed for good as an empty text with finish_reason "error", scored false:
it is read as errored here. Long-context benchmarks log no problem text and score with ``is_correct``.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.bounded import iter_json_lines, json_object, read_json
from equipoise.evals.interop.columns import as_text, cluster_of, identifier, token_count
from equipoise.evals.interop.result_set import (
    ItemResult,
    ReadOptions,
    ResultSet,
    TaskResults,
    choose_tasks,
    excerpt,
    short_id,
)
from equipoise.evals.interop.scores import ScoreError, to_score
from equipoise.evals.types import ScoreStatus

__all__ = ["find_runs", "read_sgl_eval"]

_OUTPUT = re.compile(r"output-rs(?P<repeat>\d+)\.jsonl")
_FOLDER = re.compile(r"sgl_eval_(?P<name>.+)_\d{8}-\d{6}")
_SCORE_FIELDS = ("symbolic_correct", "is_correct")
_SETTINGS = ("gen", "bench_args", "prompt", "ns_commit_sha", "sgl_eval_version")

UNKNOWN = (
    "sgl-eval logs the problem and the answer it expects, not the prompt as sent: another prompt file or "
    "chat template is seen only in the settings",
)


def find_runs(directory: Path) -> list[Path]:
    """``directory`` itself or the folders in it that hold predictions."""
    here = [directory, *sorted(p for p in directory.iterdir() if p.is_dir())]
    return [p for p in here if any(_OUTPUT.fullmatch(f.name) for f in p.glob("output-rs*.jsonl"))]


def read_sgl_eval(path: Path, options: ReadOptions) -> ResultSet:
    """Read one run folder, or all that lie in one directory.

    Raises
    ------
    UsageError
        No predictions, a benchmark run twice, several models, an unknown score field or a bad row.
    """
    folders = find_runs(path) if path.is_dir() else []
    if not folders:
        raise UsageError(f"{path}: no output-rs*.jsonl there; run sgl-eval without --no-dump-predictions")
    runs: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in folders:
        summary_file = folder / "metrics.json"
        summary = json_object(read_json(summary_file), str(summary_file)) if summary_file.exists() else {}
        named = _FOLDER.fullmatch(folder.name)
        name = str(summary.get("name") or (named["name"] if named else folder.name))
        if name in runs:
            raise UsageError(f"{path}: benchmark {name!r} was run twice: give {runs[name][0]} or {folder}")
        runs[name] = folder, summary
    chosen = choose_tasks(runs, options.tasks, str(path))
    models = {str(runs[name][1].get("model", "")) for name in chosen}
    if len(models) > 1:
        raise UsageError(f"{path} holds runs of several models ({', '.join(models)}): give one run folder")
    return ResultSet(
        source=str(path),
        format="sgl-eval",
        model=next(iter(models)),
        tasks={name: _read_task(name, *runs[name], options) for name in chosen},
        unknown=UNKNOWN,
    )


def _read_task(name: str, folder: Path, summary: Mapping[str, Any], options: ReadOptions) -> TaskResults:
    files = {
        int(m["repeat"]): f for f in folder.iterdir() if (m := _OUTPUT.fullmatch(f.name)) and f.is_file()
    }
    items = []
    field = options.metric
    for repeat, file in sorted(files.items()):
        for where, row in iter_json_lines(file):
            if field is None:
                field = next((f for f in _SCORE_FIELDS if f in row), None)
            if field is None or field not in row:
                raise UsageError(
                    f"{where}: no score field {field or ' or '.join(_SCORE_FIELDS)}; name one with --metric"
                )
            items.append(_item(row, field, repeat, where, options.cluster_column))
    partial = (f"the run was interrupted: {len(items)} answers are there",) if summary.get("partial") else ()
    return TaskResults(
        task=name,
        metric=field or "",
        items=tuple(items),
        planned_repeats=max(files) + 1,
        hash_kind="sgl-eval",
        truncation_known=True,
        settings={k: as_text(summary[k]) or "" for k in _SETTINGS if k in summary},
        notes=partial,
    )


def _item(
    row: Mapping[str, Any], field: str, repeat: int, where: str, cluster_column: str | None
) -> ItemResult:
    item_id = short_id(identifier(row.get("id"), where, "id"))
    try:
        score, reason = to_score(row[field])
    except ScoreError as e:
        raise UsageError(f"{where}: item {item_id!r}, {field}: {e}; name another field with --metric") from e
    finish = row.get("finish_reason")
    answer = row.get("generation")
    status = ScoreStatus.SCORED
    if finish == "length":
        status = ScoreStatus.TRUNCATED
    elif finish not in (None, "stop", "length", "tool_calls"):
        score, status, reason = None, ScoreStatus.ERRORED, f"finish_reason {finish!s:.40}"
    elif score is None:
        status = ScoreStatus.ERRORED
    elif score == 0.0 and not (isinstance(answer, str) and answer.strip()):
        score, status, reason = None, ScoreStatus.ERRORED, "empty answer"
    problem, target = as_text(row.get("problem")), as_text(row.get("expected_answer"))
    tokens = row.get("num_generated_tokens")
    return ItemResult(
        item_id=item_id,
        repeat=repeat,
        score=score,
        status=status,
        reason=reason,
        content_hash=f"problem {_digest(problem)} target {_digest(target)}",
        cluster_id=cluster_of(row, cluster_column, where),
        prompt=excerpt(problem),
        target=excerpt(target),
        answer=excerpt(as_text(row.get("predicted_answer")) or as_text(answer)),
        finish_reason=str(finish or "")[:40],
        # sgl-eval writes 0 where the server sent no usage
        completion_tokens=token_count(tokens) or None,
    )


def _digest(text: str | None) -> str:
    return sha256((text or "").encode("utf-8", "surrogatepass")).hexdigest()[:16]
