"""The fixed-benchmark estimate: its formula written out, its coverage, and what it refuses."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from equipoise.evals.statistics.fixed_benchmark import fixed_benchmark


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(2, 12), st.integers(2, 12), st.integers(0, 10**6))
def test_limits_follow_the_formula_written_out(n: int, k_a: int, k_b: int, seed: int) -> None:
    g = np.random.default_rng(seed)
    base, cand = g.integers(0, 2, (n, k_a)), g.integers(0, 2, (n, k_b))
    variance = 0.0
    for i in range(n):
        for row, k in ((base[i], k_a), (cand[i], k_b)):
            p = (row.sum() + 0.5) / (k + 1)
            variance += p * (1 - p) / (k - 1) / n**2
    delta = cand.mean() - base.mean()
    ours = fixed_benchmark(base, cand, margin=0.1)
    assert ours.delta == pytest.approx(delta, abs=1e-11)
    assert ours.standard_error == pytest.approx(math.sqrt(variance))
    assert ours.lower == pytest.approx(max(-1, delta - norm.ppf(0.95) * math.sqrt(variance)))
    assert (ours.noninferiority_p <= 0.05) == (ours.lower > -0.1)
    assert (ours.equivalence_p <= 0.05) == (ours.lower > -0.1 and ours.upper < 0.1)


def test_items_answered_always_alike_do_not_give_certainty() -> None:
    base = np.repeat([[0.0], [1.0]], 15, axis=0) * np.ones(8)
    ours = fixed_benchmark(base, base, margin=0.01)
    assert ours.standard_error > 0.01
    assert ours.lower < -0.01


def test_pass_rate_at_a_loss_of_the_margin_is_at_most_alpha() -> None:
    g, margin, runs = np.random.default_rng(5), 0.05, 1_500
    right = g.beta(0.8, 0.5, size=30) * (1 - 2 * margin) + 2 * margin
    worse = right - margin  # the same thirty items, every one of them worse by the margin
    passed = sum(
        fixed_benchmark(
            g.binomial(1, right[:, None], (30, 8)), g.binomial(1, worse[:, None], (30, 8)), margin=margin
        ).lower
        > -margin
        for _ in range(runs)
    )
    assert passed / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert passed > 0


def test_swapping_the_arms_mirrors_and_identical_repeats_still_count_as_repeats() -> None:
    g = np.random.default_rng(6)
    base, cand = g.integers(0, 2, (20, 4)), g.integers(0, 2, (20, 6))
    there, back = fixed_benchmark(base, cand, margin=0.1), fixed_benchmark(cand, base, margin=0.1)
    assert (back.lower, back.upper) == pytest.approx((-there.upper, -there.lower))
    assert (back.repeats_baseline, back.repeats_candidate) == (6, 4)


def test_the_result_says_what_it_is_about_and_that_graded_scores_are_bounded() -> None:
    g = np.random.default_rng(7)
    binary, graded = g.integers(0, 2, (30, 8)), g.random((30, 8))
    assert fixed_benchmark(binary, binary, margin=0.1).estimand == "these 30 items only"
    assert fixed_benchmark(binary, binary, margin=0.1).note == ""
    ours = fixed_benchmark(graded, graded, margin=0.1)
    assert "conservative" in ours.note
    spread = math.sqrt(2 * (graded.var(axis=1, ddof=1) / 8).sum()) / 30
    assert ours.standard_error > spread


@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_one_sample_an_item_is_refused_with_the_remedy(arm: str) -> None:
    scores = {"baseline": np.ones((9, 4)), "candidate": np.ones((9, 4))}
    scores[arm] = np.ones((9, 1))
    with pytest.raises(ValueError, match=f"{arm}: one sample an item .* at least twice"):
        fixed_benchmark(**scores, margin=0.1)
