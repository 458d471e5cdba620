"""The verdict and its numbers in Prometheus' text format, for a pushgateway or a textfile collector.

Gauges only. Fractions are fractions and delta = candidate - baseline, as in the JSON report; what is
undefined has no sample. Every verdict word is a series of its own, 1 where it holds, so that an alert can
name it.
"""

import datetime
from collections.abc import Iterator

from equipoise.reports.escape import one_line
from equipoise.reports.evidence import PooledRow, TaskRow
from equipoise.reports.model import ModelReport, Report
from equipoise.reports.vocabulary import SUITE_VERDICTS, TASK_VERDICTS

__all__ = ["render"]

MAX_LABEL_CHARS = 200
NO_VERDICT = "NO VERDICT"

#: By metric (without its prefix), what it says; in the order of the text.
HELP = {
    "run_info": "The run and its plan; always 1.",
    "run_verdict": "1 for the verdict of the run, 0 for every other.",
    "run_exit_code": "Exit code: 0 signed off, 1 degraded, 3 inconclusive, 4 invalid or no verdict.",
    "run_indistinguishable": "1 if the candidate is equivalent within the margins.",
    "run_pairs": "Paired items of the primary comparison, over models and tasks.",
    "run_smallest_detectable_loss": "Smallest true pooled loss that the run would have noticed.",
    "run_created_timestamp_seconds": "When the run was registered.",
    "run_duration_seconds": "From its registration to its last answer.",
    "model_verdict": "1 for the verdict of the model, 0 for every other.",
    "task_verdict": "1 for the verdict of the task, 0 for every other.",
    "pooled_verdict": "1 for the verdict of the mean over tasks, 0 for every other.",
    **{
        f"{what}_{name}": f"{said} of {of}."
        for what, of in (("task", "the task"), ("pooled", "the mean over tasks"))
        for name, said in (
            ("items", "Paired items"),
            ("accuracy_baseline", "Accuracy of the baseline"),
            ("accuracy_candidate", "Accuracy of the candidate"),
            ("delta", "Accuracy of the candidate minus that of the baseline,"),
            ("delta_lower", "One-sided lower bound of delta"),
            ("delta_upper", "One-sided upper bound of delta"),
            ("margin", "Largest tolerated loss"),
            ("lost", "Items that the candidate lost,"),
            ("gained", "Items that the candidate gained,"),
        )
    },
    "likelihood_delta_nll_nats": "NLL of the candidate minus that of the baseline, nats a token.",
    "likelihood_gate_nats": "What the upper bound of delta-NLL must stay below.",
    "likelihood_passed": "1 if the likelihood gate passed.",
    "noise_floor_passed": "1 if the baseline asked twice agrees with itself.",
    "control_caught": "1 if the planted fault was caught.",
    "control_delta": "Pooled delta of the planted fault.",
    "answers_planned": "Answers that the plan asks of the arm.",
    "answers_missing": "Answers of the arm that never came.",
    "requests_failed": "Requests that failed for good, over the model's arms.",
}
_Sample = tuple[str, dict[str, str], float | int | None]


def render(report: Report) -> str:
    """Text format 0.0.4, one family of samples after another; ends with a newline."""
    labels = {"plan": report.run.plan_name, "run": report.run.run_id}
    samples: dict[str, list[str]] = {name: [] for name in HELP}
    for name, more, value in _samples(report):
        if value is not None:
            samples[name].append(_line(f"equipoise_{name}", labels | more, value))
    text = ""
    for name, lines in samples.items():
        if lines:
            text += f"# HELP equipoise_{name} {HELP[name]}\n# TYPE equipoise_{name} gauge\n" + "".join(lines)
    return text


def _samples(report: Report) -> Iterator[_Sample]:
    run, source = report.run, report.provenance
    yield "run_info", {"plan_hash": run.plan_hash, "state": run.state, "kind": run.kind}, 1
    yield from _words("run_verdict", {}, run.verdict or NO_VERDICT, (*SUITE_VERDICTS, NO_VERDICT))
    yield "run_exit_code", {}, run.exit_code
    yield "run_indistinguishable", {}, int(run.indistinguishable)
    yield "run_pairs", {}, run.pairs
    yield "run_smallest_detectable_loss", {}, run.smallest_detectable_loss
    yield "run_created_timestamp_seconds", {}, _unix(run.created)
    yield "run_duration_seconds", {}, source.duration_s
    for model in report.models:
        yield from _model(model)


def _model(model: ModelReport) -> Iterator[_Sample]:
    of = {"model": model.name}
    yield from _words("model_verdict", of, model.verdict or NO_VERDICT, (*SUITE_VERDICTS, NO_VERDICT))
    for row in model.tasks:
        yield from _row("task", of | {"task": row.task, "critical": str(row.critical).lower()}, row)
    if model.pooled is not None:
        yield from _row("pooled", of, model.pooled)
    for gate in model.logprobs:
        task = of | {"task": gate.task}
        yield "likelihood_delta_nll_nats", task, gate.delta_nll_nats
        yield "likelihood_gate_nats", task, gate.gate_nats
        yield "likelihood_passed", task, int(gate.status == "passed")
    if model.noise_floor is not None:
        yield "noise_floor_passed", of, int(model.noise_floor.passed)
    for control in model.controls:
        planted = of | {"strength": control.strength, "required": str(control.required).lower()}
        yield "control_caught", planted, int(control.caught)
        yield "control_delta", planted, control.delta
    for arm in model.missing:
        yield "answers_planned", of | {"arm": arm.arm}, arm.planned
        yield "answers_missing", of | {"arm": arm.arm}, arm.missing
    yield "requests_failed", of, model.errors_total


def _row(what: str, of: dict[str, str], row: TaskRow | PooledRow) -> Iterator[_Sample]:
    yield from _words(f"{what}_verdict", of, row.verdict, TASK_VERDICTS)
    yield f"{what}_items", of, row.n
    yield f"{what}_accuracy_baseline", of, row.accuracy_baseline
    yield f"{what}_accuracy_candidate", of, row.accuracy_candidate
    yield f"{what}_delta", of, row.delta
    if row.interval is not None:
        yield f"{what}_delta_lower", of, row.interval.lo
        yield f"{what}_delta_upper", of, row.interval.hi
    yield f"{what}_margin", of, row.margin
    yield f"{what}_lost", of, row.lost
    yield f"{what}_gained", of, row.gained


def _words(name: str, of: dict[str, str], holds: str, words: tuple[str, ...]) -> Iterator[_Sample]:
    for word in words:
        yield name, of | {"verdict": word}, int(word == holds)


def _unix(created: str) -> float | None:
    """Seconds since 1970; None where the report's time is none (a report is read as it is)."""
    try:
        return datetime.datetime.fromisoformat(created).timestamp()
    except ValueError:
        return None


def _line(name: str, labels: dict[str, str], value: float | int) -> str:
    shown = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
    return f"{name}{{{shown}}} {value!r}\n"


def _label(text: str) -> str:
    """A label's value: backslash, quote and newline escaped as the format asks, after what acts is shown."""
    shown = one_line(text, MAX_LABEL_CHARS)
    return shown.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
