"""What CI takes from a run: JUnit, a step summary, the schema; none of it changes the verdict."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import cli, error_of, plan_file, record_run
from fake_sglang import share
from jsonschema import Draft202012Validator

MARGIN = 0.1


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A run directory by the share of the candidate's answers that are wrong, made once."""
    made: dict[float, Path] = {}

    def make(wrong: float) -> Path:
        if wrong not in made:
            root = tmp_path_factory.mktemp("run")
            rates = {"A1": 0.1, "A2": 0.1, "B": wrong, "P": 0.6, "M": 0.2}
            arms = record_run(
                root / "recorded", {"copy": 100}, lambda arm, task, i: not share(rates[arm], task)(str(i))
            )
            tasks = [{"name": "copy", "critical": True, "items": 100, "margin": MARGIN}]
            made[wrong] = root / "out"
            cli("run", plan_file(root / "p.toml", arms, tasks), "--out", made[wrong])
        return made[wrong]

    return make


@pytest.mark.parametrize(("wrong", "code"), [(0.1, 0), (0.6, 1)])
def test_junit_of_a_run_is_red_by_its_verdict(run_of: Callable[..., Path], wrong: float, code: int) -> None:
    result = cli("report", run_of(wrong), "--format", "junit")
    root = ET.fromstring(result.stdout.encode())
    assert result.exit_code == code
    assert (int(root.attrib["failures"]) + int(root.attrib["errors"]) > 0) == (code != 0)
    assert root.find("testsuite[@name='m.copy']/testcase[@name='non-inferiority']") is not None


def test_a_comparison_has_junit_too(run_of: Callable[..., Path]) -> None:
    result = cli("compare", f"{run_of(0.6)}:A1", f"{run_of(0.6)}:B", "--margin", "0.1", "--format", "junit")
    root = ET.fromstring(result.stdout.encode())
    assert result.exit_code == 1
    assert root.find("testsuite/testcase[@name='verdict']/failure[@type='DEGRADED']") is not None


def test_a_runs_json_report_meets_the_schema_that_is_printed(run_of: Callable[..., Path]) -> None:
    schema = json.loads(cli("report", "--schema").stdout)
    for wrong in (0.1, 0.6):
        data = json.loads((run_of(wrong) / "report.json").read_text())
        assert [e.message for e in Draft202012Validator(schema).iter_errors(data)] == []


def test_the_report_is_appended_to_the_step_summary(
    run_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "summary.md"
    page.write_text("earlier")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    result = cli("report", run_of(0.1), "--format", "json")
    assert result.exit_code == 0
    assert page.read_text() == "earlier\n" + (run_of(0.1) / "report.md").read_text()


@pytest.mark.parametrize("what", ["directory", "missing", "full"])
def test_a_summary_that_cannot_be_written_is_said_and_changes_nothing(
    run_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    page = {"directory": tmp_path, "missing": tmp_path / "no" / "page", "full": tmp_path / "full"}[what]
    (tmp_path / "full").write_text("x" * (1 << 20))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    result = cli("report", run_of(0.6), "--format", "json")
    assert result.exit_code == 1
    assert f"warning: the step summary {page} (GITHUB_STEP_SUMMARY) was not written" in result.stderr
    assert json.loads(result.stdout)["run"]["verdict"] == "DEGRADED"
    assert (tmp_path / "full").stat().st_size == 1 << 20


def test_an_output_that_cannot_be_written_is_a_usage_error(
    run_of: Callable[..., Path], tmp_path: Path
) -> None:
    result = cli("report", run_of(0.1), "--format", "junit", "--output", tmp_path / "no" / "file.xml")
    assert "cannot be written" in error_of(result, code=2)
