"""The JUnit report: red exactly where the run is not signed off, in the form that CI systems read."""

import dataclasses
import json
import re
import xml.etree.ElementTree as ET

import pytest
from junitparser import JUnitXml

from equipoise.reports import json as report_json
from equipoise.reports import junit

NAMES = ["signed_off", "degraded", "inconclusive", "invalid", "incomplete"]

# What Jenkins' xUnit schema (junit-10) allows: by element, attributes (required, optional) and children.
ALLOWED = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": (
        {"name"},
        {"time", "classname", "group"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    **{name: (set(), {"type", "message"}, set()) for name in ("skipped", "error", "failure")},
    **{name: (set(), set(), set()) for name in ("system-out", "system-err")},
}
TIME = re.compile(r"\d*(\.\d*)?")
XML_CHARS = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")


def parsed(report):
    return ET.fromstring(junit.render(report).encode())


def conform(root):
    assert root.tag == "testsuites"
    for element in root.iter():
        required, optional, children = ALLOWED[element.tag]
        assert required <= element.attrib.keys() <= required | optional, element.tag
        assert {child.tag for child in element} <= children, element.tag
        if element.tag in ("testsuites", "testsuite") and "time" in element.attrib:
            assert TIME.fullmatch(element.attrib["time"])
    for suite in root.iter("testsuite"):
        cases = suite.findall("testcase")
        counted = {"tests": len(cases)} | {
            plural: sum(case.find(one) is not None for case in cases)
            for one, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped"))
        }
        assert counted == {name: int(suite.attrib[name]) for name in counted}
        keys = [(case.attrib["classname"], case.attrib["name"]) for case in cases]
        assert len(set(keys)) == len(keys)
    for name in ("tests", "failures", "errors"):
        assert int(root.attrib[name]) == sum(int(s.attrib[name]) for s in root.iter("testsuite"))


def red(root):
    return [
        (case.attrib["classname"], case.attrib["name"])
        for case in root.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]


@pytest.mark.parametrize("name", NAMES)
def test_it_has_the_form_of_the_common_schema(samples, name):
    conform(parsed(samples.REPORTS[name]()))


@pytest.mark.parametrize("name", NAMES)
def test_it_is_red_exactly_where_the_run_exits_other_than_0(samples, name):
    report = samples.REPORTS[name]()
    assert bool(red(parsed(report))) == (report.run.exit_code != 0)


@pytest.mark.parametrize(
    ("name", "tag", "word"),
    [
        ("degraded", "failure", "DEGRADED"),
        ("inconclusive", "failure", "INCONCLUSIVE"),
        ("invalid", "error", "INVALID"),
        ("incomplete", "error", "NO VERDICT (incomplete run)"),
    ],
)
def test_the_verdict_is_a_failure_or_an_error_with_its_reason(samples, name, tag, word):
    report = samples.REPORTS[name]()
    case = parsed(report).find("testsuite[@name='run']/testcase[@name='verdict']")
    found = case.find(tag)
    assert found.attrib["type"] == word
    assert report.run.headline in found.attrib["message"]
    assert all(reason in found.text for reason in report.run.reasons)


def test_a_suspect_task_is_a_failure_and_its_alarm_too(samples):
    report = samples.inconclusive()
    task = next(t for t in report.models[0].tasks if t.verdict in ("SUSPECT", "INCONCLUSIVE"))
    suite = parsed(report).find(f"testsuite[@name='{report.models[0].name}.{task.task}']")
    found = suite.find("testcase[@name='non-inferiority']/failure")
    assert found.attrib["type"] == task.verdict
    assert task.would_decide in found.text


def test_a_supporting_task_that_is_undecided_is_skipped_and_says_why(samples):
    report = samples.signed_off()
    model = report.models[0]
    row = dataclasses.replace(model.tasks[-1], critical=False, verdict="INCONCLUSIVE", reason="too few")
    model = dataclasses.replace(model, tasks=(*model.tasks[:-1], row))
    root = parsed(dataclasses.replace(report, models=(model, *report.models[1:])))
    assert red(root) == []
    found = root.find(f"testsuite[@name='{model.name}.{row.task}']/testcase[@name='non-inferiority']/skipped")
    assert found.attrib["message"] == "INCONCLUSIVE: too few"


@pytest.mark.parametrize("name", NAMES[:4])
def test_properties_carry_the_numbers_of_the_json_report_in_full(samples, name):
    report = samples.REPORTS[name]()
    data = json.loads(report_json.render(report))
    root = parsed(report)
    for model in data["models"]:
        rows = [(f"{model['name']}.{row['task']}", "", row) for row in model["tasks"]]
        for suite, prefix, row in [*rows, (model["name"], "pooled.", model["pooled"])]:
            found = {
                p.attrib["name"].removeprefix(prefix): p.attrib["value"]
                for p in root.iterfind(f"testsuite[@name='{suite}']/properties/property")
                if p.attrib["name"].startswith(prefix)
            }
            for key in ("n", "delta", "margin", "lost", "gained", "smallest_detectable_loss"):
                assert found.get(key) == (None if row[key] is None else json.dumps(row[key])), key
            for key, end in (("lower", "lo"), ("upper", "hi")):
                value = row["interval"][end]
                assert found.get(key) == (None if value is None else json.dumps(value))


@pytest.mark.parametrize("name", NAMES)
def test_a_junit_library_reads_it(samples, name):
    report = samples.REPORTS[name]()
    read = JUnitXml.fromstring(junit.render(report).encode())
    assert read.tests == sum(len(list(suite)) for suite in read)
    assert (read.failures + read.errors > 0) == (report.run.exit_code != 0)


def test_tried_too_often_is_a_failure_of_its_own(samples):
    report = samples.inconclusive()
    report = dataclasses.replace(report, run=dataclasses.replace(report.run, max_attempts=1))
    assert any(name == "attempts" for _, name in red(parsed(report)))


@pytest.mark.parametrize(
    "text", ["a]]>b", "\x00\x08\x1b[31m", "\ufffe\uffff", "<![CDATA[x]]>", "&#x0; &amp;", "\r\n"]
)
def test_text_that_xml_cannot_hold_is_shown_escaped(filled, text):
    rendered = junit.render(filled(text))
    assert XML_CHARS.fullmatch(rendered)
    root = ET.fromstring(rendered.encode())
    conform(root)
    assert {element.tag for element in root.iter()} <= ALLOWED.keys()
