"""A run that is cut short loses nothing, asks nothing twice, and ends as if it had not been cut."""

import dataclasses
import os
import signal
import subprocess
from pathlib import Path

import pytest
from cli_runs import (
    cli,
    error_of,
    plan_file,
    record_run,
    rows,
    start_cli,
    url_arms,
    wait_for_rows,
)
from fake_sglang import FakeSglang, serving, share

from equipoise.reports import json as json_report
from equipoise.reports import markdown
from equipoise.reports.model import Report

ITEMS = 40
TASKS = [
    {"name": "copy", "critical": True, "items": ITEMS, "margin": 0.1},
    {"name": "dialog_recall", "items": ITEMS, "margin": 0.1},
    {"name": "logprob", "items": ITEMS // 4, "margin_nats": 0.01},
]
PLANNED = 4 * (2 * ITEMS + ITEMS // 4)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def ended(process: subprocess.Popen[str], timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def without_the_run(report: Report) -> Report:
    """Less its times and its name: what must not depend on how often a run was cut short."""
    return dataclasses.replace(
        report,
        run=dataclasses.replace(
            report.run,
            run_id="",
            created="",
            attempts=tuple(dataclasses.replace(a, run_id="", registered="") for a in report.run.attempts),
        ),
        provenance=dataclasses.replace(
            report.provenance, started="", finished="", duration_s=None, command="", hardware={}
        ),
    )


def loaded(directory: str) -> Report:
    return json_report.load((Path(directory) / "report.json").read_text())


def test_ctrl_c_exits_130_keeps_every_answer_and_resume_asks_only_the_rest(tmp_path: Path) -> None:
    with serving(
        baseline := FakeSglang(delay_s=0.05, wrong=share(0.2)),
        candidate := FakeSglang(delay_s=0.05, wrong=share(0.3), kv_cache_dtype="fp8_e4m3"),
        control := FakeSglang(delay_s=0.05, wrong=share(0.7)),
    ):
        arms = url_arms(A1=baseline.url, A2=baseline.url, B=candidate.url, P=control.url)
        plan = plan_file(tmp_path / "p.toml", arms, TASKS, runner={"concurrency": 2})
        process = start_cli("run", plan, "--out", "cut")
        wait_for_rows(process, Path("cut"), 20)
        process.send_signal(signal.SIGINT)
        message = error_of(ended(process), code=130)
        assert "interrupted" in message
        assert "--resume" in message
        before = rows(Path("cut"))
        assert 20 <= len(before) < PLANNED
        assert f"{len(before)} of {PLANNED} samples" in message
        assert not list(Path("cut").glob("report.*"))

        shown = cli("report", "cut")
        assert shown.exit_code == 4
        assert "not finished" in shown.stdout
        for verdict in ("SIGNED OFF", "DEGRADED", "INCONCLUSIVE", "INVALID"):
            assert verdict not in shown.stdout

        for server in (baseline, candidate, control):
            server.delay_s = 0.0
            server.info["tp_size"] = 4
        other = error_of(cli("run", plan, "--out", "cut", "--resume"), code=4)
        assert "served otherwise than the arm 'A1' asked before: arm 'A1' tp_size: 4" in other
        assert rows(Path("cut")) == before

        for server in (baseline, candidate, control):
            del server.info["tp_size"]
        resumed = cli("run", plan, "--out", "cut", "--resume")
        assert resumed.exit_code == loaded("cut").run.exit_code
        assert loaded("cut").run.state == "final"
        differences = [d.fact for d in loaded("cut").provenance.parity_differences]
        assert differences == ["kv_cache_dtype of B"]
        after = rows(Path("cut"))
        assert len(after) == PLANNED
        assert {key: after[key] for key in before} == before
        twice = {k: n for s in (baseline, candidate, control) for k, n in s.asked.items() if n > 1}
        assert not twice

        again = cli("run", plan, "--out", "cut", "--resume")
        assert again.exit_code == resumed.exit_code
        assert "every answer is in the journal already" in again.stderr
        assert rows(Path("cut")) == after


def test_kill_9_then_resume_gives_the_table_of_an_uninterrupted_run(tmp_path: Path) -> None:
    easy = {"A1": 0.1, "A2": 0.1, "B": 0.16, "P": 0.6, "M": 0.3}
    arms = record_run(
        tmp_path / "recorded",
        {"copy": 150, "sort": 150},
        lambda arm, task, i: not share(easy[arm], task)(str(i)),
    )
    tasks = [
        {"name": name, "critical": True, "items": 150, "margin": margin}
        for name, margin in (("copy", 0.1), ("sort", 0.1))
    ]
    plan = plan_file(tmp_path / "p.toml", arms, tasks, runner={"concurrency": 4})
    whole = cli("run", plan, "--out", "whole", "--ledger", "whole.jsonl")

    cut, seen = Path("cut"), {}
    for least in (100, 700):  # twice, so that what a resumed run wrote is cut short too
        process = start_cli("run", plan, "--out", cut, *["--resume"] * bool(seen), replay_delay_s=0.01)
        wait_for_rows(process, cut, least)
        os.kill(process.pid, signal.SIGKILL)
        assert ended(process).returncode == -signal.SIGKILL
        found = rows(cut)
        assert least <= len(found) < 1500
        assert {key: found[key] for key in seen} == seen
        assert not list(cut.glob("report.*"))
        seen = found
    resumed = cli("run", plan, "--out", cut, "--resume")

    assert len(rows(cut)) == 1500
    assert {key: rows(cut)[key] for key in seen} == seen
    one, other = without_the_run(loaded("cut")), without_the_run(loaded("whole"))
    assert one.run == other.run
    assert one.models == other.models
    assert json_report.render(one) == json_report.render(other)
    assert markdown.render(one) == markdown.render(other)
    assert resumed.exit_code == whole.exit_code == one.run.exit_code
    # The comparison would be empty if nothing had been decided.
    assert one.run.verdict == "DEGRADED"
    assert one.models[0].flips is not None
    assert one.models[0].flips.lost > 0


def test_two_runs_cannot_write_one_directory(tmp_path: Path) -> None:
    arms = record_run(tmp_path / "recorded", {"copy": 100}, lambda arm, task, i: True)
    plan = plan_file(tmp_path / "p.toml", arms, [{**TASKS[0], "items": 100}], runner={"concurrency": 1})
    process = start_cli("run", plan, "--out", "one", replay_delay_s=0.05)
    wait_for_rows(process, Path("one"), 5)
    message = error_of(cli("run", plan, "--out", "one", "--resume"), code=4)
    assert f"another run is writing this journal (process {process.pid})" in message
    process.send_signal(signal.SIGTERM)
    assert error_of(ended(process), code=130)


def test_a_run_that_an_endpoint_left_undecided_is_finished_by_resume(tmp_path: Path) -> None:
    with serving(baseline := FakeSglang(), candidate := FakeSglang(delay_s=0.02)):
        arms = url_arms(A1=baseline.url, A2=baseline.url, B=candidate.url)
        plan = plan_file(
            tmp_path / "p.toml",
            arms,
            TASKS,
            runner={"concurrency": 2, "max_attempts": 1},
            decision={"require_control": False},
        )
        process = start_cli("run", plan, "--out", "cut")
        wait_for_rows(process, Path("cut"), 30)
        candidate.status = 404
        message = error_of(ended(process), code=4)
        for text in ("model 'm' arm 'B'", candidate.url, "items in a row failed", "HTTP 404", "--resume"):
            assert text in message
        assert not list(Path("cut").glob("report.*"))
        answered = {key: body for key, body in rows(Path("cut")).items() if b'"error":' not in body}
        assert len(answered) >= 20
        candidate.status = 200
        cli("run", plan, "--out", "cut", "--resume")
        after = rows(Path("cut"))
        assert {key: after[key] for key in answered} == answered
        assert not [key for key, body in after.items() if b'"error":' in body]
        report = loaded("cut")
        assert (report.run.state, report.models[0].errors_total) == ("final", 0)
