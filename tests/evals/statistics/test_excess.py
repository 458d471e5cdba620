"""Excess discordance over the baseline's own."""

import numpy as np
import pytest

from equipoise.evals.statistics.excess import excess_discordance


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_a_candidate_that_is_a_third_baseline_run_has_no_excess() -> None:
    p = rng().random(4000)
    runs = [np.random.default_rng(k).random(4000) < p for k in range(3)]
    result = excess_discordance(*runs, rng=rng())
    assert result.baseline_discordance > 0.2
    assert result.ci_lower < 0.0 < result.ci_upper
    assert abs(result.excess) < 0.03


def test_a_worse_candidate_has_the_excess_that_was_planted() -> None:
    base = rng().random(4000) < 0.8
    candidate = base ^ (np.random.default_rng(8).random(4000) < 0.1)
    result = excess_discordance(base, base, candidate, rng=rng())
    assert result.baseline_discordance == 0.0
    assert result.excess == result.candidate_discordance == pytest.approx(0.1, abs=0.015)
    assert result.ci_lower > 0.08


def test_interval_agrees_with_resampling_the_items_one_by_one() -> None:
    gen = rng()
    a1, a2, b = (gen.integers(0, 2, 150) for _ in range(3))
    result = excess_discordance(a1, a2, b, rng=rng(), resamples=20_000)
    per_item = ((a1 != b) + 1.0 * (a2 != b)) / 2 - 1.0 * (a1 != a2)
    means = per_item[gen.integers(0, 150, (20_000, 150))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    assert (result.ci_lower, result.ci_upper) == pytest.approx((low, high), abs=0.01)


def test_three_identical_runs_do_not_claim_certainty() -> None:
    same = np.ones(50, dtype=bool)
    result = excess_discordance(same, same, same, rng=rng())
    assert result.excess == 0.0
    assert result.ci_upper > 0.03
    assert "Tango" in result.method


def test_runs_of_unequal_length_or_none_are_refused() -> None:
    with pytest.raises(ValueError, match="one value per item"):
        excess_discordance(np.ones(3), np.ones(4), np.ones(3), rng=rng())
    with pytest.raises(ValueError, match="at least one item"):
        excess_discordance(np.ones(0), np.ones(0), np.ones(0), rng=rng())
