"""A loss that grows with the prompt and a small loss that recurs are found; the null is the one stated."""

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from equipoise.evals.statistics.sign_flip import sign_flip_test
from equipoise.evals.statistics.trend import stratified_sign_test, trend_test

FloatArray = NDArray[np.float64]


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def losses(g: np.random.Generator, loss: FloatArray, discordance: float) -> FloatArray:
    """Right-or-wrong differences with the given discordance and loss per item."""
    u = g.random(loss.size)
    worse = (discordance + loss) / 2
    return np.where(u < worse, -1.0, np.where(u < discordance, 1.0, 0.0))


def test_trend_p_values_equal_enumeration_over_clusters() -> None:
    d = np.array([0.5, -0.25, 0.25, -0.5, -0.75, 0.25, -1.0, 0.0])
    length = np.array([10, 20, 20, 35, 60, 61, 90, 200])
    labels = np.array([0, 0, 1, 2, 2, 3, 4, 4])
    rank = np.array([1, 2.5, 2.5, 4, 5, 6, 7, 8]) - 4.5
    units = np.bincount(labels, weights=rank * d)
    sums = np.array([(units * signs).sum() for signs in product((-1, 1), repeat=5)])
    ours = trend_test(d, length, rng=rng(), clusters=labels)
    assert ours.exact and ours.units == 5
    assert ours.growing_loss_p == pytest.approx(np.mean(sums <= units.sum() + 1e-9))
    assert ours.two_sided_p == pytest.approx(np.mean(np.abs(sums) >= abs(units.sum()) - 1e-9))
    slope = np.polyfit(rank, d, 1)[0]
    assert ours.slope == pytest.approx(slope * 7)


def test_a_loss_that_grows_with_the_prompt_is_found_where_the_mean_is_not() -> None:
    g = rng(2)
    length = g.integers(100, 30_000, size=2_000)
    d = losses(g, 0.05 * (length / 15_000 - 1), 0.08)  # gains when short, loses when long, none on average
    assert sign_flip_test(d, rng=g).two_sided_p > 0.05
    ours = trend_test(d, length, rng=g)
    assert ours.growing_loss_p < 0.001 and ours.growing_gain_p > 0.99
    assert -0.15 < ours.slope < -0.05


def test_only_the_order_of_the_score_matters() -> None:
    g = rng(3)
    length = g.integers(1, 5_000, size=100).astype(float)
    d = losses(g, np.full(100, 0.05), 0.2)
    assert trend_test(d, length, rng=rng(9)) == trend_test(d, np.log(length), rng=rng(9))


def test_swapping_the_arms_swaps_growing_loss_and_growing_gain() -> None:
    g = rng(4)
    d = np.round(g.uniform(-0.5, 0.4, size=16), 3)
    there, back = trend_test(d, range(16), rng=g), trend_test(-d, range(16), rng=g)
    assert back.slope == pytest.approx(-there.slope)
    assert back.growing_loss_p == pytest.approx(there.growing_gain_p)


def test_a_constant_loss_alone_is_no_trend() -> None:
    g, runs = rng(5), 400
    length = np.arange(300)
    rejected = np.mean(
        [
            trend_test(losses(g, np.full(300, 0.15), 0.25), length, rng=g, resamples=499).two_sided_p <= 0.05
            for _ in range(runs)
        ]
    )
    assert rejected <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)


def test_equal_scores_give_no_slope_and_a_reason() -> None:
    ours = trend_test([0.5, -0.5, 0.25], [7, 7, 7], rng=rng())
    assert np.isnan(ours.slope) and ours.two_sided_p == 1.0
    assert "same score" in ours.reason


def test_a_missing_score_is_refused_by_item() -> None:
    with pytest.raises(ValueError, match="score of item 1 is nan; leave the item out"):
        trend_test([0.1, 0.2], [5.0, np.nan], rng=rng())
    with pytest.raises(ValueError, match="one score per item"):
        trend_test([0.1, 0.2], [5.0], rng=rng())


