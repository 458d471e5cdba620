"""Long contexts on the real server: a fault that grows with them, and contexts that are too long.

The short suite is decided twice: in the run that also has the long tasks, and alone, from the same answers.
"""

from importlib.resources import files
from pathlib import Path

import pytest
from cli_runs import cli, plan_file, replay_arms

from equipoise.evals.journal import Journal
from equipoise.reports import json as json_report

pytestmark = [pytest.mark.server, pytest.mark.timeout(1200)]

ARMS = [
    {"name": "A1", "role": "baseline", "variant": "bf16"},
    {"name": "A2", "role": "baseline_repeat", "variant": "bf16"},
    {"name": "B", "role": "candidate", "variant": "control-drift"},
    {"name": "P", "role": "gross_control", "variant": "control-int4-tensor"},
]
SHORT = [
    {"name": name, "critical": name != "addition", "items": 150, "margin": 0.05}
    for name in ("copy", "sort", "brackets", "addition")
]
LONG = [
    {"name": name, "critical": True, "items": 100, "margin": 0.05}
    for name in ("kv_retrieval", "dialog_recall")
]
SETTINGS = {"decision": {"allow_detected": True}, "runner": {"concurrency": 32, "context_tokens": 1024}}


def test_an_error_that_grows_with_position_is_found_by_long_tasks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = str(files("equipoise.tasks.embedded") / "glm_tiny")
    whole = plan_file(tmp_path / "whole.toml", ARMS, [*SHORT, *LONG], model_path=model, **SETTINGS)
    result = cli("run", whole, "--out", "whole", "--device", "cpu")
    report = json_report.load((tmp_path / "whole" / "report.json").read_text())
    assert (report.run.verdict, result.exit_code) == ("DEGRADED", 1), result.stderr
    by_task = {row.task: row for row in report.models[0].tasks}
    for task in LONG:
        row = by_task[task["name"]]
        assert row.verdict == "DEGRADED"
        assert row.delta < -0.15
    for task in SHORT:
        assert by_task[task["name"]].verdict in ("EQUIVALENT", "NON-INFERIOR")

    arms = replay_arms(tmp_path / "whole", [a["name"] for a in ARMS])
    short = plan_file(tmp_path / "short.toml", arms, SHORT, **SETTINGS)
    # The same candidate again, with fewer tasks: the ledger of one question must not count for the other.
    result = cli("run", short, "--out", "short", "--ledger", "short.jsonl")
    report = json_report.load((tmp_path / "short" / "report.json").read_text())
    assert (report.run.verdict, result.exit_code) == ("SIGNED OFF", 0), result.stderr


def test_a_context_that_the_server_refuses_is_counted_as_refused_in_every_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arms = [
        {"name": name, "role": role, "variant": "bf16"}
        for name, role in (("A1", "baseline"), ("B", "candidate"))
    ]
    tasks = [
        {"name": "copy", "critical": True, "items": 10, "margin": 0.05},
        {"name": "niah", "items": 6, "margin": 0.05, "options.tokens": [256, 2048]},
    ]
    model = str(files("equipoise.tasks.embedded") / "glm_tiny")  # a token a character
    plan = plan_file(tmp_path / "p.toml", arms, tasks, model_path=model, runner={"context_tokens": 1024})
    result = cli("run", plan, "--out", "out", "--device", "cpu")
    with Journal.read(tmp_path / "out" / "journal.sqlite") as journal:
        asked = [s for s in journal.samples() if s.key.task == "niah"]
    refused = [s for s in asked if s.refused]
    assert (len(asked), len(refused)) == (12, 6), result.stderr
    assert {s.attempts for s in refused} == {1}
    assert all("longer than the model's context length" in (s.error or "") for s in refused)
    report = json_report.load((tmp_path / "out" / "report.json").read_text())
    (row,) = [x for x in report.models[0].exclusions if x.task == "niah"]
    assert (row.reason, row.count) == ("refused in A1 and refused in B", 3)
