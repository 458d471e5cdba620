"""Analysis: each comparison carries its own numbers, and what cannot be analysed is refused."""

from dataclasses import replace

import numpy as np
import pytest
from paired_arms import evidence_of, logprob_tables, paired_table, task_tables

from equipoise.evals.analysis import compare_arms
from equipoise.evals.errors import EquipoiseError
from equipoise.evals.statistics.tango import tango_test
from equipoise.evals.types import ArmRole


def test_a_comparison_reads_its_counts_from_the_pairs() -> None:
    c = compare_arms(paired_table("t", 7, 3, n=200, baseline_right=157), 0.05, 0.05)
    assert c is not None
    assert (c.baseline_accuracy, c.candidate_accuracy) == (157 / 200, 153 / 200)
    assert c.tango == tango_test(7, 3, 200, margin=0.05)
    assert (c.mcnemar.b, c.mcnemar.c) == (7, 3)
    assert (c.newcombe.both, c.newcombe.neither) == (150, 40)
    assert c.tango.delta == pytest.approx(c.candidate_accuracy - c.baseline_accuracy)


def test_without_missing_items_the_worst_case_is_what_was_seen() -> None:
    c = compare_arms(paired_table("t", 7, 3), 0.05, 0.05)
    assert c is not None
    assert (c.missing.lower, c.missing.upper, c.missing.unpaired) == (c.tango.lower, c.tango.upper, 0)
    assert c.missing.worst_delta == c.missing.best_delta == c.tango.delta


def test_missing_items_are_filled_the_worst_and_the_best_way() -> None:
    table = paired_table(
        "t", 7, 3, n=195, unpaired_baseline=[1.0, 0.0], unpaired_candidate=[1.0, 0.0], neither=1
    )
    c = compare_arms(table, 0.05, 0.05)
    assert c is not None
    # worst: the right answer of B's lost pair and both-missing pair, and A1's pair where B was wrong
    worst, best = tango_test(7 + 3, 3, 200, margin=0.05), tango_test(7, 3 + 3, 200, margin=0.05)
    assert (c.missing.worst_delta, c.missing.lower) == pytest.approx((worst.delta, worst.lower))
    assert (c.missing.best_delta, c.missing.upper) == pytest.approx((best.delta, best.upper))
    assert c.missing.lower < c.tango.lower
    assert c.missing.upper > c.tango.upper


def test_truncation_is_a_paired_endpoint_and_completed_pairs_are_repeated() -> None:
    table = paired_table("t", 7, 3, baseline_truncated=2, candidate_truncated=9)
    c = compare_arms(table, 0.05, 0.05)
    assert c is not None
    assert (c.truncation.baseline, c.truncation.candidate) == (2, 9)
    assert (c.truncation.test.b, c.truncation.test.c) == (0, 7)
    assert c.truncation.both_completed == tango_test(7, 3, 391, margin=0.05)


def test_the_pooled_mean_weighs_tasks_alike_and_signs_by_pairs() -> None:
    evidence = evidence_of(
        task_tables("one", {ArmRole.CANDIDATE: (8, 4)}),
        task_tables("two", {ArmRole.CANDIDATE: (6, 2)}, n=100),
    )
    pooled = evidence.pooled[ArmRole.CANDIDATE]
    assert pooled.mover.delta == pytest.approx((-4 / 400 - 4 / 100) / 2)
    assert (pooled.sign_test.b, pooled.sign_test.c) == (14, 6)
    assert pooled.missing_lower == pytest.approx(pooled.mover.lower)
    assert set(evidence.pooled) == set(ArmRole) - {ArmRole.BASELINE}


def test_a_role_that_one_task_lacks_is_not_pooled_but_known_to_have_run() -> None:
    empty = paired_table("two", 0, 0, n=0, role=ArmRole.GROSS_CONTROL, neither=400)
    evidence = evidence_of(task_tables("one"), task_tables("two", {ArmRole.GROSS_CONTROL: empty}))
    assert ArmRole.GROSS_CONTROL in evidence.roles_run
    assert ArmRole.GROSS_CONTROL not in evidence.pooled
    assert ArmRole.GROSS_CONTROL not in evidence.tasks[1].comparisons


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


def test_graded_repeated_and_clustered_scores_are_refused_by_task() -> None:
    table = paired_table("sums", 1, 1, n=10)
    repeated = np.tile(table.baseline, (1, 2))
    for bad, message in (
        (replace(table, baseline=table.baseline * 0.5), "graded"),
        (replace(table, baseline=repeated, candidate=repeated), "repeated"),
        (replace(table, cluster_ids=("c",) * 10), "cluster"),
    ):
        with pytest.raises(EquipoiseError, match=rf"task 'sums', B against A1.*{message}"):
            compare_arms(bad, 0.05, 0.05)


def test_a_task_without_its_candidate_is_refused_by_name() -> None:
    with pytest.raises(EquipoiseError, match="task 'one'"):
        evidence_of(task_tables("one", {ArmRole.CANDIDATE: None}))
    with pytest.raises(EquipoiseError, match="no accuracy task"):
        evidence_of()
