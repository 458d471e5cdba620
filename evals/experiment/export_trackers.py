"""A run for experiment trackers: parameters, numbers and tags of its report, and the report itself.

Keys never leave this machine: the report's text goes out without the values of secret-looking flags, without
passwords in URLs, and without what the environment variables of the plan's keys hold.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from equipoise.evals.experiment.questions import questions_of
from equipoise.evals.experiment.results import JOURNAL_NAME, plan_of, report_of
from equipoise.evals.interop.mlflow_export import log_mlflow
from equipoise.evals.interop.tracked_run import (
    MAX_VALUE_CHARS,
    USER_INFO,
    TrackedRun,
    metric_names,
)
from equipoise.evals.interop.trackio_export import log_trackio
from equipoise.evals.interop.wandb_export import log_wandb
from equipoise.evals.journal import Journal
from equipoise.evals.provenance import without_secrets
from equipoise.reports import html, markdown
from equipoise.reports import json as json_report
from equipoise.reports.escape import one_line
from equipoise.reports.evidence import PooledRow, TaskRow
from equipoise.reports.format import size
from equipoise.reports.model import ModelReport, Report
from equipoise.reports.wording import verdict_word

__all__ = ["TRACKERS", "export_to_tracker", "tracked_run"]

MIN_SECRET_CHARS = 6  # anything shorter would blank out ordinary words
TRACKERS: Mapping[str, Callable[..., str]] = {
    "mlflow": log_mlflow,
    "trackio": log_trackio,
    "wandb": log_wandb,
}
_PASSES = ("EQUIVALENT", "NON-INFERIOR")


def export_to_tracker(
    directory: Path, tracker: str, *, project: str, out: Path | None = None, force: bool = False
) -> str:
    """Log a run into one of `TRACKERS`; where it is.

    Raises
    ------
    UsageError
        The tracker's package is not installed, it refuses, or the run is there already (without ``force``).
    JournalError
        The journal is missing or damaged.
    """
    with Journal.read(directory / JOURNAL_NAME) as journal:
        plan = plan_of(journal)
        report = report_of(journal, plan, questions_of(plan), run_id=directory.resolve().name)
    keys = [os.environ.get(a.api_key_env, "") for a in plan.arms if a.api_key_env is not None]
    run = tracked_run(report, secrets=keys)
    return TRACKERS[tracker](run, project=project, directory=out, force=force)


def tracked_run(report: Report, *, secrets: Sequence[str] = ()) -> TrackedRun:
    """The report as a tracker takes it; ``secrets`` are values that must not go out."""
    report = _scrubbed(report, [s for s in secrets if len(s) >= MIN_SECRET_CHARS])
    run, source = report.run, report.provenance
    digest = sha256(f"{run.run_id}\0{run.plan_hash}\0{run.created}".encode("utf-8", "surrogatepass"))
    return TrackedRun(
        name=one_line(run.run_id, 100),
        run_id=digest.hexdigest()[:16],
        params=_texts(_params(report)),
        metrics=metric_names(_metrics(report)),
        tags=_texts(_tags(report)),
        files={
            "report.html": html.render(report),
            "report.json": json_report.render(report),
            "report.md": markdown.render(report),
        },
        started_unix_s=_unix(source.started or run.created),
        finished_unix_s=_unix(source.finished or run.created),
    )


def _params(report: Report) -> Iterator[tuple[str, str]]:
    """What was set before the run: plan, margins, models, arms, versions."""
    run, source = report.run, report.provenance
    yield "plan", run.plan_name
    yield "plan_hash", run.plan_hash
    yield "alpha", f"{run.alpha:g}"
    if run.suite_margin is not None:
        yield "margin_points.pooled_mean", size(run.suite_margin)
    for model in report.models:
        for row in model.tasks:
            yield f"margin_points.{model.name}.{row.task}", size(row.margin)
    for arm in source.arms:
        for name, value in (("variant", arm.variant), ("kv_cache_dtype", arm.kv_cache_dtype)):
            yield f"arm.{arm.model}.{arm.name}.{name}", value
    sections: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("model", source.models),
        ("version", source.versions),
        ("hardware", source.hardware),
        ("seed", source.seeds),
    )
    for section, values in sections:
        yield from ((f"{section}.{name}", str(value)) for name, value in values.items())
    yield "commit", source.git_commit


def _tags(report: Report) -> Iterator[tuple[str, str]]:
    yield "verdict", verdict_word(report)
    yield "state", report.run.state
    for model in report.models:
        yield f"verdict.{model.name}", model.verdict or ""
        for row in model.rows:
            yield f"verdict.{model.name}.{_name(row)}", row.verdict


def _metrics(report: Report) -> Iterator[tuple[str, float | None]]:
    """Fractions are fractions and delta is candidate minus baseline, as in the JSON report."""
    run = report.run
    yield "exit_code", run.exit_code
    yield "signed_off", run.verdict == "SIGNED OFF"
    yield "indistinguishable", run.indistinguishable
    yield "pairs", run.pairs
    yield "smallest_detectable_loss", run.smallest_detectable_loss
    yield "duration_s", report.provenance.duration_s
    for model in report.models:
        yield from _of_model(model)


def _of_model(model: ModelReport) -> Iterator[tuple[str, float | None]]:
    for row in model.rows:
        interval = row.interval
        numbers = {
            "accuracy_baseline": row.accuracy_baseline,
            "accuracy_candidate": row.accuracy_candidate,
            "delta": row.delta,
            "delta_lower": interval.lo if interval is not None else None,
            "delta_upper": interval.hi if interval is not None else None,
            "margin": row.margin,
            "items": row.n,
            "lost": row.lost,
            "gained": row.gained,
            "within_margin": row.verdict in _PASSES,
        }
        yield from ((f"{model.name}/{_name(row)}/{name}", value) for name, value in numbers.items())
    for gate in model.logprobs:
        yield f"{model.name}/{gate.task}/delta_nll_nats", gate.delta_nll_nats
        yield f"{model.name}/{gate.task}/gate_passed", gate.status == "passed"
    if model.noise_floor is not None:
        yield f"{model.name}/noise_floor_passed", model.noise_floor.passed
    for control in model.controls:
        yield f"{model.name}/{control.strength}_control/caught", control.caught
        yield f"{model.name}/{control.strength}_control/delta", control.delta
    for arm in model.missing:
        yield f"{model.name}/missing_answers/{arm.arm}", arm.missing
    yield f"{model.name}/failed_requests", model.errors_total


def _name(row: TaskRow | PooledRow) -> str:
    return row.task if isinstance(row, TaskRow) else "pooled_mean"


def _texts(pairs: Iterator[tuple[str, str]]) -> dict[str, str]:
    """One line each, names in letters that every tracker takes; what is empty is left out."""
    return {
        re.sub(r"[^A-Za-z0-9_. -]+", "_", name)[:200]: one_line(value, MAX_VALUE_CHARS // 3)[:MAX_VALUE_CHARS]
        for name, value in pairs
        if value
    }


def _unix(time: str) -> float:
    """0 where a report's time is none."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0


# ---- secrets


def _scrubbed(report: Report, secrets: Sequence[str]) -> Report:
    """The same report without secrets in any of its texts."""
    values = json.loads(json_report.render(report))
    return json_report.load(json.dumps(_scrub(values, secrets)))


def _scrub(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, dict):  # by value: a task may be called "secret", and its row must stay
        found = {name: _scrub(item, secrets) for name, item in value.items()}
        if "chars" in found and isinstance(found.get("text"), str):  # an excerpt that may have grown
            found["chars"] = max(found["chars"], found.get("start", 0) + len(found["text"]))
        return found
    if isinstance(value, list):
        words = without_secrets(value) if all(isinstance(v, str) for v in value) else value
        return [_scrub(item, secrets) for item in words]
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "***")
        return USER_INFO.sub("***@", without_secrets(value))
    return value
