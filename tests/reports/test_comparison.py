"""A comparison of existing results is a report of its own kind."""

import json

import pytest

from equipoise.reports import json as json_report
from equipoise.reports import markdown, terminal
from equipoise.reports.model import ModelReport, Report, Run

VALUES = {
    "plan_name": "",
    "plan_hash": "",
    "run_id": "",
    "created": "2026-01-01T00:00:00+00:00",
    "state": "final",
    "verdict": "GATES PASSED",
    "exit_code": 0,
    "headline": "not worse",
    "pairs": 10,
    "kind": "comparison",
    "eligible_for_sign_off": False,
    "undefined": {"smallest_detectable_loss": "made up"},
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eligible_for_sign_off": True}, "never eligible"),
        ({"verdict": "SIGNED OFF"}, "neither signed off nor"),
        ({"indistinguishable": True}, "neither signed off nor"),
        ({"exit_code": 3}, "GATES PASSED exits 0"),
        ({"kind": "guess"}, "Run.kind is 'guess'"),
        ({"kind": "run", "eligible_for_sign_off": True}, "GATES PASSED is the word for"),
    ],
)
def test_a_comparison_that_claims_more_is_refused(changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Run(**(VALUES | changes))


def test_no_model_of_a_comparison_is_signed_off() -> None:
    with pytest.raises(ValueError, match="m is SIGNED OFF"):
        Report(run=Run(**VALUES), models=(ModelReport(name="m", verdict="SIGNED OFF", sentence=""),))


def test_its_json_reads_back_and_lacks_the_word_it_may_not_use() -> None:
    report = Report(run=Run(**VALUES), models=(ModelReport(name="m", verdict="GATES PASSED", sentence="s"),))
    text = json_report.render(report)
    assert json_report.load(text) == report
    assert "indistinguishable" not in json.loads(text)["run"]


@pytest.mark.parametrize("render", [terminal.render, markdown.render])
def test_renderings_say_that_it_is_not_eligible(render) -> None:
    text = " ".join(render(Report(run=Run(**VALUES))).split())
    assert "Not eligible for sign-off" in text
    assert "GATES PASSED" in text
