"""From paired tables to exit codes: every label, every outcome, and what can never pass."""

from dataclasses import replace

import pytest
from paired_arms import evidence_of, logprob_tables, paired_table, task_tables

from equipoise.evals.analysis import LogprobTables, TaskTables
from equipoise.evals.errors import EquipoiseError
from equipoise.evals.evidence import SuiteEvidence
from equipoise.evals.plan import parse_plan
from equipoise.evals.policy import POOLED, Policy, decide, decide_model, policy_of
from equipoise.evals.types import ArmRole, PairedTable
from equipoise.evals.verdict import GateStatus, Outcome, SuiteVerdict, TaskLabel

POLICY = Policy(critical=frozenset({"one", "two"}))
B, A2, P, MILD = ArmRole.CANDIDATE, ArmRole.BASELINE_REPEAT, ArmRole.GROSS_CONTROL, ArmRole.MILD_CONTROL

#: (b, c) of 400 pairs at a margin of 0.05, with the other tasks healthy
COUNTS = {
    TaskLabel.DEGRADED: (60, 10),
    TaskLabel.SUSPECT: (28, 8),
    TaskLabel.INCONCLUSIVE: (22, 10),
    TaskLabel.DETECTED_WITHIN_MARGIN: (10, 1),
    TaskLabel.EQUIVALENT: (4, 4),
    TaskLabel.NON_INFERIOR: (20, 30),
}


def suite(
    one: tuple[int, int] | PairedTable = (4, 4),
    supporting: tuple[int, int] | PairedTable = (4, 4),
    *,
    margin: float = 0.03,
    logprobs: tuple[LogprobTables, ...] = (),
    parity: tuple[str, ...] = (),
) -> SuiteEvidence:
    return evidence_of(
        task_tables("one", {B: one}),
        task_tables("two"),
        task_tables("extra", {B: supporting}),
        suite_margin=margin,
        logprobs=logprobs,
        parity_violations=parity,
    )


def with_role(
    role: ArmRole, table: tuple[int, int] | PairedTable | None, *, everywhere: bool
) -> SuiteEvidence:
    """A healthy suite in which one role has other counts, on task "one" or on all."""
    other: dict[ArmRole, tuple[int, int] | PairedTable | None] = {role: table}
    return evidence_of(
        task_tables("one", other),
        task_tables("two", other if everywhere else {}),
        task_tables("extra", other if everywhere else {}),
    )


def by_task(verdict: SuiteVerdict) -> dict[str, TaskLabel]:
    return {v.task: v.label for v in (*verdict.tasks, verdict.pooled)}


@pytest.mark.parametrize("label", COUNTS)
def test_each_label_comes_out_of_paired_counts(label: TaskLabel) -> None:
    verdict = decide_model(suite(COUNTS[label]), POLICY).tasks[0]
    assert verdict.label is label
    assert verdict.reasons
    assert verdict.worst_case_label is label


@pytest.mark.parametrize(
    ("critical", "supporting", "outcome", "code"),
    [
        (TaskLabel.EQUIVALENT, TaskLabel.EQUIVALENT, Outcome.SIGNED_OFF, 0),
        (TaskLabel.NON_INFERIOR, TaskLabel.EQUIVALENT, Outcome.SIGNED_OFF, 0),
        (TaskLabel.DEGRADED, TaskLabel.EQUIVALENT, Outcome.DEGRADED, 1),
        (TaskLabel.EQUIVALENT, TaskLabel.DEGRADED, Outcome.DEGRADED, 1),
        (TaskLabel.SUSPECT, TaskLabel.EQUIVALENT, Outcome.INCONCLUSIVE, 3),
        (TaskLabel.INCONCLUSIVE, TaskLabel.EQUIVALENT, Outcome.INCONCLUSIVE, 3),
        (TaskLabel.DETECTED_WITHIN_MARGIN, TaskLabel.EQUIVALENT, Outcome.INCONCLUSIVE, 3),
        (TaskLabel.EQUIVALENT, TaskLabel.INCONCLUSIVE, Outcome.SIGNED_OFF, 0),
        (TaskLabel.EQUIVALENT, TaskLabel.DETECTED_WITHIN_MARGIN, Outcome.SIGNED_OFF, 0),
        (TaskLabel.SUSPECT, TaskLabel.DEGRADED, Outcome.DEGRADED, 1),
    ],
)
def test_suite_outcome_and_exit_code_follow_from_the_labels(
    critical: TaskLabel, supporting: TaskLabel, outcome: Outcome, code: int
) -> None:
    # A wide suite margin and `allow_detected` off: the tasks decide, the pooled mean does not.
    verdict = decide_model(suite(COUNTS[critical], COUNTS[supporting], margin=0.09), POLICY)
    assert by_task(verdict)["one"] is critical
    assert by_task(verdict)["extra"] is supporting
    assert (verdict.outcome, verdict.exit_code) == (outcome, code)
    assert verdict.reasons


