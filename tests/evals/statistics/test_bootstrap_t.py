"""Bootstrap-t against a bootstrap written out row by row; its limits, p-values and fallbacks."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import multinomial

from equipoise.evals.statistics.bootstrap_t import bootstrap_t
from equipoise.evals.statistics.cluster import cluster_standard_error, cluster_t
from equipoise.evals.statistics.limits import Limits, with_effective_pairs
from equipoise.evals.statistics.tango import tango_test

FloatArray = NDArray[np.float64]


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def repeats(n: int, k_a: int, k_b: int, seed: int = 7) -> tuple[FloatArray, FloatArray]:
    """Right-or-wrong repeats of items from easy to hard."""
    g = rng(seed)
    easy = g.beta(0.8, 0.5, size=n)[:, None]
    return g.binomial(1, easy, (n, k_a)).astype(float), g.binomial(1, easy, (n, k_b)).astype(float)


def brute_force_limits(
    difference: FloatArray, index: NDArray[np.int_], resamples: int, g: np.random.Generator
) -> tuple[float, float]:
    """One-sided 95% limits by resampling clusters one at a time, as the textbook says it."""

    def mean_and_se(clusters: list[FloatArray]) -> tuple[float, float]:
        mean = sum(c.sum() for c in clusters) / sum(c.size for c in clusters)
        squares = sum((c - mean).sum() ** 2 for c in clusters)
        total = len(clusters)
        return mean, np.sqrt(total / (total - 1) * squares) / sum(c.size for c in clusters)

    clusters = [difference[index == k] for k in range(index.max() + 1)]
    mean, se = mean_and_se(clusters)
    pivots = []
    for _ in range(resamples):
        drawn, error = mean_and_se([clusters[k] for k in g.integers(0, len(clusters), len(clusters))])
        pivots.append((drawn - mean) / error if error > 1e-12 else np.sign(drawn - mean) * np.inf)
    low, high = np.quantile(pivots, [0.05, 0.95])
    return mean - high * se, mean - low * se


def guarded(
    difference: FloatArray, index: NDArray[np.int_], lower: float, upper: float
) -> tuple[float, float]:
    """No narrower than unseen units allow, nor (with clusters) than t: both written out."""
    units, delta, z2 = index.max() + 1, difference.mean(), 1.6448536269514722**2
    q = z2 / (units + z2)
    lower, upper = min(lower, delta - q * (1 + delta)), max(upper, delta + q * (1 - delta))
    if units < difference.size:
        t = cluster_t(difference, index, margin=0.1)
        lower, upper = min(lower, t.lower), max(upper, t.upper)
    return lower, upper


@pytest.mark.parametrize("kind", ["repeats", "graded", "unequal clusters"])
def test_limits_agree_with_a_bootstrap_written_out(kind: str) -> None:
    g = rng(11)
    base, cand = repeats(40, 3, 3)
    index = np.arange(40)
    if kind == "graded":
        base, cand = g.random((40, 1)) ** 2, g.random((40, 1)) ** 3
    elif kind == "unequal clusters":
        base, cand = repeats(60, 4, 2)
        index = np.minimum(g.geometric(0.12, size=60), 14) - 1
        index = np.unique(index, return_inverse=True)[1]
    difference = cand.mean(axis=1) - base.mean(axis=1)
    clusters = index if kind == "unequal clusters" else None
    ours = bootstrap_t(base, cand, margin=0.1, rng=g, clusters=clusters, resamples=40_000)
    lower, upper = brute_force_limits(difference, index, 6_000, g)
    lower, upper = guarded(difference, index, lower, upper)
    # Monte-Carlo error of the written-out quantiles: about .04 standard errors, more in a heavy tail.
    tolerance = (0.3 if kind == "unequal clusters" else 0.15) * ours.standard_error
    assert ours.lower == pytest.approx(lower, abs=tolerance)
    assert ours.upper == pytest.approx(upper, abs=tolerance)
    assert ours.standard_error == pytest.approx(cluster_standard_error(difference, index))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 40),
    st.sampled_from([(1, 1), (4, 4), (2, 5)]),
    st.integers(0, 10**6),
    st.sampled_from([0.01, 0.05, 0.1, 0.2]),
    st.sampled_from([199, 999, 1000]),
    st.booleans(),
)
def test_p_values_are_at_most_alpha_exactly_where_the_limits_hold(
    n: int, k: tuple[int, int], seed: int, alpha: float, resamples: int, clustered: bool
) -> None:
    base, cand = repeats(n, *k, seed=seed)
    clusters = [str(i % max(2, n // 3)) for i in range(n)] if clustered else None
    for margin in (0.05, 0.3):
        r = bootstrap_t(
            base, cand, margin=margin, alpha=alpha, rng=rng(seed), clusters=clusters, resamples=resamples
        )
        assert (r.noninferiority_p <= alpha) == (r.lower > -margin)
        assert (r.equivalence_p <= alpha) == (r.lower > -margin and r.upper < margin)
        assert -1.0 <= r.lower <= r.delta <= r.upper <= 1.0


def test_a_p_value_at_its_own_level_touches_the_margin() -> None:
    base, cand = repeats(150, 4, 4)
    at = bootstrap_t(base, cand, margin=0.04, rng=rng())
    assert 0.001 < at.noninferiority_p < 0.5
    limit = bootstrap_t(base, cand, margin=0.04, alpha=at.noninferiority_p, rng=rng()).lower
    just_under = bootstrap_t(base, cand, margin=0.04, alpha=at.noninferiority_p - 1e-4, rng=rng()).lower
    assert limit > -0.04 >= just_under


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_resample_without_spread_is_an_infinite_pivot_not_dropped(sign: int) -> None:
    # One item of thirty differs: (29/30)^30 = 36% of resamples miss it, have no spread and another mean.
    base, cand = np.full((30, 4), 0.5), np.full((30, 4), 0.5)
    cand[3, 0] += sign * 0.5
    r = bootstrap_t(base, cand, margin=0.01, rng=rng())
    tango = tango_test(0.125 * (sign < 0), 0.125 * (sign > 0), 30, margin=0.01)
    assert r.lower <= tango.lower < tango.upper <= r.upper, "dropped, they would leave a narrow limit"
    assert "too few units vary" in r.fallback
    assert r.noninferiority_p > 0.05


@pytest.mark.parametrize("clustered", [False, True])
def test_a_loss_on_one_item_of_thousands_allows_little_more_than_none(clustered: bool) -> None:
    base, labels = np.ones((2000, 8)), np.repeat(np.arange(1000), 2) if clustered else None
    for losing in range(5):
        cand = base.copy()
        cand[: 2 * losing : 2, 0] = 0.0
        r = bootstrap_t(base, cand, margin=0.01, rng=rng(), clusters=labels)
        assert r.noninferiority_p <= 0.05
        assert r.lower > -0.004 if clustered else r.lower > -0.002


@pytest.mark.parametrize(
    ("n", "margin", "lose", "gain"),
    [(133, 0.02, 0.0267, 0.0067), (150, 0.02, 0.0267, 0.0067), (300, 0.01, 0.0133, 0.0033)],
)
def test_repeats_that_all_agree_hold_the_size_of_single_answers(
    n: int, margin: float, lose: float, gain: float
) -> None:
    # Summed over all outcomes at a loss of the margin; resampled limits alone pass .076 to .10.
    passed = 0.0
    for b in range(10):
        for c in range(6):
            base, cand = np.ones((n, 8)), np.ones((n, 8))
            cand[:b], base[b : b + c] = 0.0, 0.0
            r = bootstrap_t(base, cand, margin=margin, rng=rng(), resamples=400)
            chance = multinomial.pmf([b, c, n - b - c], n, [lose, gain, 1.0 - lose - gain])
            passed += chance * (r.lower > -margin)
    assert 0.02 < passed < 0.055


def test_differences_of_one_size_have_the_score_limits_in_that_unit() -> None:
    d = np.array([-0.5] * 12 + [0.5] * 4 + [0.0] * 484)
    point = Limits(
        standard_error=float(d.std()) / np.sqrt(500),
        lower=float(d.mean()),
        upper=float(d.mean()),
        noninferiority_p=0.0,
        equivalence_p=0.0,
    )
    guarded = with_effective_pairs(point, d, margin=0.02, alpha=0.05)
    tango = tango_test(12, 4, 500, margin=0.04)
    assert (guarded.lower, guarded.upper) == pytest.approx((tango.lower / 2, tango.upper / 2))
    assert (guarded.noninferiority_p, guarded.equivalence_p) == pytest.approx(
        (tango.noninferiority_p, tango.equivalence_p)
    )


def test_identical_arms_are_not_certain_but_get_the_score_limits() -> None:
    base = repeats(198, 8, 8)[0]
    r = bootstrap_t(base, base, margin=0.01, rng=rng())
    tango = tango_test(0, 0, 198, margin=0.01)
    assert (r.lower, r.upper) == (tango.lower, tango.upper)
    assert r.noninferiority_p == tango.noninferiority_p > 0.05
    assert "fractional counts (lost 0, gained 0 of 198 items)" in r.fallback


def test_items_that_all_lose_alike_get_the_score_limits_of_fractional_counts() -> None:
    base, cand = np.ones((50, 4)), np.ones((50, 4))
    cand[:, 0] = 0.0
    r = bootstrap_t(base, cand, margin=0.05, rng=rng())
    assert r.lower == tango_test(12.5, 0, 50, margin=0.05).lower
    assert r.standard_error == 0.0


def test_clusters_that_all_lose_alike_count_once_each() -> None:
    base, cand = np.ones(60), np.ones(60)
    cand[::6] = 0.0  # one of the six items of each of ten clusters
    labels = np.repeat(np.arange(10), 6)
    r = bootstrap_t(base, cand, margin=0.05, rng=rng(), clusters=labels)
    assert r.lower == pytest.approx(tango_test(10 / 6, 0, 10, margin=0.05).lower)
    assert "10 clusters" in r.fallback


@settings(max_examples=25, deadline=None)
@given(st.integers(10, 60), st.integers(0, 10**6), st.booleans())
def test_neither_the_order_of_items_nor_the_names_of_clusters_matter(
    n: int, seed: int, clustered: bool
) -> None:
    base, cand = repeats(n, 4, 2, seed=seed)
    g = rng(seed)
    labels = g.integers(0, 6, size=n)
    order = g.permutation(n)
    renamed = np.array(["zeta", "b", "alpha", "", "q", "0"], dtype=object)
    renamed[3] = "x"

    def limits(b: Any, c: Any, k: Any) -> tuple[float, float, float]:
        r = bootstrap_t(b, c, margin=0.1, rng=rng(5), clusters=k if clustered else None, resamples=499)
        return r.lower, r.upper, r.noninferiority_p

    expected = limits(base, cand, labels)
    assert limits(base[order], cand[order], renamed[labels][order]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("clustered", [False, True])
def test_swapping_the_arms_mirrors_the_limits(clustered: bool) -> None:
    base, cand = repeats(120, 5, 3)
    labels = np.arange(120) % 13 if clustered else None
    there = bootstrap_t(base, cand, margin=0.05, rng=rng(1), clusters=labels, resamples=40_000)
    back = bootstrap_t(cand, base, margin=0.05, rng=rng(2), clusters=labels, resamples=40_000)
    assert back.delta == -there.delta
    assert back.repeats_baseline == there.repeats_candidate == 3
    assert back.lower == pytest.approx(-there.upper, abs=0.06 * there.standard_error)
    assert back.upper == pytest.approx(-there.lower, abs=0.06 * there.standard_error)


def test_identical_repeats_are_one_repeat_not_more_evidence() -> None:
    base, cand = repeats(200, 1, 1)
    one = bootstrap_t(base, cand, margin=0.05, rng=rng())
    eight = bootstrap_t(np.repeat(base, 8, axis=1), np.repeat(cand, 8, axis=1), margin=0.05, rng=rng())
    assert (eight.lower, eight.upper, eight.standard_error) == (one.lower, one.upper, one.standard_error)


def test_many_equal_clusters_approach_the_t_limits() -> None:
    g = rng(3)
    base = g.random(4_000)
    cand = g.random(4_000)
    labels = np.arange(4_000) % 800
    boot = bootstrap_t(base, cand, margin=0.02, rng=g, clusters=labels)
    t = cluster_t(cand - base, labels, margin=0.02)
    assert boot.standard_error == pytest.approx(t.standard_error)
    assert boot.lower == pytest.approx(t.lower, abs=0.1 * t.standard_error)
    assert boot.clusters == t.clusters == 800


def test_one_cluster_has_no_limits_and_never_passes() -> None:
    base, cand = repeats(50, 4, 4)
    r = bootstrap_t(base, cand, margin=0.9, rng=rng(), clusters=["same"] * 50)
    assert np.isnan([r.lower, r.upper, r.noninferiority_p, r.equivalence_p, r.standard_error]).all()
    assert "one cluster" in r.reason
    assert not r.noninferiority_p <= 0.05


def test_too_few_resamples_for_alpha_are_refused() -> None:
    base, cand = repeats(50, 2, 2)
    assert bootstrap_t(base, cand, margin=0.1, rng=rng(), resamples=19).noninferiority_p >= 0.05
    with pytest.raises(ValueError, match=r"18 resamples cannot resolve alpha = 0\.05"):
        bootstrap_t(base, cand, margin=0.1, rng=rng(), resamples=18)


def test_pooling_repeats_as_items_would_claim_more_than_the_items_show() -> None:
    # Items lose all repeats or none: eight repeats say no more than one.
    g = rng(8)
    loses = np.repeat(g.random((100, 1)) < 0.1, 8, axis=1)
    base, cand = np.ones((100, 8)), 1.0 - loses
    ours = bootstrap_t(base, cand, margin=0.05, rng=g)
    pooled = bootstrap_t(base.reshape(-1, 1), cand.reshape(-1, 1), margin=0.05, rng=g)
    assert ours.standard_error > 2.5 * pooled.standard_error


def test_a_loss_on_items_that_the_sample_missed_cannot_pass() -> None:
    """Where 1% of the items fail outright, 198 items miss all of them one time in seven."""
    passes = 0
    for seed in range(300):
        g = rng(seed)
        easy = g.beta(0.6, 0.03, size=198)
        worse = np.where(g.random(198) < 0.01, 0.0, easy)
        base, cand = (g.binomial(32, p)[:, None] / 32.0 for p in (easy, worse))
        passes += bootstrap_t(base, cand, margin=0.01, rng=g, resamples=499).noninferiority_p <= 0.05
    assert passes <= 26  # .05 with four standard errors; without the guard .13


def test_the_guard_of_unseen_items_is_tangos_limit_without_discordance() -> None:
    base = np.full((200, 2), 0.5)
    nearly = base + 1e-6 * np.array([-1.0, 1.0] * 100)[:, None]  # some spread, so that nothing falls back
    r = bootstrap_t(base, nearly, margin=0.02, rng=rng())
    tango = tango_test(0, 0, 200, margin=0.02)
    assert (r.lower, r.upper) == pytest.approx((tango.lower, tango.upper), abs=1e-6)
    assert r.noninferiority_p == pytest.approx(tango.noninferiority_p, abs=1e-4)


def test_the_guard_of_unseen_items_leaves_a_clear_loss_degraded() -> None:
    base, cand = repeats(60, 8, 8)
    assert bootstrap_t(base, cand * 0.5, margin=0.05, rng=rng()).upper < -0.05
