"""Each suite that ships makes a plan that asks known tasks and promises enough power."""

import json
import os
from pathlib import Path

import pytest
from cli_runs import cli
from invented_data import invented_data

from equipoise.evals.cli.shell import suites_folder
from equipoise.evals.plan import load_plan
from equipoise.tasks.registry import TASKS

SUITES = sorted(p.stem for p in suites_folder().glob("*.toml"))
PLAN = """
schema_version = 1
name = "p"
suite = "{suite}"
[decision]
allow_detected = true
[[models]]
name = "m"
path = "endpoint"
[[arms]]
name = "A1"
role = "baseline"
url = "http://h:1"
[[arms]]
name = "A2"
role = "baseline_repeat"
url = "http://h:1"
[[arms]]
name = "B"
role = "candidate"
url = "http://h:2"
[[arms]]
name = "P"
role = "gross_control"
url = "http://h:3"
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not os.environ.get("EQUIPOISE_DATA"):
        pytest.skip("EQUIPOISE_DATA is not set")
    return invented_data(tmp_path_factory.mktemp("data"))


def test_the_suites_are_those_that_the_readme_names() -> None:
    assert SUITES == ["full", "long", "release", "smoke", "tools"]


@pytest.mark.parametrize("suite", SUITES)
def test_a_suites_tasks_are_known_and_one_is_critical(suite: str, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(PLAN.format(suite=suite))
    plan = load_plan(path, suites=suites_folder())
    assert {t.name for t in plan.tasks} <= TASKS.keys()
    assert any(t.critical for t in plan.tasks)
    assert plan.suite == suite


@pytest.mark.parametrize("suite", SUITES)
def test_a_plan_of_the_suite_promises_its_power(
    suite: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(data))
    path = tmp_path / "p.toml"
    path.write_text(PLAN.format(suite=suite))
    result = cli("plan", "check", path, "--json")
    found = json.loads(result.stdout)
    assert found["ok"], (found["joint_power_all_models"], [(t["task"], t["power"]) for t in found["tasks"]])
