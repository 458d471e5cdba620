"""The published schema: current, met by every report, and strict where a field or a word is wrong."""

import copy
import dataclasses
import inspect
import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from equipoise.reports import evidence, model, secondary, teacher_forced
from equipoise.reports import json as report_json
from equipoise.reports.node import Node
from equipoise.reports.schema import PUBLISHED, WORDS, render, schema

GOLDEN = Path(__file__).parents[1] / "golden"
OLD = Path(__file__).with_name("report-1-first.json")
NAMES = ["signed_off", "degraded", "inconclusive", "invalid", "incomplete"]
PARTS = {
    kind
    for module in (model, evidence, secondary, teacher_forced)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, Node) and kind is not Node
}


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(PUBLISHED.read_text(encoding="ascii")))


def errors(validator, data):
    return [f"{e.json_path}: {e.message}" for e in validator.iter_errors(data)]


def test_the_published_schema_is_current():
    if os.environ.get("EQUIPOISE_UPDATE_GOLDEN"):
        PUBLISHED.write_text(render(), encoding="ascii")
    assert PUBLISHED.read_text(encoding="ascii") == render()


def test_the_schema_is_a_schema_and_covers_every_part():
    Draft202012Validator.check_schema(schema())
    assert schema()["$defs"].keys() == {kind.__name__ for kind in PARTS}


def test_every_verdict_field_has_its_words():
    fields = {
        (kind.__name__, f.name) for kind in PARTS for f in dataclasses.fields(kind) if "verdict" in f.name
    }
    assert fields <= WORDS.keys()
    assert all(name in {f.name for f in dataclasses.fields(getattr(model, kind))} for kind, name in WORDS)


@pytest.mark.parametrize("name", NAMES)
def test_golden_reports_validate(validator, name):
    assert errors(validator, json.loads((GOLDEN / f"{name}.json").read_text(encoding="ascii"))) == []


def test_a_comparison_validates_without_the_word_it_never_uses(validator, samples):
    report = samples.signed_off()
    run = dataclasses.replace(
        report.run,
        kind="comparison",
        eligible_for_sign_off=False,
        verdict="GATES PASSED",
        indistinguishable=False,
    )
    models = tuple(dataclasses.replace(m, verdict="GATES PASSED") for m in report.models)
    data = json.loads(report_json.render(dataclasses.replace(report, run=run, models=models)))
    assert "indistinguishable" not in data["run"]
    assert errors(validator, data) == []


def _drop(*path):
    def change(data):
        for part in path[:-1]:
            data = data[part]
        del data[path[-1]]

    return change


def _set(value, *path):
    def change(data):
        for part in path[:-1]:
            data = data[part]
        data[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _drop("run", "headline"),
        _drop("run", "indistinguishable"),
        _drop("provenance"),
        _drop("models", 0, "tasks", 0, "p_alarm"),
        _set("x", "models", 0, "pooled", "colour"),
        _set("FINE", "models", 0, "tasks", 0, "verdict"),
        _set("FINE", "models", 0, "worst_case_verdict"),
        _set({"copy": "FINE"}, "models", 0, "controls", 0, "task_verdicts"),
        _set("sideways", "models", 0, "flips", "shown", 0, "direction"),
        _set("many", "run", "pairs"),
        _set(1.5, "run", "pairs"),
        _set(None, "models", 0, "tasks", 0, "margin"),
        _set("0.1", "models", 0, "tasks", 0, "delta"),
        _set(3, "run", "exit_code"),
        _set(None, "run", "verdict"),
        _set("incomplete", "run", "state"),
        _set(2, "schema_version"),
        _set({"colour": "red"}, "models", 0, "tasks", 0, "undefined"),
    ],
)
def test_a_missing_renamed_or_wrong_field_is_an_error(validator, samples, change):
    data = json.loads(report_json.render(samples.signed_off()))
    changed = copy.deepcopy(data)
    change(changed)
    assert errors(validator, data) == []
    assert errors(validator, changed)


def test_a_report_of_the_first_release_is_read_and_validates_once_written_again(validator):
    report = report_json.load(OLD.read_text(encoding="ascii"))
    assert (report.run.verdict, report.run.plan_name) == ("SIGNED OFF", "embedded")
    assert report.models[0].pooled is not None
    assert report.models[0].pooled.delta == -0.0033
    assert errors(validator, json.loads(report_json.render(report))) == []
