"""What a look may decide: at its own level, on valid data, and never in favour of the candidate."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paired_arms import logprob_tables, paired_table, task_tables

from equipoise.evals.analysis import LogprobTables, TaskTables, analyse
from equipoise.evals.looks import (
    LookAction,
    LookDecision,
    decide_at_look,
    items_at,
    levels_of,
    with_fixed_veto,
    without_passes,
)
from equipoise.evals.plan import LooksSpec, Plan, parse_plan
from equipoise.evals.policy import POOLED, decide, policy_of
from equipoise.evals.statistics.sequential import LookLevels
from equipoise.evals.statistics.tango import tango_delta_limits
from equipoise.evals.types import ArmRole, PairedTable, TaskItem
from equipoise.evals.verdict import Outcome, TaskLabel

B, A2, P = ArmRole.CANDIDATE, ArmRole.BASELINE_REPEAT, ArmRole.GROSS_CONTROL
ITEMS = {"one": 1600, "two": 1600}  # at the end; a look at a quarter sees 400 of each

PLAN = """
schema_version = 1
name = "looks"
[decision]
suite_margin = 0.03
assumed_loss = 0.005
[looks]
fractions = [0.25, 0.5]
[[models]]
name = "m"
path = "x"
[[arms]]
name = "A1"
role = "baseline"
variant = "bf16"
[[arms]]
name = "B"
role = "candidate"
variant = "fp8_e4m3"
[[tasks]]
name = "one"
critical = true
items = 1600
margin = 0.05
[[tasks]]
name = "two"
items = 1600
margin = 0.05
"""


def plan_with(**looks: object) -> Plan:
    plan = parse_plan(PLAN, source="test")
    assert plan.looks is not None
    return plan.model_copy(update={"looks": LooksSpec(**(plan.looks.model_dump() | looks))})


def levels(plan: Plan) -> LookLevels:
    found = levels_of(plan, ITEMS)
    assert found is not None
    return found


def look_at(
    one: tuple[int, int] | PairedTable = (4, 4),
    two: tuple[int, int] | PairedTable = (4, 4),
    *,
    roles: Mapping[ArmRole, tuple[int, int] | PairedTable | None] | None = None,
    logprobs: tuple[LogprobTables, ...] = (),
    parity: tuple[str, ...] = (),
    look: int = 1,
    items: Mapping[str, int] = ITEMS,
    **looks: object,
) -> LookDecision:
    plan = plan_with(**looks)
    tables: list[TaskTables] = [
        task_tables("one", {B: one, **(roles or {})}),
        task_tables("two", {B: two, **(roles or {})}),
    ]
    evidence = analyse(
        "m",
        tables,
        suite_margin=0.03,
        alpha=0.05,
        rng=np.random.default_rng(1),
        nogo_alpha=levels(plan).nogo_alpha(look),
        logprobs=logprobs,
        parity_violations=parity,
    )
    return decide_at_look(plan, evidence, policy_of(plan), look=look, levels=levels(plan), items=items)


def test_a_plan_without_looks_has_no_levels() -> None:
    plan = parse_plan(PLAN.replace("[looks]\nfractions = [0.25, 0.5]\n", ""), source="test")
    assert levels_of(plan, ITEMS) is None


def test_looks_are_part_of_the_plans_hash() -> None:
    assert plan_with().content_hash != plan_with(gamma=0.05).content_hash
    assert plan_with().content_hash != plan_with(fractions=(0.25,)).content_hash


@pytest.mark.parametrize("fractions", [[], [0.5, 0.25], [0.5, 0.5], [0.0, 0.5], [0.5, 1.0]])
def test_fractions_that_make_no_sense_are_refused(fractions: list[float]) -> None:
    with pytest.raises(ValueError, match="fractions"):
        plan_with(fractions=fractions)


# -- degraded --------------------------------------------------------------------------------


def test_degraded_is_decided_at_the_level_of_the_look_and_not_at_alpha() -> None:
    """Between the two limits a fixed design would end as degraded, and the look goes on."""
    level = levels(plan_with()).nogo_alpha(1)
    c, found = 4, []
    for b in range(20, 80):
        _, fixed = tango_delta_limits(b, c, 400, 0.95)
        _, here = tango_delta_limits(b, c, 400, 1.0 - level)
        found.append((bool(fixed < -0.05), bool(here < -0.05)))
    between = 20 + found.index((True, False))
    beyond = 20 + found.index((True, True))
    assert look_at((between, c), (0, 0), futility=False).action is LookAction.GO_ON
    assert look_at((beyond, c), (0, 0), futility=False).action is LookAction.NO_GO


def test_a_degraded_supporting_task_or_pooled_mean_stops_too() -> None:
    assert look_at((0, 0), (60, 5)).action is LookAction.NO_GO
    pooled = look_at((38, 5), (38, 5))
    assert pooled.action is LookAction.NO_GO
    assert pooled.reasons[0].startswith(f"{POOLED}: ")


def test_the_logprob_gate_alone_stops_nothing() -> None:
    """Its error is not spent over looks."""
    plan = parse_plan(
        PLAN + '[[tasks]]\nname = "logprob"\ncritical = true\nitems = 40\nmargin_nats = 0.01\n', source="test"
    )
    evidence = analyse(
        "m",
        [task_tables("one"), task_tables("two")],
        suite_margin=0.03,
        alpha=0.05,
        rng=np.random.default_rng(1),
        logprobs=(logprob_tables(0.5),),
    )
    assert decide([evidence], policy_of(plan)).outcome is Outcome.DEGRADED
    found = decide_at_look(
        plan, evidence, policy_of(plan), look=1, levels=levels(plan), items=ITEMS | {"logprob": 40}
    )
    assert found.action is LookAction.GO_ON


# -- validity --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "roles",
    [
        {P: (4, 4)},  # not caught
        {A2: (40, 0)},  # the baseline differs from itself
        {A2: None},  # required, not run
    ],
)
def test_nothing_is_decided_while_a_condition_of_validity_fails(
    roles: Mapping[ArmRole, tuple[int, int] | None],
) -> None:
    found = look_at((90, 5), (90, 5), roles=roles)
    assert found.action is LookAction.GO_ON
    assert all(reason.startswith("nothing is decided yet: ") for reason in found.reasons)
    assert found.reasons


def test_missing_answers_may_still_come() -> None:
    lacking = paired_table("one", 90, 5, n=390, unpaired_baseline=[1.0] * 10)
    assert look_at(lacking, (90, 5)).action is LookAction.GO_ON


def test_arms_that_cannot_be_compared_are_not_asked_on() -> None:
    found = look_at(parity=("arm B had another prompt",))
    assert found.action is LookAction.INVALID
    assert found.reasons == ("parity: arm B had another prompt",)


# -- futility --------------------------------------------------------------------------------


def test_futile_where_the_chance_left_is_below_gamma() -> None:
    # The loss seen is just about the margin of the pooled mean; a third of the items is to come.
    counts, items = ((19, 6), (19, 6)), {"one": 600, "two": 600}
    found = look_at(*counts, items=items)
    chances = {o.name: o.conditional_power for o in found.outlooks}
    assert set(chances) == {"one", POOLED}  # a supporting task is no condition of sign-off
    chance, of_the_task = chances[POOLED], chances["one"]
    assert chance is not None
    assert of_the_task is not None
    assert 0.02 < chance < 0.15 < of_the_task
    assert found.action is LookAction.GO_ON
    stopped = look_at(*counts, items=items, gamma=chance * 1.01)
    assert stopped.action is LookAction.FUTILE
    assert stopped.reasons[0].startswith(f"{POOLED}: non-inferior at the end with probability")
    assert look_at(*counts, items=items, gamma=chance * 1.01, futility=False).action is LookAction.GO_ON


def test_impossible_is_futile_whatever_gamma() -> None:
    plan = plan_with(gamma=1e-9, fractions=(0.97,))
    items = {"one": 410, "two": 410}
    evidence = analyse(
        "m",
        [task_tables("one", {B: (38, 12)}), task_tables("two", {B: (0, 12)})],
        suite_margin=0.03,
        alpha=0.05,
        rng=np.random.default_rng(1),
        nogo_alpha=1e-4,
    )
    found = decide_at_look(plan, evidence, policy_of(plan), look=1, levels=levels(plan), items=items)
    assert found.action is LookAction.FUTILE
    assert found.reasons == ("one: no answers to the remaining items would show non-inferiority",)


def test_repeats_have_an_outlook_by_their_estimate() -> None:
    table = paired_table("one", 10, 4)
    repeated = replace(
        table,
        baseline=np.repeat(table.baseline, 2, axis=1),
        candidate=np.repeat(table.candidate, 2, axis=1),
        baseline_truncated=np.repeat(table.baseline_truncated, 2, axis=1),
        candidate_truncated=np.repeat(table.candidate_truncated, 2, axis=1),
    )
    single = {o.name: o.conditional_power for o in look_at((10, 4)).outlooks}
    found = {o.name: o.conditional_power for o in look_at(repeated).outlooks}
    assert found["one"] == pytest.approx(single["one"], abs=0.05)


# -- never in favour -------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(0, 0), (0, 30), (4, 4), (12, 1)])
def test_a_look_never_passes_a_candidate(counts: tuple[int, int]) -> None:
    assert look_at(counts, counts).action is LookAction.GO_ON


def test_what_a_stopped_run_reports_has_no_passed_label() -> None:
    plan = plan_with()
    evidence = analyse(
        "m",
        [task_tables("one"), task_tables("two")],
        suite_margin=0.03,
        alpha=0.05,
        rng=np.random.default_rng(1),
    )
    verdict = decide([evidence], policy_of(plan))
    assert verdict.indistinguishable
    capped = without_passes(verdict, {"m": "at look 1"})
    (model,) = capped.models
    assert (capped.outcome, capped.exit_code, capped.indistinguishable) == (Outcome.INCONCLUSIVE, 3, False)
    assert {v.label for v in (*model.tasks, model.pooled)} == {TaskLabel.INCONCLUSIVE}
    assert {v.worst_case_label for v in (*model.tasks, model.pooled)} == {TaskLabel.INCONCLUSIVE}
    assert without_passes(verdict, {}) == verdict


def test_looks_sign_off_nothing_that_the_fixed_design_would_not() -> None:
    """A supporting task that is degraded at alpha but not at what the looks have left."""
    plan = plan_with()
    left = levels(plan).nogo_alpha(levels(plan).end)
    b = next(b for b in range(30, 90) if tango_delta_limits(b, 4, 400, 0.95)[1] < -0.05)
    tables = [task_tables("one", {B: (0, 40)}), task_tables("two", {B: (b, 4)})]
    evidence = [
        analyse("m", tables, suite_margin=0.09, alpha=0.05, rng=np.random.default_rng(1), nogo_alpha=alpha)
        for alpha in (None, left)
    ]
    policy = replace(policy_of(plan), require_control=False)
    fixed, looked = (decide([e], policy) for e in evidence)
    assert fixed.outcome is Outcome.DEGRADED
    assert looked.outcome is Outcome.SIGNED_OFF, "what the veto is for"
    vetoed = with_fixed_veto(looked, [evidence[1]])
    assert (vetoed.outcome, vetoed.indistinguishable) == (Outcome.INCONCLUSIVE, False)
    assert vetoed.models[0].reasons[0].startswith("two: degraded at the level of a plan without looks")


# -- items -----------------------------------------------------------------------------------


def item(name: str, cluster: str) -> TaskItem:
    return TaskItem(task="t", id=name, inputs={}, target="", content_hash="h", cluster_id=cluster)


@given(st.integers(1, 60), st.integers(1, 7), st.floats(0.05, 0.9), st.integers(0, 5))
def test_a_look_sees_whole_clusters_and_a_later_one_sees_more(
    n: int, size: int, fraction: float, seed: int
) -> None:
    items = [item(f"i{k}", f"c{k // size}") for k in range(n)]
    early, late = (items_at(items, f, seed=seed) for f in (fraction, min(1.0, fraction + 0.1)))
    assert len(early) == max(1, int(np.ceil(n * fraction - 1e-9)))
    assert set(i.id for i in early) <= set(i.id for i in late)
    assert [i.id for i in early] == [i.id for i in items if i in early]
    seen = {i.cluster_id for i in early}
    partly = [
        c for c in seen if sum(i.cluster_id == c for i in items) > sum(i.cluster_id == c for i in early)
    ]
    assert len(partly) <= 1
    reordered = items_at(items[::-1], fraction, seed=seed)
    assert {i.cluster_id for i in reordered} == seen


def test_which_items_come_first_depends_on_the_seed_and_the_task_alone() -> None:
    items = [item(f"i{k}", f"i{k}") for k in range(200)]
    first, second = (items_at(items, 0.25, seed=s) for s in (1, 2))
    assert first != second
    positions = [int(i.id[1:]) for i in first]
    assert max(positions) > 150
    assert min(positions) < 50
