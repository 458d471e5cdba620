"""Plans that ask every item several times: sampled alike in every arm, analysed by item, never pooled."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import cli, error_of, plan_file, record_run, url_arms
from fake_sglang import FakeSglang, serving, share

from equipoise.reports import json as json_report
from equipoise.reports.model import Report

ARMS = ("A1", "A2", "B", "P")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def noisy(**wrong: float) -> Callable[[str, str, int], bool]:
    """Every answer is drawn by itself: a server that samples."""

    def right(arm: str, task: str, number: int) -> bool:
        return not share(wrong.get(arm, 0.0), f"{arm}{task}")(str(number))

    return right


def repeated(
    tmp_path: Path, right: Callable[[str, str, int], bool], *, items: int
) -> tuple[int, Report, str]:
    arms = record_run(tmp_path / "recorded", {"copy": items}, right, repeats=8)
    tasks = [{"name": "copy", "critical": True, "items": items, "margin": 0.1, "repeats": 8}]
    plan = plan_file(tmp_path / "p.toml", [a for a in arms if a["name"] in ARMS], tasks)
    result = cli("run", plan, "--out", "out")
    return result.exit_code, json_report.load(Path("out/report.json").read_text()), result.stdout


def test_repeats_are_averaged_by_item_and_a_noisy_equal_candidate_passes(tmp_path: Path) -> None:
    wrong = {"A1": 0.3, "A2": 0.3, "B": 0.3, "P": 0.7}
    code, report, _ = repeated(tmp_path, noisy(**wrong), items=150)
    (row,) = report.models[0].tasks
    assert (code, row.n, row.repeats, row.p_mcnemar) == (0, 150, 8, None)
    assert row.interval is not None
    assert "bootstrap-t" in row.interval.method
    assert report.models[0].noise_floor is not None
    assert report.models[0].noise_floor.passed


def test_a_worse_candidate_is_degraded_under_repeats(tmp_path: Path) -> None:
    wrong = {"A1": 0.2, "A2": 0.2, "B": 0.45, "P": 0.7}
    code, report, _ = repeated(tmp_path, noisy(**wrong), items=150)
    assert (code, report.run.verdict) == (1, "DEGRADED")
    assert report.models[0].flips is not None
    assert report.models[0].flips.lost > 60


def test_few_items_with_repeats_speak_of_these_items_only(tmp_path: Path) -> None:
    wrong = {"A1": 0.3, "A2": 0.3, "B": 0.3, "P": 0.9}
    _, report, text = repeated(tmp_path, noisy(**wrong), items=30)
    (row,) = report.models[0].tasks
    assert row.interval is not None
    assert "fixed" in row.interval.method
    assert "items" in text


def test_an_undecided_task_says_items_and_repeats(tmp_path: Path) -> None:
    wrong = {"A1": 0.5, "A2": 0.5, "B": 0.57, "P": 0.98}
    code, report, _ = repeated(tmp_path, noisy(**wrong), items=120)
    assert (code, report.run.verdict) == (3, "INCONCLUSIVE")
    assert any("items" in line for line in report.run.would_decide)


def test_the_plans_sampling_reaches_every_arm_and_each_repeat_is_asked() -> None:
    servers = {name: FakeSglang(wrong=share(w, name)) for name, w in (("A1", 0.1), ("B", 0.1))}
    tasks = [
        {
            "name": "copy",
            "critical": True,
            "items": 20,
            "margin": 0.4,
            "repeats": 3,
            "temperature": 0.7,
            "top_p": 0.9,
        }
    ]
    decision = {"require_control": False, "require_noise_floor": False}
    with serving(*servers.values()):
        arms = url_arms(**{name: s.url for name, s in servers.items()})
        cli("run", plan_file(Path("p.toml"), arms, tasks, decision=decision), "--out", "out")
    for server in servers.values():
        assert server.sampling == {(0.7, 0.9)}
        assert sum(server.asked.values()) == 60
    (row,) = json_report.load(Path("out/report.json").read_text()).models[0].tasks
    assert (row.n, row.repeats) == (20, 3)


def test_teacher_forced_tasks_take_no_repeats() -> None:
    arms = url_arms(A1="http://127.0.0.1:9", B="http://127.0.0.1:10")
    tasks = [
        {"name": "copy", "critical": True, "items": 20, "margin": 0.4},
        {"name": "logprob", "items": 5, "margin_nats": 0.01, "repeats": 2},
    ]
    message = error_of(cli("run", plan_file(Path("p.toml"), arms, tasks)), code=2)
    assert "'logprob' is teacher-forced" in message
