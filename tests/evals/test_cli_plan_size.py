"""``equipoise plan size``: from assumed rates, and from a run's baseline without a look at its candidate."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import cli, error_of, plan_file, record_run

from equipoise.evals.experiment.run_noise import noise_of_run
from equipoise.evals.statistics.power import sample_size


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def size(*args: object) -> dict[str, Any]:
    result = cli("plan", "size", *map(str, args), "--json")
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


# -- from assumed rates ----------------------------------------------------------------------


def test_single_answers_are_sized_exactly_and_counted_over_arms() -> None:
    found = size("--margin", 0.01, "--power", 0.9, "--p-d", 0.045, "--tokens-per-item", 900)
    exact = sample_size(0.01, 0.9, 0.045)
    (task,) = found["tasks"]
    assert (task["items"], task["n"], task["repeats"]) == (exact.n_exact, exact.n, 1)
    assert task["power_exact"] == exact.power_exact
    assert found["requests_per_arm"] == exact.n_exact
    assert found["requests"] == 4 * exact.n_exact
    assert found["tokens_per_arm"] == 900 * exact.n_exact
    assert found["seconds"] is None
    assert "--requests-per-s" in found["undefined"]["seconds"]


def test_twelve_tasks_at_90_percent_are_28_percent_together() -> None:
    found = size("--margin", 0.05, "--power", 0.9, "--p-d", 0.1, "--tasks", 12, "--suite-margin", 0.5)
    assert found["critical_power_if_independent"] == pytest.approx(0.9**12, abs=0.04)
    assert found["joint_power"] == pytest.approx(found["critical_power_if_independent"], abs=0.015)
    assert found["power_per_task_for_joint"] == pytest.approx(0.9 ** (1 / 12))
    (again,) = size("--margin", 0.05, "--power", found["power_per_task_for_joint"], "--p-d", 0.1)["tasks"]
    assert again["power_exact"] ** 12 == pytest.approx(0.9, abs=0.01)


def test_a_noisy_server_gets_repeats_and_a_simulated_power_with_its_error() -> None:
    rates = ("--margin", 0.03, "--power", 0.8, "--p-d", 0.12, "--noise-p-d", 0.09)
    found = size(*rates, "--simulate", 40)
    (task,) = found["tasks"]
    assert task["repeats"] > 1
    assert task["within_share"] < 0.2
    assert task["items"] < task["items_with_one_answer"]
    assert task["answers_per_arm"] == task["items"] * task["repeats"]
    assert task["power_simulated"] == pytest.approx(0.8, abs=4 * task["power_simulated_se"])
    unsimulated = size(*rates, "--simulate", 0)["tasks"][0]
    assert unsimulated["power_simulated"] is None
    assert unsimulated["items"] == task["items"]
    assert size(*rates, "--repeats", 2, "--simulate", 0)["tasks"][0]["repeats"] == 2


def test_server_time_follows_from_either_rate() -> None:
    base = ("--margin", 0.05, "--p-d", 0.05, "--tasks", 2, "--arms", 3)
    by_requests = size(*base, "--requests-per-s", 5)
    assert by_requests["seconds_per_arm"] == pytest.approx(by_requests["requests_per_arm"] / 5)
    assert by_requests["seconds"] == pytest.approx(3 * by_requests["seconds_per_arm"])
    by_tokens = size(*base, "--tokens-per-s", 1000, "--tokens-per-item", 400)
    assert by_tokens["seconds_per_arm"] == pytest.approx(by_tokens["requests_per_arm"] * 0.4)


def test_equivalence_and_a_true_loss_need_more_items() -> None:
    base = ("--margin", 0.03, "--p-d", 0.06)
    plain, equivalent, losing = (
        size(*base, *more)["tasks"][0]["items"] for more in ((), ("--equivalence",), ("--loss", 0.01))
    )
    assert plain < equivalent
    assert plain < losing
    assert size(*base, "--equivalence")["joint_power"] == pytest.approx(0.9, abs=0.02)


def test_the_losses_that_such_a_plan_notices_are_told() -> None:
    found = size("--margin", 0.02, "--p-d", 0.045, "--tasks", 3)
    assert 0 < found["smallest_loss_alarmed"]["loss"] < 0.02
    assert [r["probability"] for r in found["smallest_loss_refused"]] == [0.8, 0.95]


@pytest.mark.parametrize("noise", ["0", "0.09"])
def test_text_fits_80_columns_and_says_what_json_says(noise: str) -> None:
    args = f"--margin .03 --p-d .12 --noise-p-d {noise} --tasks 3 --simulate 5 --requests-per-s 9".split()
    text = cli("plan", "size", *args).stdout
    assert max(map(len, text.splitlines())) <= 80
    found, flat = size(*args), " ".join(text.split())
    task = found["tasks"][0]
    assert "3 alike (critical)" in text
    items = f"{task['items']:,}" + (f" x {task['repeats']}" if task["repeats"] > 1 else "")
    assert items in text
    assert f"all 4 arms: {found['requests']:,} requests" in flat
    assert f"critical tasks together (3): {found['critical_power_if_independent']:.3f}" in flat
    assert "smallest losses noticed" in flat


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ("--p-d .05", ["--margin", "--from"]),
        ("--margin .02", ["--p-d", "--from"]),
        ("--margin .02 --p-d .05 --loss .02", ["--loss", "--margin", "no number of items"]),
        ("--margin .02 --p-d .9", ["--p-d", "at most half"]),
        ("--margin .02 --p-d .05 --tokens-per-s 9", ["--tokens-per-s", "--tokens-per-item"]),
        ("--margin .02 --p-d .05 --tokens-per-s 9 --requests-per-s 1", ["--tokens-per-s", "one of them"]),
        ("--from nowhere --tasks 3", ["--tasks", "--from"]),
        ("--from nowhere --noise-p-d .1", ["--noise-p-d", "--from"]),
    ],
)
def test_what_does_not_go_together_is_refused_by_flag(args: str, named: list[str]) -> None:
    message = error_of(cli("plan", "size", *args.split()), code=2)
    assert all(word in message for word in named), message


def test_bad_numbers_are_refused_by_flag() -> None:
    for flag, value in (("--margin", "2"), ("--p-d", "nan"), ("--repeats", "0"), ("--requests-per-s", "-1")):
        result = cli("plan", "size", "--margin", ".02", "--p-d", ".05", flag, value)
        assert result.exit_code == 2
        assert f"'{flag}'" in result.stderr


# -- from a run ------------------------------------------------------------------------------


def differing(every: int, *, candidate_right: bool = True) -> Callable[[str, str, int], bool]:
    """A baseline that differs from itself on one in ``every`` items; a candidate that is right or wrong."""

    def right(arm: str, task: str, index: int) -> bool:
        if arm == "A2" and index % every == 0:
            return index % (2 * every) == 0
        return candidate_right if arm == "B" else index % (2 * every) != 0

    return right


def run_dir(
    tmp_path: Path, right: Callable[[str, str, int], bool], *, arms: int = 5, name: str = "out"
) -> Path:
    recorded = record_run(tmp_path / f"{name}-recorded", {"copy": 100, "sort": 50}, right)
    tasks = [
        {"name": "copy", "critical": True, "items": 100, "margin": 0.06},
        {"name": "sort", "items": 50, "margin": 0.08, "p_d": 0.2},
    ]
    decision = {"assumed_loss": 0.01, "require_control": False, "require_noise_floor": False}
    plan = plan_file(tmp_path / f"{name}.toml", recorded[:arms], tasks, decision=decision)
    assert cli("run", plan, "--out", name).exit_code in (0, 1, 3, 4)
    return Path(name)


def test_a_run_gives_its_noise_tokens_and_speed(tmp_path: Path) -> None:
    directory = run_dir(tmp_path, differing(10))
    found = size("--from", directory, "--simulate", 0)
    copy, sort = found["tasks"]
    assert copy["from_run"]["discordant_share"] == pytest.approx(0.1)
    assert copy["from_run"]["within_item_variance"] == pytest.approx(0.05)
    assert copy["p_d"] == pytest.approx(0.1, abs=0.01)  # the plan's .045 is below the noise
    assert sort["p_d"] == pytest.approx(0.2)  # the plan's own
    assert (copy["margin"], copy["loss"], copy["critical"], sort["critical"]) == (0.06, 0.01, True, False)
    assert copy["tokens_per_answer"] > 9
    assert found["requests_per_s"] > 0
    assert found["seconds_per_arm"] == pytest.approx(found["requests_per_arm"] / found["requests_per_s"])
    assert (found["arms"], found["models"]) == (5, 1)
    text = cli("plan", "size", "--from", directory, "--simulate", "0").stdout
    assert "100 of 100" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_candidates_answers_change_nothing_in_the_size(tmp_path: Path) -> None:
    same, other = (
        size("--from", run_dir(tmp_path, differing(10, candidate_right=r), name=f"r{r}"), "--simulate", 0,
             "--requests-per-s", 1)
        for r in (True, False)
    )  # fmt: skip
    assert same == other


def test_an_unfinished_run_is_sized_from_what_it_has(tmp_path: Path) -> None:
    directory = run_dir(tmp_path, differing(10))
    with sqlite3.connect(directory / "journal.sqlite") as db:
        db.execute("DELETE FROM samples WHERE arm = 'B' OR (arm = 'A2' AND rowid % 2 = 0)")
    db.close()
    found = size("--from", directory, "--simulate", 0)["tasks"][0]["from_run"]
    assert 20 < found["items"] < found["planned"] == 100
    assert sum(found["excluded"].values()) == 100 - found["items"]


def test_options_replace_what_the_plan_says(tmp_path: Path) -> None:
    directory = run_dir(tmp_path, differing(10))
    found = size("--from", directory, "--margin", 0.1, "--p-d", 0.3, "--loss", 0, "--repeats", 1)
    for task in found["tasks"]:
        assert (task["margin"], task["loss"], task["repeats"]) == (0.1, 0.0, 1)
        assert task["p_d"] == pytest.approx(0.3, abs=1e-3)


def test_a_run_without_a_second_baseline_shows_no_noise(tmp_path: Path) -> None:
    recorded = record_run(tmp_path / "recorded", {"copy": 20}, lambda *_: True)
    two = [a for a in recorded if a["name"] in ("A1", "B")]
    decision = {"require_control": False, "require_noise_floor": False}
    tasks = [{"name": "copy", "critical": True, "items": 20, "margin": 0.2}]
    plan = plan_file(tmp_path / "p.toml", two, tasks, decision=decision)
    cli("run", plan, "--out", "out")
    message = error_of(cli("plan", "size", "--from", "out"), code=2)
    assert "baseline_repeat" in message


def test_a_directory_without_a_run_is_named() -> None:
    assert "nowhere" in error_of(cli("plan", "size", "--from", "nowhere"), code=2)


def test_pauses_between_requests_do_not_slow_the_rate(tmp_path: Path) -> None:
    directory = run_dir(tmp_path, differing(10))
    with sqlite3.connect(directory / "journal.sqlite") as db:
        rows = db.execute("SELECT rowid, body FROM samples WHERE arm = 'A1' ORDER BY rowid").fetchall()
        for i, (row, body) in enumerate(rows):
            data = json.loads(body)
            # Two sessions of one-second answers, two at a time, an hour between them.
            data["started_unix_s"] = 1000.0 + i // 2 + (3600.0 if i >= 100 else 0.0)
            data["latency_s"] = 1.0
            db.execute("UPDATE samples SET body = ? WHERE rowid = ?", (json.dumps(data), row))
    db.close()
    assert noise_of_run(directory).requests_per_s == pytest.approx(2.0)