def test_a_detected_loss_signs_off_only_if_the_plan_allows_it_and_is_never_indistinguishable() -> None:
    evidence = suite(COUNTS[TaskLabel.DETECTED_WITHIN_MARGIN])
    assert decide_model(evidence, POLICY).outcome is Outcome.INCONCLUSIVE
    allowed = decide_model(evidence, replace(POLICY, allow_detected=True))
    assert allowed.outcome is Outcome.SIGNED_OFF
    assert not allowed.indistinguishable


def test_a_healthy_run_is_indistinguishable() -> None:
    run = decide([suite()], POLICY)
    assert (run.outcome, run.exit_code, run.indistinguishable) == (Outcome.SIGNED_OFF, 0, True)
    assert run.models[0].noise_floor.status is GateStatus.PASSED
    assert run.models[0].gross_control.status is GateStatus.PASSED


def test_a_critical_task_that_is_only_noninferior_is_not_indistinguishable() -> None:
    verdict = decide_model(suite(COUNTS[TaskLabel.NON_INFERIOR], margin=0.09), POLICY)
    assert verdict.outcome is Outcome.SIGNED_OFF
    assert not verdict.indistinguishable


def test_an_improved_task_is_noninferior_and_says_so() -> None:
    verdict = decide_model(suite((5, 30), margin=0.09), POLICY)
    assert verdict.tasks[0].label is TaskLabel.NON_INFERIOR
    assert verdict.tasks[0].improved
    assert not verdict.indistinguishable


def test_small_losses_that_go_the_same_way_are_seen_in_the_pooled_mean_alone() -> None:
    evidence = evidence_of(*(task_tables(t, {B: (9, 2)}) for t in ("one", "two", "extra")))
    verdict = decide_model(evidence, POLICY)
    assert [v.label for v in verdict.tasks] == [TaskLabel.EQUIVALENT] * 3
    assert verdict.pooled.label is TaskLabel.DETECTED_WITHIN_MARGIN
    assert verdict.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("margin", "label", "outcome"),
    [
        (0.02, TaskLabel.DEGRADED, Outcome.DEGRADED),
        (0.03, TaskLabel.SUSPECT, Outcome.INCONCLUSIVE),
        (0.06, TaskLabel.DETECTED_WITHIN_MARGIN, Outcome.SIGNED_OFF),
    ],
)
def test_the_pooled_mean_decides_too(margin: float, label: TaskLabel, outcome: Outcome) -> None:
    # Each task loses 3.5 points of delta, tasks' own margins are wide.
    tasks = [task_tables(t, {B: (20, 6)}, margin=0.08) for t in ("one", "two", "extra")]
    verdict = decide_model(evidence_of(*tasks, suite_margin=margin), replace(POLICY, allow_detected=True))
    assert verdict.pooled.label is label
    assert verdict.outcome is outcome


def test_inconclusive_says_how_many_items_would_decide() -> None:
    verdict = decide_model(suite(COUNTS[TaskLabel.INCONCLUSIVE]), POLICY).tasks[0]
    assert verdict.items_needed is not None
    assert verdict.items_needed > 400
    assert f"{verdict.items_needed:,} items" in verdict.reasons[-1]
    at_the_margin = decide_model(suite((24, 4)), replace(POLICY, critical=frozenset())).tasks[0]
    assert at_the_margin.label is TaskLabel.SUSPECT


