"""A gross fault as the candidate on the real server: the first look stops the run."""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from cli_runs import cli, plan_file, rows

from equipoise.evals.journal import Journal
from equipoise.reports import json as json_report

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

ITEMS = {"copy": 240, "brackets": 120}
SEEN = 60 + 30


def test_a_gross_fault_is_stopped_at_the_first_look_and_a_resumption_asks_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(str(files("equipoise.tasks.embedded") / "glm_tiny"), tmp_path / "model")
    arms = [
        {"name": "A1", "role": "baseline", "variant": "bf16"},
        {"name": "A2", "role": "baseline_repeat", "variant": "bf16"},
        {"name": "B", "role": "candidate", "variant": "control-int4-tensor"},
    ]
    tasks = [{"name": n, "critical": True, "items": k, "margin": 0.05} for n, k in ITEMS.items()]
    path = plan_file(
        tmp_path / "p.toml",
        arms,
        tasks,
        model_path=str(tmp_path / "model"),
        decision={"require_control": False},
        runner={"concurrency": 16, "context_tokens": 1024},
        looks={"fractions": [0.25, 0.5]},
    )
    args = ("run", path, "--out", "out", "--device", "cpu", "--servers", "one-by-one")
    result = cli(*args)
    report = json_report.load(Path("out/report.json").read_text())
    assert (result.exit_code, report.run.verdict) == (1, "DEGRADED"), result.stdout
    assert "stopped early at look 1 of 2" in report.run.early_stop
    asked = {arm: sum(key[1] == arm for key in rows(Path("out"))) for arm in ("A1", "A2", "B")}
    assert asked == {"A1": sum(ITEMS.values()), "A2": sum(ITEMS.values()), "B": SEEN}
    with Journal.read(Path("out/journal.sqlite")) as journal:
        ((_, _, look),) = journal.records("look")
    assert (look["action"], look["look"]) == ("no-go", 1)
    again = cli(*args, "--resume")
    assert again.exit_code == 1
    assert len(rows(Path("out"))) == sum(asked.values())
    assert "starting" not in again.stderr
