"""A small version of the simulation of looks: it keeps its bounds, and would say so if it did not."""

import numpy as np
import pytest
import sequential
from looks_simulation import (
    ALPHA,
    GAMMA,
    QUARTERS,
    SMALL,
    Design,
    by_levels,
    draw,
    futile,
    levels_of,
)
from paired_arms import paired_table

from equipoise.evals.analysis import TaskTables, analyse
from equipoise.evals.looks import LookAction, LookDecision, decide_at_look
from equipoise.evals.looks import levels_of as levels_of_plan
from equipoise.evals.plan import Plan
from equipoise.evals.policy import policy_of
from equipoise.evals.statistics.sequential import items_by_look
from equipoise.evals.types import ArmRole


def test_the_small_simulation_keeps_its_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert sequential.main(["--small"]) == 0
    assert "| pocock |" in capsys.readouterr().out


def test_looking_without_spending_would_break_them(monkeypatch: pytest.MonkeyPatch) -> None:
    uncorrected = (ALPHA,) * 4
    rng = np.random.default_rng(1)
    assert sequential.pooled_rate(SMALL, uncorrected, 0.1, 2_000, rng) > 0.09

    class Uncorrected:
        levels = uncorrected

    monkeypatch.setattr(sequential, "levels_of", lambda design, spending: Uncorrected)
    assert sequential.main(["--small"]) == 1


def plan_of(design: Design) -> Plan:
    return Plan.model_validate(
        {
            "schema_version": 1,
            "name": "simulated",
            "decision": {
                "suite_margin": design.suite_margin,
                "assumed_loss": design.loss,
                "require_noise_floor": False,
                "require_control": False,
            },
            "looks": {"fractions": QUARTERS},
            "models": [{"name": "m", "path": "x"}],
            "arms": [
                {"name": "A1", "role": "baseline", "variant": "bf16"},
                {"name": "B", "role": "candidate", "variant": "fp8_e4m3"},
            ],
            "tasks": [
                {
                    "name": f"t{k}",
                    "items": t.items,
                    "margin": t.margin,
                    "critical": t.critical,
                    "p_d": design.p_d,
                }
                for k, t in enumerate(design.tasks)
            ],
        }
    )


def really_decided(plan: Plan, b: np.ndarray, c: np.ndarray, items: list[int], look: int) -> LookDecision:  # type: ignore[type-arg]
    ends = {t.name: t.items for t in plan.tasks}
    levels = levels_of_plan(plan, ends)
    assert levels is not None
    tables = [
        TaskTables(
            task=t.name,
            margin=t.margin or 0.0,
            tables={ArmRole.CANDIDATE: paired_table(t.name, int(b[k]), int(c[k]), n=items[k])},
        )
        for k, t in enumerate(plan.tasks)
    ]
    evidence = analyse(
        "m",
        tables,
        suite_margin=plan.decision.suite_margin,
        alpha=ALPHA,
        rng=np.random.default_rng(1),
        nogo_alpha=levels.nogo_alpha(look),
    )
    return decide_at_look(plan, evidence, policy_of(plan), look=look, levels=levels, items=ends)


def test_what_is_simulated_is_what_a_run_decides() -> None:
    rng = np.random.default_rng(2)
    plan, levels = plan_of(SMALL), levels_of(SMALL, "pocock").levels
    seen = set()
    for loss in (0.02, 0.08, 0.12, 0.2):
        b, c = draw(SMALL, loss, SMALL.true_p_d(loss), (*QUARTERS, 1.0), 3, rng)
        for look in (1, 2, 3):
            items = [items_by_look(t.items, QUARTERS)[look - 1] for t in SMALL.tasks]
            at = b[look - 1], c[look - 1]
            bad = by_levels(levels)(*at, SMALL, items, look - 1)
            hopeless = futile(*at, SMALL, items, GAMMA)
            for run in range(3):
                action = really_decided(plan, at[0][run], at[1][run], items, look).action
                expected = (
                    LookAction.NO_GO if bad[run] else LookAction.FUTILE if hopeless[run] else LookAction.GO_ON
                )
                assert action is expected
                seen.add(action)
    assert seen == {LookAction.NO_GO, LookAction.FUTILE, LookAction.GO_ON}
