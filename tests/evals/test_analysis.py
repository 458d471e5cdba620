"""Analysis: each comparison carries its own numbers, and what cannot be analysed is refused."""

from dataclasses import replace

import numpy as np
import pytest
from paired_arms import evidence_of, logprob_tables, paired_table, task_tables
from scipy.stats import norm

from equipoise.evals.comparison import Levels, compare_arms
from equipoise.evals.errors import EquipoiseError
from equipoise.evals.evidence import Comparison
from equipoise.evals.statistics.mcnemar import mcnemar_test
from equipoise.evals.statistics.size_control import size_controlled_alpha, worst_case_size
from equipoise.evals.statistics.tango import TangoResult, tango_test
from equipoise.evals.types import ArmAnswers, ArmRole, PairedTable


def compared(table: PairedTable, nogo_alpha: float | None = None) -> Comparison:
    rng = np.random.default_rng(1)
    found = compare_arms(table, 0.05, Levels(alpha=0.05, nogo_alpha=nogo_alpha), rng)
    assert found is not None
    return found


def test_a_comparison_reads_its_counts_from_the_pairs() -> None:
    c = compared(paired_table("t", 7, 3, n=200, baseline_right=157))
    assert (c.baseline_accuracy, c.candidate_accuracy) == (157 / 200, 153 / 200)
    assert c.estimate == tango_test(7, 3, 200, margin=0.05)
    assert (c.lost, c.gained) == (7, 3)
    assert c.mcnemar is not None
    assert c.alarm == c.mcnemar
    assert (c.mcnemar.b, c.mcnemar.c) == (7, 3)
    assert c.newcombe is not None
    assert (c.newcombe.both, c.newcombe.neither) == (150, 40)
    assert c.estimate.delta == pytest.approx(c.candidate_accuracy - c.baseline_accuracy)


def test_without_missing_items_the_worst_case_is_what_was_seen() -> None:
    c = compared(paired_table("t", 7, 3))
    assert (c.missing.lower, c.missing.upper, c.missing.unpaired) == (c.estimate.lower, c.estimate.upper, 0)
    assert c.missing.worst_delta == c.missing.best_delta == c.estimate.delta


def test_missing_items_are_filled_the_worst_and_the_best_way() -> None:
    table = paired_table(
        "t", 7, 3, n=195, unpaired_baseline=[1.0, 0.0], unpaired_candidate=[1.0, 0.0], neither=1
    )
    c = compared(table)
    # worst: the right answer of B's lost pair and both-missing pair, and A1's pair where B was wrong
    worst, best = tango_test(7 + 3, 3, 200, margin=0.05), tango_test(7, 3 + 3, 200, margin=0.05)
    assert (c.missing.worst_delta, c.missing.lower) == pytest.approx((worst.delta, worst.lower))
    assert (c.missing.best_delta, c.missing.upper) == pytest.approx((best.delta, best.upper))
    assert c.missing.lower < c.estimate.lower
    assert c.missing.upper > c.estimate.upper


def test_truncation_is_a_paired_endpoint_and_completed_pairs_are_repeated() -> None:
    table = paired_table("t", 7, 3, baseline_truncated=2, candidate_truncated=9)
    c = compared(table)
    assert (c.truncation.baseline, c.truncation.candidate) == (2, 9)
    assert c.truncation.test == mcnemar_test(7, 0)  # completed under the baseline only
    assert (c.truncation.lost, c.truncation.gained) == (7, 0)
    assert c.truncation.both_completed == tango_test(7, 3, 391, margin=0.05)


def test_the_pooled_mean_weighs_tasks_alike_and_signs_by_pairs() -> None:
    evidence = evidence_of(
        task_tables("one", {ArmRole.CANDIDATE: (8, 4)}),
        task_tables("two", {ArmRole.CANDIDATE: (6, 2)}, n=100),
    )
    pooled = evidence.pooled[ArmRole.CANDIDATE]
    assert pooled.mover.delta == pytest.approx((-4 / 400 - 4 / 100) / 2)
    assert pooled.sign_test == mcnemar_test(14, 6)
    assert (pooled.lost, pooled.gained) == (14, 6)
    assert pooled.missing_lower == pytest.approx(pooled.mover.lower)
    assert set(evidence.pooled) == set(ArmRole) - {ArmRole.BASELINE}