def test_pooled_inconclusive_says_how_many_items_would_decide() -> None:
    tasks = [task_tables(t, {B: (8, 6)}, n=100, margin=0.2) for t in ("one", "two", "extra")]
    verdict = decide_model(
        evidence_of(*(replace(t, tables={**t.tables}) for t in tasks)), replace(POLICY, require_control=True)
    )
    assert verdict.pooled.label is TaskLabel.INCONCLUSIVE
    assert verdict.pooled.items_needed is not None
    assert verdict.pooled.items_needed > 300


def test_a_loss_exactly_at_the_margin_cannot_be_decided_by_more_items() -> None:
    tasks = [task_tables("one", {B: (7, 2)}, n=100), task_tables("two"), task_tables("extra")]
    verdict = decide_model(evidence_of(*tasks), POLICY).tasks[0]
    assert verdict.label is TaskLabel.INCONCLUSIVE
    assert verdict.items_needed is None
    assert "too near the margin" in verdict.reasons[-1]


# --- noise floor ---


def test_a_baseline_that_differs_from_itself_invalidates_the_task() -> None:
    verdict = decide_model(with_role(A2, (30, 5), everywhere=False), POLICY)
    assert by_task(verdict)["one"] is TaskLabel.INVALID
    assert any("A/A alarm" in r for r in verdict.tasks[0].reasons)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.exit_code == 4
    assert verdict.noise_floor.status is GateStatus.FAILED


def test_a_margin_that_the_noise_does_not_allow_is_inconclusive() -> None:
    verdict = decide_model(with_role(A2, (40, 30), everywhere=False), POLICY)
    assert by_task(verdict)["one"] is TaskLabel.INCONCLUSIVE
    assert "margin unattainable" in verdict.tasks[0].reasons[0]
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.noise_floor.unattainable == ("one",)
    assert not verdict.indistinguishable


def test_noise_over_the_suite_margin_makes_the_pooled_mean_inconclusive() -> None:
    verdict = decide_model(with_role(A2, (45, 38), everywhere=True), POLICY)
    assert verdict.pooled.label is TaskLabel.INCONCLUSIVE
    assert "margin unattainable" in verdict.pooled.reasons[0]


def test_noise_in_a_supporting_task_alone_does_not_stop_sign_off() -> None:
    tasks = [task_tables("one"), task_tables("two"), task_tables("extra", {A2: (40, 30)})]
    verdict = decide_model(evidence_of(*tasks), POLICY)
    assert by_task(verdict)["extra"] is TaskLabel.INCONCLUSIVE
    assert verdict.outcome is Outcome.SIGNED_OFF


# --- controls ---


def test_a_gross_control_that_is_not_caught_invalidates_the_model() -> None:
    verdict = decide_model(with_role(P, (12, 8), everywhere=True), POLICY)
    assert set(by_task(verdict).values()) == {TaskLabel.INVALID}
    assert verdict.outcome is Outcome.INVALID
    assert any("gross control was not caught" in r for r in verdict.reasons)
    assert verdict.gross_control.status is GateStatus.FAILED


def test_a_critical_task_that_is_blind_to_the_control_is_invalid() -> None:
    verdict = decide_model(with_role(P, (4, 4), everywhere=False), POLICY)
    assert by_task(verdict)["one"] is TaskLabel.INVALID
    assert by_task(verdict)["two"] is TaskLabel.EQUIVALENT
    assert verdict.tasks[0].blind
    assert verdict.outcome is Outcome.INVALID
    assert verdict.gross_control.status is GateStatus.FAILED
    assert verdict.gross_control.blind_tasks == ("one",)


def test_a_supporting_task_may_be_blind_and_is_marked() -> None:
    verdict = decide_model(
        with_role(P, (4, 4), everywhere=False), replace(POLICY, critical=frozenset({"two"}))
    )
    assert verdict.tasks[0].blind
    assert verdict.outcome is Outcome.SIGNED_OFF
    assert verdict.gross_control.status is GateStatus.PASSED


def test_controls_are_labelled_by_the_same_tests_and_the_mild_one_decides_nothing() -> None:
    verdict = decide_model(with_role(MILD, (4, 4), everywhere=True), POLICY)
    assert verdict.gross_control.task_labels["one"] is TaskLabel.DEGRADED
    assert verdict.gross_control.pooled_label is TaskLabel.DEGRADED
    assert verdict.mild_control.status is GateStatus.FAILED
    assert verdict.mild_control.task_labels["one"] is TaskLabel.EQUIVALENT
    assert verdict.outcome is Outcome.SIGNED_OFF
    assert verdict.indistinguishable


