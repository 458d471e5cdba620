"""Subgroups: found where they are, adjusted over all of them, and never a decision."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paired_arms import paired_table

from equipoise.evals.statistics.holm import benjamini_hochberg
from equipoise.evals.statistics.mcnemar import McNemarResult, mcnemar_test
from equipoise.evals.statistics.tango import TangoResult, tango_test
from equipoise.evals.subgroups import LENGTH_STRATUM, length_buckets, subgroups
from equipoise.evals.types import PairedTable


def found(*tables: PairedTable):
    return subgroups([(t, 0.05) for t in tables], alpha=0.05, rng=np.random.default_rng(1))


def test_each_label_is_analysed_as_if_it_were_the_task() -> None:
    # items 0..11 lose, all of them law
    table = replace(
        paired_table("t", 12, 0, n=100), strata={"subject": ("law",) * 40 + ("art",) * 55 + ("",) * 5}
    )
    art, law = found(table).rows
    assert [(r.task, r.stratum, r.label, r.n) for r in (art, law)] == [
        ("t", "subject", "art", 55),
        ("t", "subject", "law", 40),
    ]
    assert isinstance(law.estimate, TangoResult)
    assert law.estimate == tango_test(12, 0, 40, margin=0.05)
    assert isinstance(law.test, McNemarResult)
    assert law.test == mcnemar_test(12, 0)
    assert (law.baseline_accuracy, law.candidate_accuracy) == (1.0, 28 / 40)
    assert art.estimate.delta == 0.0


def test_p_values_are_adjusted_over_every_subgroup_of_every_task() -> None:
    one = replace(paired_table("one", 12, 0, n=100), strata={"s": ("a",) * 50 + ("b",) * 50})
    two = replace(paired_table("two", 5, 0, n=100), strata={"s": ("a",) * 50 + ("b",) * 50})
    rows = found(one, two).rows
    expected = benjamini_hochberg([r.test.two_sided_p for r in rows]).adjusted
    assert [r.adjusted_p for r in rows] == pytest.approx(expected)
    assert rows[0].adjusted_p == pytest.approx(4 * mcnemar_test(12, 0).exact_p)


def test_prompts_are_grouped_by_powers_of_two() -> None:
    lengths = np.array([127.0] * 30 + [128.0] * 20 + [255.0] * 20 + [256.0] * 29 + [np.nan])
    rows = found(replace(paired_table("t", 3, 1, n=100), prompt_tokens=lengths)).rows
    assert [(r.stratum, r.label, r.n) for r in rows] == [
        (LENGTH_STRATUM, "64-127", 30),
        (LENGTH_STRATUM, "128-255", 40),
        (LENGTH_STRATUM, "256-511", 29),
    ]


@given(st.integers(1, 2**40))
def test_a_bucket_holds_its_lengths(tokens: int) -> None:
    (k,) = length_buckets(np.array([float(tokens)])).tolist()
    assert 2**k <= tokens < 2 ** (k + 1)


def test_unknown_lengths_are_in_no_bucket() -> None:
    assert length_buckets(np.array([np.nan, 0.0, np.inf, 1.0])).tolist() == [-1, -1, -1, 0]


def test_small_subgroups_are_counted_and_undivided_tasks_have_none() -> None:
    table = replace(paired_table("t", 3, 1, n=30), strata={"s": ("a",) * 20 + ("b",) * 9 + ("c",)})
    result = found(table)
    assert [r.label for r in result.rows] == ["a"]
    assert result.too_small == 2
    undivided = replace(
        paired_table("t", 3, 1, n=30), strata={"s": ("a",) * 30}, prompt_tokens=np.full(30, 9.0)
    )
    assert found(undivided).rows == ()
    assert found().rows == ()


def test_repeats_and_clusters_are_analysed_by_their_own_methods() -> None:
    rng = np.random.default_rng(2)
    strata = {"s": ("a",) * 120 + ("b",) * 120}
    scores = (rng.random((240, 8)) < 0.7).astype(float), (rng.random((240, 8)) < 0.7).astype(float)
    table = replace(
        paired_table("t", 0, 0, n=240),
        baseline=scores[0],
        candidate=scores[1],
        strata=strata,
    )
    for row in found(table).rows:
        assert "bootstrap" in row.estimate.method
        assert "sign-flip" in row.test.method
        assert row.estimate.lower < row.estimate.delta < row.estimate.upper
    clustered = replace(
        paired_table("t", 9, 2, n=240), strata=strata, cluster_ids=tuple(str(i // 2) for i in range(240))
    )
    assert all("cluster" in row.test.method for row in found(clustered).rows)