def test_a_small_loss_that_recurs_is_found_where_no_task_finds_it() -> None:
    g = rng(6)
    d = [losses(g, np.full(400, 0.015), 0.05) for _ in range(12)]
    task = np.repeat([f"task-{k}" for k in range(12)], 400)
    single = [sign_flip_test(x, rng=g).two_sided_p for x in d]
    assert min(single) * 12 > 0.05  # no alarm, Bonferroni over tasks
    ours = stratified_sign_test(np.concatenate(d), task, rng=g)
    assert ours.loss_p < 0.005
    assert ours.strata == 12 and ours.strata_losing > ours.strata_gaining
    assert ours.statistic < -2


def test_one_stratum_is_the_plain_sign_flip_test() -> None:
    d = np.round(rng(7).uniform(-0.5, 0.4, size=19), 3)
    ours, plain = stratified_sign_test(d, ["t"] * 19, rng=rng()), sign_flip_test(d, rng=rng())
    assert ours.two_sided_p == pytest.approx(plain.two_sided_p)
    assert (ours.lost, ours.gained) == (plain.lost, plain.gained)
    assert ours.statistic == pytest.approx(d.sum() / np.sqrt(np.square(d).sum()))


def test_stratified_p_values_equal_enumeration_with_a_cluster_over_two_strata() -> None:
    d = np.array([0.5, -0.25, -0.5, 1.0, -1.0, -0.5, 0.25])
    stratum = ["s", "s", "s", "l", "l", "l", "l"]
    labels = np.array([0, 0, 1, 1, 2, 3, 3])
    short = np.sqrt(0.25**2 + 0.5**2)  # of the cluster sums .25 and -.5
    long = np.sqrt(1.0**2 + 1.0**2 + 0.25**2)  # of 1, -1 and -.25
    units = np.array([0.25 / short, -0.5 / short + 1.0 / long, -1.0 / long, -0.25 / long])
    sums = np.array([(units * signs).sum() for signs in product((-1, 1), repeat=4)])
    ours = stratified_sign_test(d, stratum, rng=rng(), clusters=labels)
    assert ours.units == 4 and ours.exact
    assert ours.statistic == pytest.approx(units.sum() / np.sqrt(2))
    assert ours.loss_p == pytest.approx(np.mean(sums <= units.sum() + 1e-9))
    assert ours.two_sided_p == pytest.approx(np.mean(np.abs(sums) >= abs(units.sum()) - 1e-9))


def test_a_noisy_task_does_not_drown_the_others() -> None:
    g = rng(8)
    noisy = losses(g, np.zeros(2_000), 0.5)
    quiet = [losses(g, np.full(400, 0.02), 0.03) for _ in range(5)]
    d = np.concatenate([noisy, *quiet])
    task = np.repeat(range(6), [2_000] + [400] * 5)
    assert stratified_sign_test(d, task, rng=g).loss_p < 0.01
    assert sign_flip_test(d, rng=g).loss_p > 0.05


def test_strata_without_any_difference_do_not_count() -> None:
    d = np.array([0.0] * 50 + [-1.0, -1.0, 1.0, -1.0])
    ours = stratified_sign_test(d, ["silent"] * 50 + ["speaks"] * 4, rng=rng())
    assert ours.statistic == pytest.approx(-1.0)
    assert (ours.strata, ours.strata_losing, ours.strata_gaining) == (2, 1, 0)
    none = stratified_sign_test(np.zeros(4), ["a", "a", "b", "b"], rng=rng())
    assert np.isnan(none.statistic) and none.two_sided_p == 1.0


def test_a_missing_stratum_is_refused_by_item() -> None:
    with pytest.raises(ValueError, match=r"item 1 has no stratum .* give it the name of its task"):
        stratified_sign_test([0.1, 0.2], ["a", None], rng=rng())
