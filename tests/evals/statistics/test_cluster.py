"""Cluster-robust standard error and limits against published values and statsmodels."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student_t
from scipy.stats import ttest_1samp

from equipoise.evals.statistics.bootstrap_t import bootstrap_t
from equipoise.evals.statistics.cluster import cluster_standard_error, cluster_t
from equipoise.evals.statistics.tango import tango_test

(VECTOR,) = json.loads(Path(__file__).with_name("vectors.json").read_text())["clustered_se"]


def test_standard_error_matches_the_published_value() -> None:
    assert (VECTOR["values"], VECTOR["cluster"]) == ("0..19", "i % 4")
    assert cluster_standard_error(range(20), [i % 4 for i in range(20)]) == pytest.approx(
        VECTOR["se"], abs=5e-7
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(4, 80), st.integers(2, 12), st.integers(0, 10**6))
def test_limits_and_p_values_agree_with_statsmodels(n: int, groups: int, seed: int) -> None:
    g = np.random.default_rng(seed)
    labels = np.concatenate((np.arange(2), g.integers(0, groups, size=n - 2)))
    d = g.uniform(-0.5, 0.5, size=n)
    ours = cluster_t(d, labels, margin=0.1)
    fit = sm.OLS(d, np.ones(n)).fit(cov_type="cluster", cov_kwds={"groups": labels}, use_t=True)
    assert ours.standard_error == pytest.approx(fit.bse[0])
    low, high = fit.conf_int(alpha=0.10)[0]
    assert (ours.lower, ours.upper) == pytest.approx((max(low, -1), min(high, 1)))
    two_sided = fit.t_test(([[1.0]], [-0.1])).pvalue
    expected = two_sided / 2 if ours.delta > -0.1 else 1 - two_sided / 2
    assert ours.noninferiority_p == pytest.approx(float(np.squeeze(expected)))
    assert (ours.noninferiority_p <= 0.05) == (ours.lower > -0.1)
    assert (ours.equivalence_p <= 0.05) == (ours.lower > -0.1 and ours.upper < 0.1)


def test_clusters_of_one_give_the_one_sample_t_test() -> None:
    d = np.random.default_rng(2).uniform(-0.3, 0.25, size=40)
    ours = cluster_t(d, range(40), margin=0.05)
    assert ours.standard_error == pytest.approx(d.std(ddof=1) / math.sqrt(40))
    assert ours.noninferiority_p == pytest.approx(ttest_1samp(d, -0.05, alternative="greater").pvalue)


def test_neither_order_nor_names_of_clusters_matter_and_swapping_arms_mirrors() -> None:
    g = np.random.default_rng(3)
    d, labels = g.uniform(-0.3, 0.3, size=60), g.integers(0, 9, size=60)
    order = g.permutation(60)
    ours = cluster_t(d, labels, margin=0.05)
    again = cluster_t(d[order], [f"doc-{k}" for k in labels[order]], margin=0.05)
    mirrored = cluster_t(-d, labels, margin=0.05)
    assert again.lower == pytest.approx(ours.lower)
    assert (mirrored.lower, mirrored.upper) == pytest.approx((-ours.upper, -ours.lower))


def test_labels_of_different_types_are_different_clusters() -> None:
    d = [0.1, -0.1, 0.2, 0.3]
    assert cluster_t(d, [1, "1", 1, "1"], margin=0.1).clusters == 2
    assert cluster_t(d, [("a", 1), ("a", 2), ("b", 1), ("a", 1)], margin=0.1).clusters == 3


def test_one_cluster_has_no_limits_and_never_passes() -> None:
    ours = cluster_t([0.1, 0.2, 0.3], ["a"] * 3, margin=0.99)
    assert ours.delta == pytest.approx(0.2)
    assert np.isnan([ours.lower, ours.upper, ours.noninferiority_p, ours.equivalence_p]).all()
    assert "one cluster" in ours.reason
    assert math.isnan(cluster_standard_error([1.0, 2.0], ["a", "a"]))


def test_identical_arms_are_not_certain_and_a_cluster_counts_once() -> None:
    ours = cluster_t(np.zeros(1000), np.arange(1000) % 40, margin=0.02)
    tango = tango_test(0, 0, 40, margin=0.02)
    assert (ours.lower, ours.upper, ours.noninferiority_p) == (
        tango.lower,
        tango.upper,
        tango.noninferiority_p,
    )
    assert ours.lower < -0.02
    assert "40 clusters" in ours.fallback


def test_few_discordant_pairs_get_limits_no_narrower_than_tango() -> None:
    d = np.zeros(200)
    d[7] = 1.0  # one gain, no loss: t calls every loss beyond .0033 excluded
    ours = cluster_t(d, np.arange(200) // 4, margin=0.008)
    reach = float(student_t(49).isf(0.05)) * ours.standard_error
    assert ours.delta - reach > -0.004
    assert ours.lower == pytest.approx(tango_test(0, 1, 200, margin=0.008).lower, rel=0.02)
    assert ours.upper == pytest.approx(
        max(ours.delta + reach, tango_test(0, 1, 200, margin=0.008).upper), rel=0.02
    )
    assert ours.noninferiority_p > 0.05
    assert "effective of 200 pairs" in ours.fallback


def test_the_effective_number_of_pairs_falls_to_the_clusters_where_their_items_always_agree() -> None:
    of_cluster = np.array([1.0] * 1 + [-1.0] * 2 + [0.0] * 47)
    ours = cluster_t(np.repeat(of_cluster, 4), np.repeat(np.arange(50), 4), margin=0.05)
    tango = tango_test(2, 1, 50, margin=0.05)
    assert ours.lower == pytest.approx(tango.lower, abs=2e-3)
    assert "49 effective of 200" in ours.fallback


def test_pass_rate_at_the_margin_is_kept_where_t_alone_exceeds_it() -> None:
    g, margin, clusters = np.random.default_rng(4), 0.05, 30
    draws = -(g.random((800, clusters * 5)) < margin).astype(float)  # every discordant pair a loss
    labels = np.arange(clusters * 5) // 5
    found = [cluster_t(d, labels, margin=margin) for d in draws]
    passed = np.mean([r.lower > -margin for r in found])
    reach = float(student_t(clusters - 1).isf(0.05))
    by_t = np.mean([r.delta - reach * r.standard_error > -margin for r in found])
    assert passed <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 800)
    assert by_t > 0.09


def test_many_discordant_pairs_keep_the_t_limits() -> None:
    g = np.random.default_rng(5)
    d = g.choice([-1.0, 0.0, 1.0], p=[0.2, 0.6, 0.2], size=4_000)
    labels = np.arange(4_000) // 5
    ours = cluster_t(d, labels, margin=0.05)
    reach = float(student_t(799).isf(0.05)) * ours.standard_error
    assert ours.lower == pytest.approx(ours.delta - reach, abs=0.03 * reach)


def test_the_cluster_bootstrap_of_binary_pairs_is_no_narrower_than_tango_either() -> None:
    base, cand = np.ones(100), np.ones(100)
    base[7] = 0.0
    ours = bootstrap_t(base, cand, margin=0.02, rng=np.random.default_rng(6), clusters=np.arange(100) // 5)
    assert ours.lower <= tango_test(0, 1, 100, margin=0.02).lower + 1e-3


@pytest.mark.parametrize("missing", [None, "", math.nan])
def test_a_missing_label_is_refused_by_item_with_the_remedy(missing: Any) -> None:
    for labels in (["a", "b", missing], np.array(["a", "b", missing], dtype=object)):
        with pytest.raises(ValueError, match=r"item 2 has no cluster .*; give it the id of its document"):
            cluster_t([0.1, 0.2, 0.3], labels, margin=0.1)
    with pytest.raises(ValueError, match="item 2 has no cluster"):
        bootstrap_t(
            [0, 1, 1], [1, 1, 1], margin=0.1, rng=np.random.default_rng(1), clusters=["a", "b", missing]
        )
    with pytest.raises(ValueError, match="got 2 labels for 3 items"):
        cluster_t([0.1, 0.2, 0.3], ["a", "b"], margin=0.1)
    with pytest.raises(ValueError, match="item 1 has no cluster"):
        cluster_t([0.1, 0.2], np.array([1.0, math.nan]), margin=0.1)
