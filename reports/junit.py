"""The report as JUnit XML, for CI: a suite for the run, each model and each task; a test case for each check.

What blocks the run is a failure (DEGRADED, INCONCLUSIVE) or an error (INVALID, no verdict); what is reported
and blocks nothing is skipped, with its message. So a file without failures and errors is a run that exits 0,
and the other way round. Numbers are in the suites' properties, in full, under the names of the JSON report.
Elements and attributes are those that Jenkins' xUnit schema (junit-10) and its relatives have in common.
"""

import dataclasses
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from equipoise.reports.escape import one_line, xml_text
from equipoise.reports.evidence import Interval, PooledRow, TaskRow
from equipoise.reports.format import plain_seconds
from equipoise.reports.model import ModelReport, Report
from equipoise.reports.node import Node
from equipoise.reports.teacher_forced import LogprobRow
from equipoise.reports.wording import attempt_words, checks, verdict_sentences, verdict_word

__all__ = ["render"]

PASSED_RUNS = ("SIGNED OFF", "GATES PASSED")
MAX_MESSAGE_CHARS = 1_000
MAX_BODY_CHARS = 10_000
MAX_ITEMS = 50  # item ids named in a failure
Result = Literal["passed", "skipped", "failure", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One check. ``kind`` is the word that became the result; ``body`` is what a reader wants beside it."""

    name: str
    result: Result
    kind: str = ""
    message: str = ""
    body: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suite:
    name: str
    cases: tuple[_Case, ...]
    properties: Mapping[str, str]


def render(report: Report) -> str:
    """XML 1.0, whatever the text: characters that XML or a terminal would act on are shown escaped."""
    suites = [_run(report)]
    for model in report.models:
        suites += [_model(report, model), *_tasks(report, model), *_logprobs(model)]
    root = ET.Element("testsuites", {"name": xml_text(f"equipoise {report.run.plan_name}", 200)})
    total = {name: 0 for name in ("tests", "failures", "errors")}
    time = plain_seconds(report.provenance.duration_s)
    stamp = (report.provenance.started or report.run.created)[:19]
    for i, suite in enumerate(suites):
        counts = _counts(suite.cases)
        total = {name: total[name] + counts[name] for name in total}
        attributes = {"name": xml_text(suite.name, 300), "id": str(i), "timestamp": xml_text(stamp, 40)}
        attributes |= {name: str(n) for name, n in counts.items()}
        if i == 0 and time:
            attributes["time"] = time
        _append(ET.SubElement(root, "testsuite", attributes), suite)
    for name, n in total.items():
        root.set(name, str(n))
    if time:
        root.set("time", time)
    ET.indent(root, " ")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _counts(cases: Sequence[_Case]) -> dict[str, int]:
    results = [case.result for case in cases]
    return {
        "tests": len(cases),
        "failures": results.count("failure"),
        "errors": results.count("error"),
        "skipped": results.count("skipped"),
    }


def _append(element: ET.Element, suite: _Suite) -> None:
    properties = ET.SubElement(element, "properties")
    for name, value in suite.properties.items():
        shown = {"name": xml_text(name, 200), "value": xml_text(value, MAX_MESSAGE_CHARS)}
        ET.SubElement(properties, "property", shown)
    for case in suite.cases:
        attributes = {
            "classname": xml_text(f"equipoise.{suite.name}", 300),
            "name": xml_text(case.name, 200),
            "time": "0",
        }
        found = ET.SubElement(element, "testcase", attributes)
        body = xml_text(case.body, MAX_BODY_CHARS)
        if case.result != "passed":
            said = {"type": xml_text(case.kind, 100), "message": xml_text(case.message, MAX_MESSAGE_CHARS)}
            ET.SubElement(found, case.result, said).text = body
        elif case.body:
            ET.SubElement(found, "system-out").text = body


# ---- suites


def _run(report: Report) -> _Suite:
    said = verdict_sentences(report)
    case = _verdict("verdict", verdict_word(report), said[0], "\n".join([*said, *report.run.reasons]))
    return _Suite(name="run", cases=(case,), properties=_properties(report.run))


def _model(report: Report, model: ModelReport) -> _Suite:
    cases = [_verdict("verdict", model.verdict or "NO VERDICT", model.sentence)]
    if model.pooled is not None:
        cases.append(_row(report, model, model.pooled, "pooled mean", "pooled mean: non-inferiority"))
    results: dict[bool | None, Result] = {True: "passed", False: "failure", None: "skipped"}
    for check in checks(model):
        result = results[check.ok]
        # A broken condition makes the whole model INVALID: it is one of the reasons of that error.
        result = "error" if result == "failure" and model.verdict == "INVALID" else result
        if result == "failure" and model.verdict in PASSED_RUNS:
            result = "skipped"  # the plan did not require it
        same = sum(c.name.partition(" #")[0] == check.name for c in cases)
        name = f"{check.name} #{same + 1}" if same else check.name  # warnings share their name
        cases.append(_Case(name=name, result=result, kind="check", message=check.text, body=check.text))
    cases += _attempts(report, model)
    if model.verdict is not None:
        cases.append(_parity(report, model))
    parts: list[tuple[str, Node | None]] = [("pooled", model.pooled), ("noise_floor", model.noise_floor)]
    parts += [(f"{control.strength}_control", control) for control in model.controls]
    properties = _properties(model)
    for prefix, part in parts:
        properties |= _properties(part, f"{prefix}.") if part is not None else {}
    return _Suite(name=model.name, cases=tuple(cases), properties=properties)


def _tasks(report: Report, model: ModelReport) -> Iterator[_Suite]:
    for row in model.tasks:
        cases = [_row(report, model, row, row.task, "non-inferiority"), *_alarms(report, row)]
        yield _Suite(name=f"{model.name}.{row.task}", cases=tuple(cases), properties=_properties(row))


def _logprobs(model: ModelReport) -> Iterator[_Suite]:
    for row in model.logprobs:
        result: Result = "passed" if row.status == "passed" else "failure" if row.critical else "skipped"
        case = _Case(
            name="likelihood gate", result=result, kind=row.status, message=row.reason, body=row.reason
        )
        yield _Suite(name=f"{model.name}.{row.task}", cases=(case,), properties=_numbers_of(row))


# ---- cases


def _verdict(name: str, word: str, message: str, body: str = "") -> _Case:
    result: Result = "failure" if word in ("DEGRADED", "INCONCLUSIVE") else "error"
    result = "passed" if word in PASSED_RUNS else result
    return _Case(name=name, result=result, kind=word, message=f"{word}: {message}", body=body or message)


def _row(report: Report, model: ModelReport, row: TaskRow | PooledRow, task: str, name: str) -> _Case:
    """By its verdict; an undecided task that is not critical blocks nothing."""
    critical = row.critical if isinstance(row, TaskRow) else True
    result: Result = "passed"
    if row.verdict == "INVALID":
        result = "error"
    elif row.verdict == "DEGRADED":
        result = "failure"
    elif row.verdict in ("SUSPECT", "INCONCLUSIVE"):
        result = "failure" if critical else "skipped"
    elif row.verdict == "DETECTED-WITHIN-MARGIN" and model.verdict not in PASSED_RUNS:
        # Whether the plan allows it is told by the reasons of a run that is undecided because of it.
        named = any(reason.startswith(f"{model.name}: {task}: ") for reason in report.run.reasons)
        if named or model.verdict != "INCONCLUSIVE":
            result = "failure" if critical else "skipped"
    said = [row.reason, f"Would decide: {row.would_decide}" if row.would_decide else "", *_lost(model, row)]
    body = "\n".join(part for part in said if part)
    return _Case(
        name=name, result=result, kind=row.verdict, message=f"{row.verdict}: {row.reason}", body=body
    )


def _lost(model: ModelReport, row: TaskRow | PooledRow) -> list[str]:
    """The items that the candidate lost, as far as the report has them."""
    if model.flips is None or not isinstance(row, TaskRow):
        return []
    ids = [f.item_id for f in model.flips.shown if f.direction == "lost" and f.task == row.task]
    return [f"Lost: {', '.join(one_line(i, 80) for i in ids[:MAX_ITEMS])}"] if ids else []


def _alarms(report: Report, row: TaskRow) -> Iterator[_Case]:
    """The alarms that a SUSPECT task is suspect for; elsewhere they have no say of their own."""
    for name, p in (("loss alarm", row.p_alarm), ("truncation alarm", row.p_truncation_alarm)):
        if p is None:
            continue
        raised = row.verdict == "SUSPECT" and p <= report.run.alpha
        raised = raised and (name != "loss alarm" or (row.delta or 0.0) < 0.0)  # a gain alarms nobody
        result: Result = "passed" if not raised else "failure" if row.critical else "skipped"
        yield _Case(name=name, result=result, kind="alarm", message=row.reason if raised else "")


def _attempts(report: Report, model: ModelReport) -> Iterator[_Case]:
    for attempt in report.run.attempts:
        if attempt.model == model.name and attempt.current and attempt.number is not None:
            within = attempt.number <= report.run.max_attempts or model.verdict in PASSED_RUNS
            said = attempt_words(report.run)
            yield _Case(
                name="attempts",
                result="passed" if within else "failure",
                kind="check",
                message=said,
                body=said,
            )


def _parity(report: Report, model: ModelReport) -> _Case:
    """Differences that are not allowed stop a run, so those on record are allowed ones."""
    lines = [
        one_line(f"{d.fact}: {d.baseline} > {d.candidate} ({d.allowed_by})", MAX_MESSAGE_CHARS)
        for d in report.provenance.parity_differences
        if d.model == model.name
    ]
    return _Case(name="parity", result="passed", body="\n".join(lines))


# ---- numbers


def _properties(node: Node, prefix: str = "") -> dict[str, str]:
    """Plain fields of a part under their own names; an interval as its ends; what is empty left out."""
    found: dict[str, str] = {}
    for field in dataclasses.fields(node):  # type: ignore[arg-type]  # every Node is a dataclass
        value = getattr(node, field.name)
        if isinstance(value, Interval):
            ends = {"lower": value.lo, "upper": value.hi, "level": value.level, "method": value.method}
            lead = "" if field.name == "interval" else f"{field.name}."
            found |= {f"{lead}{name}": _text(end) for name, end in ends.items() if end is not None}
        elif field.name == "undefined":
            found |= {f"undefined.{name}": why for name, why in value.items()}
        elif isinstance(value, str | int | float):
            found[field.name] = _text(value)
    return {f"{prefix}{name}": text for name, text in found.items() if text}


def _numbers_of(row: LogprobRow) -> dict[str, str]:
    return _properties(row) | (_properties(row.kl, "kl.") if row.kl is not None else {})


def _text(value: str | int | float | bool) -> str:
    return value if isinstance(value, str) else json.dumps(value)
