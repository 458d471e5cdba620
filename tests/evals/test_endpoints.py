"""Secondary endpoints: each is paired, none can be known without its data, and none is tested alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
from paired_arms import paired_table

from equipoise.evals.endpoints import PairedEndpoint, TaskEndpoints, adjusted, task_endpoints
from equipoise.evals.statistics.holm import benjamini_hochberg
from equipoise.evals.statistics.length_ratio import length_ratio
from equipoise.evals.statistics.mcnemar import McNemarResult, mcnemar_test
from equipoise.evals.statistics.sign_flip import SignFlipResult, sign_flip_test
from equipoise.evals.types import ArmAnswers, PairedTable


def flags(n: int, *rows: int) -> np.ndarray:
    found = np.zeros((n, 1), dtype=np.bool_)
    found[list(rows)] = True
    return found


def tokens(n: int, seed: int) -> np.ndarray:
    return np.ceil(np.random.default_rng(seed).lognormal(4.0, 0.5, (n, 1)))


def table(n: int = 40) -> PairedTable:
    return replace(
        paired_table("t", 2, 1, n=n, candidate_truncated=6),
        baseline_answers=ArmAnswers(
            completion_tokens=tokens(n, 1), unextracted=flags(n, 3), degenerate=flags(n)
        ),
        candidate_answers=ArmAnswers(
            completion_tokens=tokens(n, 2), unextracted=flags(n, 3, 4, 5), degenerate=flags(n, *range(9, 16))
        ),
    )


def found(t: PairedTable, **more) -> TaskEndpoints:
    endpoints = task_endpoints(t, rng=np.random.default_rng(1), **more)
    assert endpoints is not None
    return endpoints


def by_name(endpoints: TaskEndpoints) -> dict[str, PairedEndpoint]:
    return {e.endpoint: e for e in endpoints.paired}


def test_each_fault_is_counted_in_both_arms_and_tested_by_its_pairs() -> None:
    e = by_name(found(table()))
    assert list(e) == ["truncation", "extraction failure", "degenerate repetition"]
    assert [(x.baseline, x.candidate, x.baseline_only, x.candidate_only) for x in e.values()] == [
        (0, 6, 0, 6),
        (1, 3, 0, 2),
        (0, 7, 0, 7),
    ]
    for x, b in zip(e.values(), (6, 2, 7), strict=True):
        assert isinstance(x.test, McNemarResult)
        assert x.test == mcnemar_test(b, 0)
        assert (x.baseline_answers, x.candidate_answers, x.n) == (40, 40, 40)
    assert e["extraction failure"].candidate_rate == 3 / 40


def test_examples_name_the_first_five_items_of_the_candidate_alone() -> None:
    e = by_name(found(table()))
    assert e["extraction failure"].examples == ("t-4", "t-5")
    assert e["degenerate repetition"].examples == ("t-9", "t-10", "t-11", "t-12", "t-13")


def test_what_is_not_known_is_no_endpoint() -> None:
    bare = found(paired_table("t", 2, 1, n=40))
    assert list(by_name(bare)) == ["truncation"]
    assert bare.length is None
    half = replace(table(), baseline_answers=ArmAnswers(degenerate=flags(40)))
    assert list(by_name(found(half))) == ["truncation", "degenerate repetition"]
    assert found(half).length is None
    assert task_endpoints(paired_table("t", 0, 0, n=0), rng=np.random.default_rng(1)) is None


def test_the_primary_test_of_truncation_is_not_made_twice() -> None:
    test = mcnemar_test(6, 0)
    assert by_name(found(table(), truncation=test))["truncation"].test is test


def test_repeats_are_rates_of_an_item_and_clusters_flip_together() -> None:
    rng = np.random.default_rng(5)
    base, cand = rng.random((40, 4)) < 0.1, rng.random((40, 4)) < 0.3
    repeated = replace(
        table(),
        baseline=np.ones((40, 4)),
        candidate=np.ones((40, 4)),
        baseline_truncated=base,
        candidate_truncated=cand,
    )
    e = by_name(found(repeated))["truncation"]
    assert (e.baseline, e.candidate, e.baseline_answers) == (base.sum(), cand.sum(), 160)
    assert isinstance(e.test, SignFlipResult)
    assert e.test.lost - e.test.gained == pytest.approx((cand.sum() - base.sum()) / 4)
    assert e.candidate_only == int(np.sum(cand.any(axis=1) & ~base.any(axis=1)))
    clustered = by_name(found(replace(table(), cluster_ids=("c", "d") * 20)))["degenerate repetition"]
    difference = -flags(40, *range(9, 16))[:, 0].astype(float)
    expected = sign_flip_test(difference, rng=np.random.default_rng(1), clusters=["c", "d"] * 20)
    assert clustered.test.two_sided_p == expected.two_sided_p == 0.5


def test_lengths_are_compared_over_all_items_and_over_those_that_ended() -> None:
    t = table()
    length = found(t).length
    assert length is not None
    base, cand = tokens(40, 1), tokens(40, 2)
    assert length.all_items == length_ratio(base, cand)
    assert length.completed == length_ratio(base[:34], cand[:34])
    assert length.unknown == 0
    cand[7] = math.nan
    answers = replace(t.candidate_answers, completion_tokens=cand)
    length = found(replace(t, candidate_answers=answers)).length
    assert length is not None
    assert (length.unknown, length.all_items.n) == (1, 39)
    all_cut = replace(t, candidate_truncated=np.ones((40, 1), dtype=np.bool_))
    assert found(all_cut).length.completed is None  # type: ignore[union-attr]


def test_p_values_are_adjusted_over_all_tasks_and_endpoints() -> None:
    one, other = found(table()), found(replace(paired_table("u", 2, 1, n=40), task="u"))
    both = adjusted([one, other])
    assert one.length is not None
    raw = [*(e.test.two_sided_p for e in one.paired), one.length.all_items.two_sided_p, 1.0]
    expected = benjamini_hochberg(raw).adjusted
    assert both[0].length is not None
    got = [*(e.adjusted_p for e in both[0].paired), both[0].length.adjusted_p, both[1].paired[0].adjusted_p]
    assert got == pytest.approx(expected)
    assert all(math.isnan(e.adjusted_p) for e in one.paired)


def test_a_length_without_a_test_joins_no_family() -> None:
    doubled = replace(
        table(),
        baseline_answers=ArmAnswers(completion_tokens=np.full((40, 1), 10.0)),
        candidate_answers=ArmAnswers(completion_tokens=np.full((40, 1), 20.0)),
    )
    (task,) = adjusted([found(doubled)])
    assert task.length is not None
    assert task.length.all_items.ratio == 2.0
    assert math.isnan(task.length.adjusted_p)
    assert task.paired[0].adjusted_p == task.paired[0].test.two_sided_p
    assert adjusted([]) == ()
