"""The pass fraction over item seeds is compared with the prediction by an exact test."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_runs import cli, plan_file
from paired_arms import evidence_of, task_tables
from run_doubles import ScriptedBackend, output

from equipoise.evals.experiment import seeds
from equipoise.evals.experiment.seeds import SeedRow, SeedTable, primary_plan, render, summarise
from equipoise.evals.journal import Journal
from equipoise.evals.plan import Plan, load_plan
from equipoise.evals.run_types import Arm
from equipoise.evals.types import ArmRole, Output, Request, SampleKey
from equipoise.tasks.registry import TASKS

ARMS = [
    {"name": "A1", "role": "baseline", "variant": "bf16"},
    {"name": "A2", "role": "baseline_repeat", "variant": "bf16"},
    {"name": "B", "role": "candidate", "variant": "fp8_e4m3"},
    {"name": "P", "role": "gross_control", "variant": "control-int4-tensor"},
    {"name": "M", "role": "mild_control", "variant": "control-int4-token"},
]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """One critical task of 400 items at a margin of .05; signed off in about 98% of runs."""
    tasks = [
        {"name": "copy", "critical": True, "items": 400, "margin": 0.05, "p_d": 0.05},
        {"name": "logprob", "items": 4, "margin_nats": 0.01},
    ]
    decision = {"suite_margin": 0.05, "assumed_loss": 0.005, "allow_detected": True}
    return load_plan(plan_file(tmp_path / "p.toml", ARMS, tasks, decision=decision))


def row(seed: int, *, passed: bool) -> SeedRow:
    outcome = "SIGNED OFF" if passed else "INCONCLUSIVE"
    return SeedRow(model="m", seed=seed, outcome=outcome, delta=0.0, lower=-0.01, p_d=0.02)


def seen(b: int, c: int) -> Any:
    return evidence_of(task_tables("copy", {ArmRole.CANDIDATE: (b, c)}), suite_margin=0.05)


def binomial_p(passed: int, n: int, p: float) -> float:
    """Two-sided: all outcomes that are no likelier than the one seen."""
    chance = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    return min(1.0, sum(x for x in chance if x <= chance[passed] * (1 + 1e-7)))


@pytest.mark.parametrize("passed", [20, 19, 18, 0])
def test_passes_are_counted_and_tested_exactly_against_the_plan(plan: Plan, passed: int) -> None:
    rows = [row(i, passed=i < passed) for i in range(20)]
    table = summarise(plan, "m", rows, [seen(11, 9)] * 20)
    assert (table.model, table.passed, len(table.rows)) == ("m", passed, 20)
    assert 0.97 < table.predicted < 0.99
    assert table.p_value == pytest.approx(binomial_p(passed, 20, table.predicted), rel=1e-6)
    assert table.p_value_as_seen == pytest.approx(binomial_p(passed, 20, table.predicted_as_seen), rel=1e-6)
    assert table.agrees is (passed >= 19)


def test_only_a_sign_off_passes(plan: Plan) -> None:
    outcomes = ["SIGNED OFF", "DEGRADED", "INCONCLUSIVE", "INVALID"]
    rows = [SeedRow(model="m", seed=i, outcome=o, delta=0, lower=0, p_d=0) for i, o in enumerate(outcomes)]
    assert summarise(plan, "m", rows, [seen(4, 4)] * 4).passed == 1


def test_the_prediction_as_seen_follows_the_loss_that_was_seen(plan: Plan) -> None:
    rows = [row(i, passed=True) for i in range(2)]
    lossy, fair, gained = (summarise(plan, "m", rows, [seen(*bc)] * 2) for bc in ((24, 4), (14, 14), (4, 24)))
    assert lossy.predicted_as_seen < 0.6 < 0.9 < fair.predicted_as_seen <= gained.predicted_as_seen
    assert lossy.predicted == fair.predicted == gained.predicted


def test_seeds_without_any_discordant_pair_are_predicted_to_pass(plan: Plan) -> None:
    table = summarise(plan, "m", [row(i, passed=True) for i in range(20)], [seen(0, 0)] * 20)
    assert table.predicted_as_seen == 1.0
    assert table.p_value_as_seen == 1.0
    assert table.agrees


@pytest.mark.parametrize(
    ("passed", "p", "p_as_seen", "agrees"),
    [
        (18, 0.50, 0.50, True),
        (12, 0.01, 0.50, False),  # too few: what was seen does not excuse it
        (20, 0.01, 0.50, True),  # more than predicted, as the smaller loss seen predicts
        (20, 0.01, 0.01, False),
        (12, 0.05, 0.00, True),
    ],
)
def test_agreement_is_two_sided_but_a_smaller_true_loss_is_no_fault(
    passed: int, p: float, p_as_seen: float, agrees: bool
) -> None:
    rows = tuple(row(i, passed=i < passed) for i in range(20))
    table = SeedTable(
        model="m",
        rows=rows,
        passed=passed,
        predicted=0.9,
        predicted_as_seen=0.99,
        p_value=p,
        p_value_as_seen=p_as_seen,
    )
    assert table.agrees is agrees


def test_the_table_shows_every_seed(plan: Plan) -> None:
    rows = [row(i, passed=i != 3) for i in range(5)]
    text = render(plan, [summarise(plan, "m", rows, [seen(4, 4)] * 5)])
    assert "| m | 5 | 4 (0.80) |" in text
    assert plan.content_hash in text
    assert [line for line in text.splitlines() if line.startswith("| m | 3 | INCONCLUSIVE |")]
    assert text.count("| SIGNED OFF |") == 4


def test_the_primary_plan_asks_baseline_and_candidate_only(plan: Plan) -> None:
    seeded = primary_plan(plan, 7)
    assert [a.name for a in seeded.arms] == ["A1", "B"]
    assert [t.name for t in seeded.tasks] == ["copy"]
    assert seeded.seeds.items == 7
    assert not seeded.decision.require_control
    assert not seeded.decision.require_noise_floor
    assert (seeded.decision.suite_margin, seeded.tasks[0].margin) == (0.05, 0.05)
    assert seeded.content_hash not in (plan.content_hash, primary_plan(plan, 8).content_hash)


# -- the whole command, without servers ------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SampleKey]:
    """Arms that are always right instead of servers; what they were asked."""
    targets = {i.id: i.target for seed in range(1, 9) for i in TASKS["copy"].items(60, seed)}

    def answer(key: SampleKey, request: Request, number: int) -> Output:
        return output(targets[key.item_id])

    backend = ScriptedBackend(answer)

    @asynccontextmanager
    async def up(session: Any, model: Any, group: Sequence[Any], specs: Any) -> AsyncIterator[list[Arm]]:
        yield [Arm(model=model.name, name=a.name, backend=backend) for a in group]

    monkeypatch.setattr(seeds, "arms_up", up)
    monkeypatch.setattr(seeds, "servers_of", lambda *a: [])
    monkeypatch.setattr(seeds, "resolve_model", lambda path: path)
    return backend.asked


def test_the_command_asks_every_seed_once_and_continues_where_it_stopped(
    tmp_path: Path, asked: list[SampleKey]
) -> None:
    tasks = [{"name": "copy", "critical": True, "items": 60, "margin": 0.1, "p_d": 0.01}]
    path = plan_file(tmp_path / "p.toml", ARMS, tasks, decision={"suite_margin": 0.1})
    out = tmp_path / "seeds"
    first = cli("seeds", path, "--seeds", "2", "--out", out)
    assert first.exit_code == 0, first.stdout
    assert len(asked) == len(set(asked)) == 2 * 2 * 60
    assert {k.arm for k in asked} == {"A1", "B"}
    assert {k.item_id.split("-")[1] for k in asked} == {"1", "2"}
    cli("seeds", path, "--seeds", "3", "--out", out)
    assert len(asked) == len(set(asked)) == 3 * 2 * 60
    assert "| m | 3 | 3 (1.00) |" in (out / "seeds.md").read_text()
    with Journal.read(out / "m-seed003.sqlite") as journal:
        assert journal.count() == 120


def test_seeds_of_a_changed_plan_do_not_mix_with_those_of_the_old_one(
    tmp_path: Path, asked: list[SampleKey]
) -> None:
    tasks = [{"name": "copy", "critical": True, "items": 60, "margin": 0.1}]
    cli("seeds", plan_file(tmp_path / "p.toml", ARMS, tasks), "--seeds", "2", "--out", tmp_path / "s")
    tasks[0]["margin"] = 0.2
    again = cli("seeds", plan_file(tmp_path / "p.toml", ARMS, tasks), "--seeds", "2", "--out", tmp_path / "s")
    assert again.exit_code == 2
    assert "m-seed001.sqlite: this run was registered with plan" in again.stderr


def test_the_prediction_as_seen_keeps_the_plans_repeats_and_exact_size(plan: Plan) -> None:
    data = plan.model_dump(mode="json")
    rows = [row(i, passed=True) for i in range(2)]
    once = summarise(plan, "m", rows, [seen(14, 14)] * 2).predicted_as_seen
    data["tasks"][0] |= {"p_d": 0.2, "noise_p_d": 0.15, "repeats": 8}
    repeated = summarise(Plan.model_validate(data), "m", rows, [seen(14, 14)] * 2).predicted_as_seen
    data["tasks"][0] |= {"repeats": 1}
    single = summarise(Plan.model_validate(data), "m", rows, [seen(14, 14)] * 2).predicted_as_seen
    assert repeated != once  # the plan's discordance of single answers, averaged over 8
    assert single == pytest.approx(once, abs=0.02)  # the discordance that was seen
    data["tasks"][0] |= {"items": 133, "margin": 0.02, "p_d": 0.02, "noise_p_d": 0.0}
    data["decision"] |= {"assumed_loss": 0.0, "suite_margin": 0.02}
    free, held = (
        summarise(
            Plan.model_validate(data | {"decision": data["decision"] | {"control_size": c}}),
            "m",
            rows,
            [seen(1, 1)] * 2,
        ).predicted_as_seen
        for c in (False, True)
    )
    assert held < free