def test_a_role_that_one_task_lacks_is_not_pooled_but_known_to_have_run() -> None:
    empty = paired_table("two", 0, 0, n=0, role=ArmRole.GROSS_CONTROL, neither=400)
    evidence = evidence_of(task_tables("one"), task_tables("two", {ArmRole.GROSS_CONTROL: empty}))
    assert ArmRole.GROSS_CONTROL in evidence.roles_run
    assert ArmRole.GROSS_CONTROL not in evidence.pooled
    assert ArmRole.GROSS_CONTROL not in evidence.tasks[1].comparisons
    assert evidence.tasks[1].unpaired["P against A1"]["both"] == 400
    assert evidence.tasks[0].unpaired == {}


def test_missing_answers_are_counted_by_arm_over_the_suite() -> None:
    table = paired_table("one", 4, 4, n=398, unpaired_baseline=[1.0, 0.0])
    evidence = evidence_of(task_tables("one", {ArmRole.CANDIDATE: table}), task_tables("two"))
    by_arm = {m.arm: (m.missing, m.planned) for m in evidence.arms_missing}
    assert by_arm == {"A1": (0, 800), "B": (2, 800), "A2": (0, 800), "P": (0, 800), "M": (0, 800)}
    assert evidence.differential_missingness is not None
    assert evidence.differential_missingness.candidate_missing == 2


def test_excess_discordance_uses_the_items_that_all_three_runs_have() -> None:
    evidence = evidence_of(task_tables("one"))
    assert evidence.tasks[0].excess is not None
    assert evidence.tasks[0].excess.excess == pytest.approx(8 / 400)
    without = evidence_of(task_tables("one", {ArmRole.BASELINE_REPEAT: None}))
    assert without.tasks[0].excess is None


def test_logprobs_are_analysed_only_where_there_are_tokens() -> None:
    evidence = evidence_of(task_tables("one"), logprobs=[logprob_tables(0.005, cache_not_read=40)])
    assert set(evidence.logprobs[0].comparisons) == {ArmRole.BASELINE_REPEAT}
    evidence = evidence_of(task_tables("one"), logprobs=[logprob_tables(0.005)])
    change = evidence.logprobs[0].comparisons[ArmRole.CANDIDATE]
    assert change.delta_nll_nats == pytest.approx(0.005, abs=0.002)
    assert change.sequences == 40


def test_repeated_graded_and_clustered_scores_each_have_their_method() -> None:
    table = paired_table("sums", 12, 6, n=200)
    rng = np.random.default_rng(2)
    sampled = {
        "baseline": (rng.random((200, 8)) < 0.8).astype(float),
        "candidate": (rng.random((200, 8)) < 0.7).astype(float),
        "baseline_truncated": np.zeros((200, 8), dtype=bool),
        "candidate_truncated": np.zeros((200, 8), dtype=bool),
    }
    graded = replace(table, baseline=table.baseline * 0.5, candidate=table.candidate * 0.5)
    clustered = replace(table, cluster_ids=tuple(f"doc{i // 4}" for i in range(200)))
    methods = set()
    for changed in (replace(table, **sampled), graded, clustered):
        c = compared(changed)
        assert not isinstance(c.estimate, TangoResult)
        assert c.mcnemar is None
        assert c.newcombe is None
        assert c.estimate.lower < c.estimate.delta < c.estimate.upper
        assert c.estimate.delta == pytest.approx(changed.candidate.mean() - changed.baseline.mean())
        assert c.lost - c.gained == pytest.approx(-200 * c.estimate.delta)
        assert 0.0 < c.detectable.loss < 0.2
        methods.add(c.estimate.method)
    assert len(methods) >= 2
    assert compared(clustered).clusters == 50


def test_a_small_task_with_repeats_speaks_of_its_own_items() -> None:
    rng = np.random.default_rng(3)
    table = paired_table("aime", 0, 0, n=30)
    scores = (rng.random((2, 30, 8)) < 0.6).astype(float)
    none = np.zeros((30, 8), dtype=bool)
    c = compared(
        replace(
            table, baseline=scores[0], candidate=scores[1], baseline_truncated=none, candidate_truncated=none
        )
    )
    assert "fixed" in c.estimate.method


