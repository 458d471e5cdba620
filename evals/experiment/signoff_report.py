"""The report in a sign-off: its numbers, and whether the one that lies in the run directory is the run's."""

import datetime
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.experiment.report_attempts import utc
from equipoise.evals.signoff_document import ModelResult, RunFacts
from equipoise.reports import json as json_report
from equipoise.reports.model import ModelReport, Report

__all__ = ["REPORT_NAME", "model_result", "report_problem", "run_facts", "same_report", "value_differences"]

REPORT_NAME = "report.json"
MAX_DIFFERENCES = 3


def report_problem(directory: Path, report: Report) -> list[str]:
    """Whether the JSON report that lies in the run directory is another than the journal gives."""
    path = directory / REPORT_NAME
    again = f"make it again with `equipoise report RUN_DIR --format json --output RUN_DIR/{REPORT_NAME}`"
    if not path.exists():
        return []
    try:
        stored = json_report.load(path.read_text(encoding="utf-8"), source=REPORT_NAME)
    except (UsageError, OSError, ValueError) as e:
        return [f"{REPORT_NAME} cannot be read ({e}); {again}"]
    found = same_report(stored, report)
    if not found:
        return []
    more = f" and {len(found) - MAX_DIFFERENCES} more" if len(found) > MAX_DIFFERENCES else ""
    return [
        f"{REPORT_NAME} is not what the journal gives: {'; '.join(found[:MAX_DIFFERENCES])}{more}; {again}"
    ]


def same_report(one: Report, other: Report) -> list[str]:
    """In what two reports differ, by key; the run's name aside, which is that of its directory."""
    first, second = (json.loads(json_report.render(r)) for r in (one, other))
    for data in (first, second):
        own = {data["run"].pop("run_id")}
        for attempt in data["run"]["attempts"]:
            attempt["run_id"] = "" if attempt["run_id"] in own else attempt["run_id"]
    return list(value_differences("", first, second))


def value_differences(
    where: str, one: Any, other: Any, *, words: tuple[str, str] = ("stored", "computed")
) -> Iterator[str]:
    """In what two JSON values differ, by key; ``words`` name the two sides."""
    if one == other or _nearly(one, other):
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one | other:
            path = f"{where}.{key}" if where else key
            yield from value_differences(path, one.get(key), other.get(key), words=words)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from value_differences(f"{where}[{i}]", a, b, words=words)
    else:
        yield f"{where}: {words[0]} {_short(one)}, {words[1]} {_short(other)}"


def _nearly(one: Any, other: Any) -> bool:
    """Another machine's arithmetic may differ in the last digits."""
    numbers = isinstance(one, float) and isinstance(other, float)
    return numbers and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def run_facts(report: Report, created: float, finished: datetime.datetime) -> RunFacts:
    run = report.run
    return RunFacts(
        id=run.run_id,
        created_unix_s=created,
        finished=utc(finished.timestamp()),
        state=run.state,
        verdict=run.verdict,
        exit_code=run.exit_code,
        indistinguishable=run.indistinguishable,
        headline=run.headline,
        pairs=run.pairs,
        alpha=run.alpha,
        smallest_detectable_loss=run.smallest_detectable_loss,
    )


def model_result(model: ModelReport) -> ModelResult:
    pooled = model.pooled
    interval = pooled.interval if pooled else None
    return ModelResult(
        name=model.name,
        verdict=model.verdict,
        worst_case_verdict=model.worst_case_verdict,
        delta=pooled.delta if pooled else None,
        lower=interval.lo if interval else None,
        upper=interval.hi if interval else None,
        margin=pooled.margin if pooled else None,
        tasks={row.task: row.verdict for row in model.tasks},
    )
