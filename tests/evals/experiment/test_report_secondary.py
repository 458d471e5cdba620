"""From what was explored to what is told: every number arrives, and a grader that does not fit is named."""

import math
from dataclasses import replace

import numpy as np
import pytest
from paired_arms import evidence_of, paired_table, task_tables

from equipoise.evals.evidence import SuiteEvidence
from equipoise.evals.experiment.report_secondary import secondary_report
from equipoise.evals.statistics.tango import tango_test
from equipoise.evals.types import ArmAnswers, ArmRole, PairedTable
from equipoise.reports.secondary import Secondary

N = 400


def flags(count: int) -> np.ndarray:
    return (np.arange(N) >= N - count)[:, None]


def answers(unextracted: int = 0, loops: int = 0, tokens: float = 10.0) -> ArmAnswers:
    lengths = np.full((N, 1), tokens) + (np.arange(N) % 7)[:, None]
    return ArmAnswers(completion_tokens=lengths, unextracted=flags(unextracted), degenerate=flags(loops))


def evidence(table: PairedTable) -> SuiteEvidence:
    return evidence_of(task_tables("one", {ArmRole.CANDIDATE: table}), task_tables("two"))


def told(table: PairedTable) -> Secondary:
    secondary = secondary_report(evidence(table))
    assert secondary is not None
    return secondary


def table(**more: object) -> PairedTable:
    made = paired_table("one", 4, 2, candidate_truncated=6)
    return replace(
        made,
        baseline_answers=answers(unextracted=2),
        candidate_answers=answers(unextracted=9, loops=7, tokens=12.0),
        **more,  # type: ignore[arg-type]
    )


def test_every_endpoint_of_the_candidate_is_a_row() -> None:
    rows = {(r.task, r.endpoint): r for r in told(table()).endpoints}
    assert list(rows) == [
        ("one", "truncated"),
        ("one", "not extracted"),
        ("one", "loop"),
        ("two", "truncated"),
    ]
    extracted = rows["one", "not extracted"]
    assert (extracted.baseline, extracted.candidate, extracted.candidate_only) == (2, 9, 7)
    assert extracted.p == pytest.approx(2 * 0.5**7)
    assert extracted.p_adjusted is not None
    assert extracted.p_adjusted > extracted.p
    assert extracted.examples == tuple(f"one-{i}" for i in range(391, 396))
    assert extracted.candidate_rate == 9 / 400
    assert rows["one", "truncated"].p == pytest.approx(2 * 0.5**6)


def test_items_that_ended_in_both_arms_are_analysed_again() -> None:
    one, two = told(table()).completed
    expected = tango_test(4, 2, 394, margin=0.05)
    assert (one.task, one.n, one.delta) == ("one", 394, expected.delta)
    assert one.interval is not None
    assert (one.interval.lo, one.interval.hi) == pytest.approx((expected.lower, expected.upper))
    assert (two.task, two.n) == ("two", 400)


def test_lengths_say_what_is_not_known_and_why() -> None:
    (row,) = told(table()).lengths
    assert row.ratio == pytest.approx(row.candidate_mean / row.baseline_mean)  # type: ignore[operator]
    assert row.interval is not None
    assert (row.n, row.ended_n) == (400, 394)
    same = replace(table(), candidate_answers=answers())
    (row,) = told(same).lengths
    assert (row.ratio, row.p, row.interval) == (1.0, 1.0, None)
    assert "no variation" in row.undefined["interval"]


def test_subgroups_of_the_candidate_are_told_with_their_adjusted_p() -> None:
    secondary = told(table(strata={"subject": ("law",) * 200 + ("art",) * 195 + ("tax",) * 5}))
    assert [(r.stratum, r.label, r.n) for r in secondary.subgroups] == [
        ("subject", "art", 195),
        ("subject", "law", 200),
    ]
    art, law = secondary.subgroups
    assert law.p == pytest.approx(2 * 0.5**4)
    assert law.p_adjusted == pytest.approx(4 * 0.5**4)
    assert art.delta == pytest.approx(2 / 195)
    assert secondary.subgroups_too_small == 1


def test_a_grader_that_finds_nothing_in_the_baseline_is_named() -> None:
    assert told(table()).warnings == ()
    at_limit = replace(table(), baseline_answers=answers(unextracted=40))
    assert told(at_limit).warnings == ()
    (warning,) = told(replace(table(), baseline_answers=answers(unextracted=41))).warnings
    assert warning.startswith("one: the grader found nothing in 10.2% of the baseline's answers")


def test_a_baseline_with_nothing_right_is_named() -> None:
    wrong = paired_table("one", 0, 3, baseline_right=0)
    (warning,) = told(wrong).warnings
    assert warning.startswith("one: the baseline has nothing right")


def test_nothing_is_told_where_nothing_was_explored() -> None:
    assert secondary_report(replace(evidence(table()), exploration=None)) is None


def test_an_arm_without_pairs_has_no_rows() -> None:
    nothing = paired_table("one", 0, 0, n=0, neither=400)
    secondary = told(nothing)
    assert {r.task for r in secondary.endpoints} == {"two"}
    assert [r.task for r in secondary.completed] == ["two"]


def test_no_number_is_invented_for_a_subgroup_without_limits() -> None:
    # one cluster alone: an estimate, but nothing to make limits of
    one_cluster = table(strata={"s": ("a",) * 200 + ("b",) * 200}, cluster_ids=("c",) * 200 + ("d",) * 200)
    for row in told(one_cluster).subgroups:
        assert row.interval is None or all(
            x is None or math.isfinite(x) for x in (row.interval.lo, row.interval.hi)
        )
        assert row.delta is not None


def test_small_losses_over_all_tasks_are_told() -> None:
    strata, trend = told(table(prompt_tokens=np.arange(float(N)) + 1.0)).trends
    assert (strata.name, strata.n, trend.name, trend.n) == (
        "tasks by length of prompt",
        800,
        "longer prompts",
        400,
    )
    assert strata.strata == 10  # nine lengths of one, and two
    assert trend.unknown == 400
    assert trend.slope is not None
    flat = told(table(prompt_tokens=np.full(N, 9.0))).trends[1]
    assert flat.slope is None
    assert "same score" in flat.undefined["slope"]
    assert len(told(table()).trends) == 1