def test_missing_repeated_items_are_filled_on_both_sides() -> None:
    rng = np.random.default_rng(4)
    table = paired_table("t", 0, 0, n=150, unpaired_baseline=[0.75], unpaired_candidate=[0.25], neither=1)
    scores = (rng.random((2, 150, 4)) < 0.6).astype(float)
    none = np.zeros((150, 4), dtype=bool)
    c = compared(
        replace(
            table, baseline=scores[0], candidate=scores[1], baseline_truncated=none, candidate_truncated=none
        )
    )
    change = float((scores[1] - scores[0]).mean(axis=1).sum())
    assert c.missing.worst_delta == pytest.approx((change - 0.75 - 0.75 - 1.0) / 153)
    assert c.missing.best_delta == pytest.approx((change + 0.25 + 0.25 + 1.0) / 153)
    assert c.missing.lower < c.estimate.lower
    assert c.missing.upper > c.estimate.upper


def test_one_cluster_says_nothing_and_never_passes() -> None:
    table = replace(paired_table("t", 0, 0, n=50), cluster_ids=("doc",) * 50)
    c = compared(table)
    assert not c.estimate.lower > -0.05
    evidence = evidence_of(task_tables("t", {ArmRole.CANDIDATE: table}))
    pooled = evidence.pooled[ArmRole.CANDIDATE]
    assert pooled.mover.lower < -0.05 or not pooled.mover.noninferior


def test_looks_leave_degraded_a_wider_upper_limit_and_the_rest_as_it_was() -> None:
    table = paired_table("t", 40, 10)
    fixed, looked = compared(table), compared(table, nogo_alpha=0.03)
    assert fixed.nogo_upper == fixed.estimate.upper
    assert looked.nogo_upper > fixed.nogo_upper
    assert looked.estimate == fixed.estimate


def test_pooled_tests_of_mixed_tasks_flip_signs_over_all_items() -> None:
    one = paired_table("one", 8, 4)
    graded = replace(
        paired_table("two", 30, 5, n=100),
        baseline=paired_table("two", 30, 5, n=100).baseline * 0.5,
        candidate=paired_table("two", 30, 5, n=100).candidate * 0.5,
    )
    evidence = evidence_of(
        task_tables("one", {ArmRole.CANDIDATE: one}), task_tables("two", {ArmRole.CANDIDATE: graded})
    )
    pooled = evidence.pooled[ArmRole.CANDIDATE]
    assert (pooled.lost, pooled.gained) == (8 + 15, 4 + 2.5)
    assert 0.0 < pooled.sign_test.two_sided_p < 0.05


def test_a_score_outside_the_unit_interval_is_refused_by_task() -> None:
    table = paired_table("sums", 1, 1, n=10)
    with pytest.raises(EquipoiseError, match=r"task 'sums', B against A1"):
        compared(replace(table, baseline=table.baseline * 2.0))


def test_a_plan_may_hold_the_exact_size_at_alpha() -> None:
    table = paired_table("t", 2, 0, n=133)
    nominal = compare_arms(table, 0.02, Levels(alpha=0.05), np.random.default_rng(1))
    held = compare_arms(table, 0.02, Levels(alpha=0.05, control_size=True), np.random.default_rng(1))
    assert nominal is not None
    assert held is not None
    assert held.estimate.alpha == size_controlled_alpha(133, 0.02, 0.05) < 0.05
    assert held.estimate.lower < nominal.estimate.lower
    z = float(norm.isf(held.estimate.alpha))
    assert worst_case_size(133, 0.02, z=z).worst_size <= 0.05 < worst_case_size(133, 0.02).worst_size


def test_what_is_explored_changes_no_primary_result() -> None:
    scores = np.random.default_rng(8)
    base, cand = (scores.random((150, 8)) < 0.8).astype(float), (scores.random((150, 8)) < 0.8).astype(float)
    plain = replace(paired_table("one", 0, 0, n=150), baseline=base, candidate=cand)
    told = replace(
        plain,
        strata={"subject": ("law", "art") * 75},
        prompt_tokens=np.arange(150.0) + 1.0,
        candidate_answers=ArmAnswers(degenerate=base > cand),
        baseline_answers=ArmAnswers(degenerate=base < cand),
    )
    bare, rich = (evidence_of(task_tables("one", {ArmRole.CANDIDATE: t})) for t in (plain, told))
    assert bare.exploration is not None
    assert rich.exploration is not None
    assert len(rich.exploration.subgroups.rows) > len(bare.exploration.subgroups.rows) == 0
    # by text, because undefined values are NaN and NaN is not equal to itself
    assert repr((rich.tasks, rich.pooled)) == repr((bare.tasks, bare.pooled))