@pytest.mark.parametrize(("role", "flag"), [(P, "require_control"), (A2, "require_noise_floor")])
def test_without_control_or_noise_floor_nothing_is_indistinguishable(role: ArmRole, flag: str) -> None:
    evidence = with_role(role, None, everywhere=True)
    required = decide_model(evidence, POLICY)
    assert required.outcome is Outcome.INVALID
    assert any("the plan requires a" in r for r in required.reasons)
    waived = decide_model(evidence, replace(POLICY, **{flag: False}))
    assert waived.outcome is Outcome.SIGNED_OFF
    assert not waived.indistinguishable


def test_a_control_that_ran_but_answered_nothing_is_not_caught() -> None:
    empty = paired_table("one", 0, 0, n=0, role=P, neither=400)
    verdict = decide_model(with_role(P, empty, everywhere=False), POLICY)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.gross_control.status is GateStatus.FAILED


# --- parity, truncation, missing answers ---


def test_broken_parity_invalidates_every_label() -> None:
    verdict = decide_model(suite(parity=("tokenizers differ",)), POLICY)
    assert set(by_task(verdict).values()) == {TaskLabel.INVALID}
    assert "parity: tokenizers differ" in verdict.reasons[0]
    assert verdict.exit_code == 4


@pytest.mark.parametrize(("truncated", "valid"), [(8, True), (9, False)])
def test_baseline_truncation_beyond_two_percent_is_invalid(truncated: int, valid: bool) -> None:
    table = paired_table("one", 4, 4, baseline_truncated=truncated, candidate_truncated=truncated)
    verdict = decide_model(suite(table), POLICY).tasks[0]
    assert (verdict.label is TaskLabel.EQUIVALENT) == valid
    assert (verdict.label is TaskLabel.INVALID) != valid


def test_a_candidate_that_truncates_more_raises_the_truncation_alarm() -> None:
    table = paired_table("one", 4, 4, baseline_truncated=0, candidate_truncated=12)
    verdict = decide_model(suite(table), POLICY).tasks[0]
    assert verdict.label is TaskLabel.DETECTED_WITHIN_MARGIN
    assert "truncated at different rates" in verdict.reasons[-1]


def test_more_than_half_a_percent_missing_in_an_arm_is_invalid() -> None:
    few = paired_table("one", 4, 4, n=394, unpaired_baseline=[1.0] * 6)  # .5% of 1,200
    assert decide_model(suite(few), POLICY).outcome is Outcome.SIGNED_OFF
    more = paired_table("one", 4, 4, n=393, unpaired_baseline=[1.0] * 7)
    verdict = decide_model(suite(more), POLICY)
    assert verdict.outcome is Outcome.INVALID
    assert any("7 of 1200 answers are missing in arm B" in r for r in verdict.reasons)


def test_unequal_missingness_is_invalid_even_where_the_rate_is_allowed() -> None:
    table = paired_table("one", 4, 4, n=390, unpaired_baseline=[0.0] * 10)
    lenient = replace(POLICY, max_missing=0.05)
    verdict = decide_model(suite(table), lenient)
    assert verdict.outcome is Outcome.INVALID
    assert any("missing at different rates" in r for r in verdict.reasons)
    assert decide_model(suite(table), replace(lenient, missingness_alpha=1e-6)).outcome is Outcome.SIGNED_OFF


def test_missing_answers_that_could_hide_a_loss_are_inconclusive() -> None:
    table = paired_table("one", 20, 10, n=396, unpaired_baseline=[1.0] * 4)
    verdict = decide_model(suite(table, margin=0.09), POLICY).tasks[0]
    complete = decide_model(suite((20, 10), margin=0.09), POLICY).tasks[0]
    assert complete.label is TaskLabel.EQUIVALENT
    assert verdict.label is verdict.worst_case_label is TaskLabel.INCONCLUSIVE
    assert "answers are missing" in verdict.reasons[0]


