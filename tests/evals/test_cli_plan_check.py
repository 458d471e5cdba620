"""``equipoise plan check`` says what a plan promises, and refuses one that promises too little."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runs import cli, error_of, plan_file

from equipoise.evals.plan import load_plan

ARMS = [
    {"name": "A1", "role": "baseline", "variant": "bf16"},
    {"name": "B", "role": "candidate", "variant": "fp8_e4m3"},
]


def plan(tmp_path: Path, *, items: int = 400, min_joint_power: float = 0.85) -> Path:
    tasks = [
        {"name": "copy", "critical": True, "items": items, "margin": 0.05, "p_d": 0.03},
        {"name": "sort", "items": items, "margin": 0.05, "p_d": 0.03},
    ]
    decision = {"suite_margin": 0.04, "assumed_loss": 0.005, "min_joint_power": min_joint_power}
    return plan_file(tmp_path / "p.toml", ARMS, tasks, decision=decision)


def test_a_plan_with_enough_power_exits_0(tmp_path: Path) -> None:
    result = cli("plan", "check", plan(tmp_path))
    assert result.exit_code == 0
    assert load_plan(tmp_path / "p.toml").content_hash in result.stdout
    assert "copy (critical)" in result.stdout
    assert "1,600 items to ask in all" in result.stdout
    assert "under-powered" not in result.stdout


def test_an_under_powered_plan_exits_2_and_says_what_to_change(tmp_path: Path) -> None:
    result = cli("plan", "check", plan(tmp_path, items=50))
    assert result.exit_code == 2
    assert "under-powered: raise items or margins, or lower min_joint_power" in result.stdout
    assert cli("plan", "check", plan(tmp_path, items=50, min_joint_power=0.0)).exit_code == 0


def test_json_holds_the_same_promise_with_full_precision(tmp_path: Path) -> None:
    path = plan(tmp_path)
    result = cli("plan", "check", path, "--json")
    data = json.loads(result.stdout)
    assert (result.exit_code, data["ok"], data["items_asked"]) == (0, True, 1600)
    assert data["plan_hash"] == load_plan(path).content_hash
    (copy, sort) = data["tasks"]
    assert (copy["task"], copy["critical"], sort["critical"], copy["items"]) == ("copy", True, False, 400)
    assert 0.9 < copy["power"] < 1.0
    assert copy["worst_case_size"] < 0.06
    # The sign-off needs the critical task and the pooled mean; neither can be rarer than both.
    assert data["joint_power_all_models"] <= min(copy["power"], data["pooled_power"]) + 0.01
    small = json.loads(cli("plan", "check", plan(tmp_path, items=50), "--json").stdout)
    assert small["ok"] is False
    assert small["tasks"][0]["power"] < 0.5


def test_two_models_must_both_be_signed_off(tmp_path: Path) -> None:
    path = plan(tmp_path)
    one = json.loads(cli("plan", "check", path, "--json").stdout)
    path.write_text(path.read_text() + '\n[[models]]\nname = "n"\npath = "endpoint"\n')
    two = json.loads(cli("plan", "check", path, "--json").stdout)
    assert two["joint_power_all_models"] == pytest.approx(one["joint_power_all_models"] ** 2)
    assert two["items_asked"] == 2 * one["items_asked"]


def test_the_item_seed_is_part_of_what_is_registered(tmp_path: Path) -> None:
    path = plan(tmp_path)
    hashes = {
        json.loads(cli("plan", "check", path, "--json", *seed).stdout)["plan_hash"]
        for seed in ((), ("--seed", "2"), ("--seed", "3"))
    }
    assert len(hashes) == 3


def test_the_embedded_plan_keeps_its_promise() -> None:
    data = json.loads(cli("plan", "check", "embedded", "--json").stdout)
    assert data["ok"]
    assert data["joint_power_all_models"] >= 0.85
    assert data["assumed_loss"] == 0.005


def with_task(tmp_path: Path, decision: dict[str, object] | None = None, **task: object) -> Path:
    tasks = [{"name": "copy", "critical": True, "items": 150, "margin": 0.05, **task}]
    return plan_file(tmp_path / "p.toml", ARMS, tasks, decision={"suite_margin": 0.05, **(decision or {})})


def check(path: Path) -> dict[str, Any]:
    return dict(json.loads(cli("plan", "check", path, "--json").stdout))


def test_repeats_are_counted_as_answers_and_raise_the_power_of_a_noisy_task(tmp_path: Path) -> None:
    found = {
        k: check(with_task(tmp_path, p_d=0.15, noise_p_d=0.12, temperature=0.7, repeats=k)) for k in (1, 8)
    }
    assert (found[1]["items_asked"], found[8]["items_asked"]) == (300, 2400)
    once, often = found[1]["tasks"][0], found[8]["tasks"][0]
    assert often["power"] > once["power"] + 0.3
    assert often["smallest_detectable_loss"] < 0.6 * once["smallest_detectable_loss"]
    assert often["worst_case_size"] is None  # known exactly for single answers only
    assert "150 x 8" in cli("plan", "check", tmp_path / "p.toml").stdout


def test_losses_that_the_plan_notices_are_in_their_order(tmp_path: Path) -> None:
    found = check(plan(tmp_path))
    refused = {r["probability"]: r["loss"] for r in found["smallest_loss_refused"]}
    assert 0 < refused[0.8] < refused[0.95] < 0.1
    assert 0 < found["smallest_loss_alarmed"]["loss"] <= found["tasks"][0]["smallest_detectable_loss"]
    assert "smallest losses noticed" in cli("plan", "check", tmp_path / "p.toml").stdout


def test_a_controlled_size_is_at_most_alpha_and_costs_power(tmp_path: Path) -> None:
    task = {"items": 133, "margin": 0.02, "p_d": 0.02}
    plain = check(with_task(tmp_path, **task))["tasks"][0]
    controlled = check(with_task(tmp_path, {"control_size": True}, **task))["tasks"][0]
    assert plain["worst_case_size"] == controlled["worst_case_size"] == pytest.approx(0.068, abs=5e-4)
    assert controlled["controlled_size"] <= 0.05
    assert controlled["controlled_alpha"] < 0.05
    assert plain["controlled_size"] is None
    assert controlled["power"] < plain["power"]
    text = " ".join(cli("plan", "check", tmp_path / "p.toml").stdout.split())
    assert "without it the worst is 0.0681" in text


def test_critical_tasks_together_are_weaker_than_each(tmp_path: Path) -> None:
    names = ("copy", "sort", "brackets")
    tasks = [{"name": n, "critical": True, "items": 200, "margin": 0.05} for n in names]
    found = check(plan_file(tmp_path / "p.toml", ARMS, tasks))
    assert found["critical_power_if_independent"] == pytest.approx(found["tasks"][0]["power"] ** 3)
    assert found["joint_power_per_model"] <= found["critical_power_if_independent"] + 0.01


def test_rates_that_no_items_have_are_refused_with_the_keys_to_change(tmp_path: Path) -> None:
    path = with_task(tmp_path, p_d=0.9, noise_p_d=0.1, repeats=4)
    message = error_of(cli("plan", "check", path), code=2)
    assert all(word in message for word in ("copy", "p_d", "noise_p_d"))


@pytest.mark.parametrize("repeats", [1, 8])
def test_the_table_fits_80_columns(tmp_path: Path, repeats: int) -> None:
    path = with_task(tmp_path, {"control_size": True}, repeats=repeats, items=100, noise_p_d=0.03)
    lines = cli("plan", "check", path).stdout.splitlines()[1:]  # the first holds the hash
    assert max(map(len, lines)) <= 80
    (head,) = (line for line in lines if line.startswith("task"))
    assert head.rstrip().endswith("detectable")


def test_a_task_without_items_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    tasks = [{"name": "lambada", "critical": True, "items": 5, "margin": 0.1}]
    message = error_of(cli("plan", "check", plan_file(tmp_path / "p.toml", ARMS, tasks)), code=2)
    assert "lambada" in message
    assert "EQUIPOISE_DATA" in message
