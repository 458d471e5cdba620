"""Length ratio: the published ratio estimator, and no certainty out of nothing."""

import math

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from equipoise.evals.statistics.length_ratio import length_ratio


def lengths(seed: int, n: int, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    difficulty = rng.lognormal(5.0, 0.7, n)
    return (
        np.ceil(difficulty * rng.lognormal(0, 0.3, n)),
        np.ceil(factor * difficulty * rng.lognormal(0, 0.3, n)),
    )


def test_the_interval_is_the_ratio_estimators_of_the_textbook() -> None:
    baseline, candidate = lengths(1, 150, 1.2)
    found = length_ratio(baseline, candidate)
    ratio = candidate.mean() / baseline.mean()
    # Cochran (6.11): variance of the ratio from the residuals candidate - ratio * baseline
    error = np.std(candidate - ratio * baseline, ddof=1) / math.sqrt(150) / baseline.mean()
    half = stats.t.ppf(0.975, 149) * error / ratio
    assert found.ratio == pytest.approx(ratio, rel=1e-12)
    assert (found.lower, found.upper) == pytest.approx((ratio * math.exp(-half), ratio * math.exp(half)))
    assert found.two_sided_p == pytest.approx(2 * stats.t.sf(abs(math.log(ratio)) / (error / ratio), 149))


def test_the_geometric_ratio_is_a_paired_t_interval_of_the_logs() -> None:
    baseline, candidate = lengths(2, 60)
    found = length_ratio(baseline, candidate, level=0.9)
    logs = stats.ttest_rel(np.log(candidate), np.log(baseline)).confidence_interval(0.9)
    assert (found.geometric_lower, found.geometric_upper) == pytest.approx(
        (math.exp(logs.low), math.exp(logs.high))
    )


def test_clusters_widen_the_interval_as_a_cluster_robust_regression_does() -> None:
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(25), 8)
    baseline, candidate = lengths(3, 200)
    candidate = candidate * np.repeat(rng.lognormal(0, 0.4, 25), 8)
    found = length_ratio(baseline, candidate, clusters=clusters)
    e = candidate / candidate.mean() - baseline / baseline.mean()
    fit = sm.OLS(e, np.ones((200, 1))).fit(
        cov_type="cluster", cov_kwds={"groups": clusters, "use_correction": False}
    )
    half = stats.t.ppf(0.975, 24) * fit.bse[0] * math.sqrt(25 / 24)
    assert math.log(found.upper / found.ratio) == pytest.approx(half)
    assert found.clusters == 25
    alone = length_ratio(baseline, candidate)
    assert found.upper - found.lower > 1.3 * (alone.upper - alone.lower)
    assert length_ratio(baseline, candidate, clusters=np.arange(200)) == alone


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(1_000):
        difficulty = rng.lognormal(5.0, 0.7, 100)
        found = length_ratio(
            difficulty * rng.lognormal(0, 0.3, 100), 1.1 * difficulty * rng.lognormal(0, 0.3, 100)
        )
        hits += found.lower < 1.1 < found.upper
    assert 0.92 <= hits / 1_000 <= 0.97


def test_repeats_count_as_one_item() -> None:
    baseline, candidate = lengths(5, 40)
    single = length_ratio(baseline, candidate)
    tripled = length_ratio(np.tile(baseline[:, None], 3), candidate[:, None])
    assert tripled == single


def test_identical_answers_have_a_ratio_of_one_and_no_interval_of_width_zero() -> None:
    found = length_ratio([5, 0, 9], [5, 0, 9])
    assert (found.ratio, found.geometric_ratio, found.two_sided_p) == (1.0, 1.0, 1.0)
    assert math.isnan(found.lower)
    assert math.isnan(found.upper)
    assert "no variation" in found.reason
    doubled = length_ratio([5, 7, 9], [10, 14, 18])
    assert doubled.ratio == 2.0
    assert math.isnan(doubled.lower)


def test_empty_answers_are_lengths_of_zero_and_only_leave_the_geometric_mean() -> None:
    found = length_ratio([10, 20, 30, 40], [0, 25, 0, 35])
    assert found.ratio == pytest.approx(60 / 100)
    assert found.n_geometric == 2
    assert found.geometric_ratio == pytest.approx(math.sqrt(25 / 20 * 35 / 40))
    assert found.reason == ""


@pytest.mark.parametrize(
    ("baseline", "candidate", "ratio", "reason"),
    [
        ([0, 0], [3, 4], math.nan, "baseline's answers are all empty"),
        ([3, 4], [0, 0], 0.0, "candidate's answers are all empty"),
        ([0, 0], [0, 0], math.nan, "baseline's answers are all empty"),
        ([3], [4], 4 / 3, "alone"),
    ],
)
def test_what_has_no_ratio_says_why(
    baseline: list[float], candidate: list[float], ratio: float, reason: str
) -> None:
    found = length_ratio(baseline, candidate)
    assert found.ratio == pytest.approx(ratio, nan_ok=True)
    assert math.isnan(found.lower)
    assert reason in found.reason


@given(
    st.lists(
        st.tuples(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 3)), min_size=1, max_size=30
    )
)
def test_no_lengths_break_it_and_swapping_the_arms_inverts_it(rows: list[tuple[int, int, int]]) -> None:
    one, other, clusters = (np.array(x) for x in zip(*rows, strict=True))
    there, back = length_ratio(one, other, clusters=clusters), length_ratio(other, one, clusters=clusters)
    for value in (there.ratio, there.lower, there.upper, there.geometric_ratio, there.two_sided_p):
        assert math.isfinite(value) or there.reason
    if there.ratio > 0 and back.ratio > 0:
        assert there.ratio * back.ratio == pytest.approx(1.0)
        assert there.two_sided_p == pytest.approx(back.two_sided_p, nan_ok=True, abs=1e-9)
    if not math.isnan(there.lower):
        assert there.lower <= there.ratio <= there.upper
        assert back.upper == pytest.approx(1.0 / there.lower)


@pytest.mark.parametrize(
    ("baseline", "candidate", "clusters", "message"),
    [
        ([], [], None, "n > 0"),
        ([1, 2], [1], None, "2 and 1 items"),
        ([1, -2], [1, 2], None, "baseline: a length is negative"),
        ([1, 2], [1, math.nan], None, "candidate: a length is negative or not a number"),
        ([1, 2], [1, 2], ["a"], "one label an item"),
    ],
)
def test_bad_lengths_are_refused(baseline, candidate, clusters, message) -> None:
    with pytest.raises(ValueError, match=message):
        length_ratio(baseline, candidate, clusters=clusters)