def test_a_task_with_no_pair_at_all_is_invalid() -> None:
    empty = paired_table("one", 0, 0, n=0, neither=400)
    verdict = decide_model(suite(empty), POLICY)
    assert "no item was scored in both arms" in verdict.tasks[0].reasons
    assert verdict.pooled.label is TaskLabel.INVALID
    assert verdict.outcome is Outcome.INVALID


# --- the logprob gate ---


@pytest.mark.parametrize(
    ("tables", "status", "outcome_if_critical"),
    [
        (logprob_tables(0.005), GateStatus.PASSED, Outcome.SIGNED_OFF),
        (logprob_tables(0.0), GateStatus.PASSED, Outcome.SIGNED_OFF),
        (logprob_tables(0.02), GateStatus.FAILED, Outcome.DEGRADED),
        (logprob_tables(0.0101), GateStatus.FAILED, Outcome.INCONCLUSIVE),
        (logprob_tables(0.02, noise_nats=0.01), GateStatus.PASSED, Outcome.SIGNED_OFF),
        (logprob_tables(0.005, cache_not_read=10), GateStatus.CACHE_NOT_READ, Outcome.INCONCLUSIVE),
        (logprob_tables(0.005, cache_not_read=40), GateStatus.CACHE_NOT_READ, Outcome.INCONCLUSIVE),
    ],
)
def test_logprob_gate_is_reported_and_decides_only_where_critical(
    tables: LogprobTables, status: GateStatus, outcome_if_critical: Outcome
) -> None:
    evidence = suite(logprobs=(tables,))
    reported = decide_model(evidence, POLICY)
    assert reported.logprobs[0].status is status
    assert reported.outcome is Outcome.SIGNED_OFF
    critical = replace(POLICY, critical=POLICY.critical | {"logprob"})
    verdict = decide_model(evidence, critical)
    assert verdict.outcome is outcome_if_critical
    assert verdict.indistinguishable == (outcome_if_critical is Outcome.SIGNED_OFF)


# --- runs of several models, and the plan ---


@pytest.mark.parametrize(
    ("counts", "outcome"),
    [
        ([(4, 4), (4, 4)], Outcome.SIGNED_OFF),
        ([(4, 4), (22, 10)], Outcome.INCONCLUSIVE),
        ([(60, 10), (22, 10)], Outcome.DEGRADED),
    ],
)
def test_a_run_is_as_bad_as_its_worst_model(counts: list[tuple[int, int]], outcome: Outcome) -> None:
    run = decide([suite(c) for c in counts], POLICY)
    assert run.outcome is outcome
    assert run.indistinguishable == (outcome is Outcome.SIGNED_OFF)


def test_one_invalid_model_makes_the_run_invalid_whatever_the_others_show() -> None:
    run = decide([suite((60, 10)), suite(parity=("tokenizers differ",))], POLICY)
    assert (run.outcome, run.exit_code) == (Outcome.INVALID, 4)


def test_policy_comes_from_the_plan() -> None:
    plan = parse_plan(
        """
        schema_version = 1
        name = "p"
        [decision]
        suite_margin = 0.025
        allow_detected = true
        require_control = false
        max_missing = 0.001
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
        name = "copy"
        critical = true
        items = 10
        margin = 0.05
        [[tasks]]
        name = "sort"
        items = 10
        margin = 0.05
        """,
        source="test",
    )
    policy = policy_of(plan)
    assert policy == Policy(
        critical=frozenset({"copy"}), allow_detected=True, require_control=False, max_missing=0.001
    )
    assert policy.required_roles == (A2,)


def test_a_critical_task_without_evidence_is_an_error_not_a_pass() -> None:
    with pytest.raises(EquipoiseError, match=r"\['nowhere'\]"):
        decide_model(suite(), replace(POLICY, critical=frozenset({"nowhere"})))
    with pytest.raises(EquipoiseError, match="no model"):
        decide([], POLICY)


def test_swapping_nothing_but_the_labels_of_tasks_changes_no_verdict() -> None:
    tasks: list[TaskTables] = [task_tables(t, {B: (10, 1)}) for t in ("one", "two", "extra")]
    forward, backward = (decide_model(evidence_of(*order), POLICY) for order in (tasks, tasks[::-1]))
    assert by_task(forward) == by_task(backward)
    assert forward.pooled.task == POOLED
