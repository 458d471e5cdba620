"""Bad scores are refused by arm, item and repeat, with what to do about them."""

import math
from typing import Any

import numpy as np
import pytest

from equipoise.evals.statistics.bootstrap_t import bootstrap_t
from equipoise.evals.statistics.cluster import cluster_t
from equipoise.evals.statistics.fixed_benchmark import fixed_benchmark
from equipoise.evals.statistics.primary import difference_test, estimate_delta
from equipoise.evals.statistics.scores import item_difference, paired_scores
from equipoise.evals.statistics.sign_flip import sign_flip_test

GOOD = [[0.0, 1.0], [1.0, 1.0], [0.5, 0.0]]
BAD: list[tuple[Any, Any, str]] = [
    ([[0, 1], [1, math.nan], [0, 0]], GOOD, "baseline: the score of item 1, repeat 1 is nan; exclude"),
    (GOOD, [[0, 1], [1, 1], [1.5, 0]], "candidate: the score of item 2, repeat 0 is 1.5; rescale"),
    (GOOD, [[0, 1], [1, -0.1], [1, 0]], "candidate: the score of item 1, repeat 1 is -0.1; rescale"),
    (GOOD, [[0, 1], [1, math.inf], [1, 0]], "candidate: the score of item 1, repeat 1 is inf"),
    ([], [], "baseline: need at least one item"),
    (GOOD, np.empty((3, 0)), "candidate: need at least one item with one score"),
    (GOOD, GOOD[:2], "baseline has 3 items and candidate 2: pair them by item id"),
    (GOOD, [[0, 1], [1], [1, 0]], "candidate: item 1 has 1 repeats and item 0 has 2; ask the missing"),
    (GOOD, [["a", "b"], ["c", "d"], ["e", "f"]], "candidate: scores must be numbers"),
    (GOOD, np.zeros((3, 2, 2)), r"candidate: scores need shape \[n\] or \[n, repeats\]"),
]


@pytest.mark.parametrize(("baseline", "candidate", "message"), BAD)
def test_bad_scores_are_refused_by_every_analysis(baseline: Any, candidate: Any, message: str) -> None:
    rng = np.random.default_rng(1)
    with pytest.raises(ValueError, match=message):
        paired_scores(baseline, candidate)
    with pytest.raises(ValueError, match=message):
        bootstrap_t(baseline, candidate, margin=0.05, rng=rng)
    with pytest.raises(ValueError, match=message):
        fixed_benchmark(baseline, candidate, margin=0.05)
    with pytest.raises(ValueError, match=message):
        estimate_delta(baseline, candidate, margin=0.05, alpha=0.05, rng=rng)
    with pytest.raises(ValueError, match=message):
        difference_test(baseline, candidate, rng=rng)


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ([0.0, math.nan, 0.1], "difference of item 1 is nan"),
        ([0.0, 0.2, -1.5], "difference of item 2 is -1.5"),
        ([], r"shape \[n\] with n >= 1"),
        ([[0.0, 0.1]], r"shape \[n\] with n >= 1"),
    ],
)
def test_bad_differences_are_refused_by_item(difference: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sign_flip_test(difference, rng=np.random.default_rng(1))
    with pytest.raises(ValueError, match=message):
        cluster_t(difference, ["a", "b", "c"][: len(difference)], margin=0.05)


@pytest.mark.parametrize(
    ("margin", "alpha"), [(0.0, 0.05), (1.0, 0.05), (0.05, 0.0), (0.05, 0.5), (math.nan, 0.05)]
)
def test_margin_and_alpha_out_of_range_are_refused(margin: float, alpha: float) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        bootstrap_t(GOOD, GOOD, margin=margin, alpha=alpha, rng=np.random.default_rng(1))
    with pytest.raises(ValueError, match="must lie in"):
        fixed_benchmark(GOOD, GOOD, margin=margin, alpha=alpha)
    with pytest.raises(ValueError, match="must lie in"):
        cluster_t([0.0, 0.1], ["a", "b"], margin=margin, alpha=alpha)


def test_single_scores_and_truth_values_are_taken_as_one_repeat() -> None:
    base, cand = paired_scores(np.array([True, False]), [0, 1])
    assert base.tolist() == [[1.0], [0.0]]
    assert item_difference(base, cand).tolist() == [-1.0, 1.0]


def test_equal_differences_reached_along_other_roundings_are_equal() -> None:
    third = item_difference(np.array([[1.0, 1.0, 0.0]]), np.array([[1.0, 1.0, 1.0]]))
    again = item_difference(np.array([[0.0, 0.0, 0.0]]), np.array([[1.0, 0.0, 0.0]]))
    assert 1 - 2 / 3 != 1 / 3  # what plain subtraction would give
    assert third == again
