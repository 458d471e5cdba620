"""The analysis is chosen by the shape of the scores alone."""

from typing import Any

import numpy as np
import pytest

from equipoise.evals.statistics.bootstrap_t import BootstrapTResult, bootstrap_t
from equipoise.evals.statistics.delta import DeltaEstimate, DifferenceTest
from equipoise.evals.statistics.fixed_benchmark import FixedBenchmarkResult
from equipoise.evals.statistics.mcnemar import McNemarResult, mcnemar_test
from equipoise.evals.statistics.primary import difference_test, estimate_delta
from equipoise.evals.statistics.sign_flip import SignFlipResult
from equipoise.evals.statistics.tango import TangoResult, tango_test


def scores(n: int, k: int, *, graded: bool = False, seed: int = 1) -> Any:
    g = np.random.default_rng(seed)
    return g.random((n, k)) if graded else g.integers(0, 2, (n, k)).astype(float)


@pytest.mark.parametrize(
    ("n", "k", "graded", "clusters", "method", "alarm"),
    [
        (200, 1, False, None, TangoResult, McNemarResult),
        (50, 1, False, None, TangoResult, McNemarResult),
        (1, 1, False, None, TangoResult, McNemarResult),
        (200, 1, False, 200, TangoResult, McNemarResult),  # every item a cluster of its own
        (200, 1, False, 30, BootstrapTResult, SignFlipResult),
        (200, 8, False, 150, BootstrapTResult, SignFlipResult),
        (60, 8, False, 20, BootstrapTResult, SignFlipResult),  # shared clusters come first
        (99, 4, False, None, FixedBenchmarkResult, SignFlipResult),
        (99, 3, False, None, BootstrapTResult, SignFlipResult),
        (100, 4, False, None, BootstrapTResult, SignFlipResult),
        (99, 4, True, 99, FixedBenchmarkResult, SignFlipResult),
        (30, 1, True, None, BootstrapTResult, SignFlipResult),
        (200, 1, True, None, BootstrapTResult, SignFlipResult),
    ],
)
def test_shape_decides_the_method(
    n: int, k: int, graded: bool, clusters: int | None, method: type, alarm: type
) -> None:
    base, cand = scores(n, k, graded=graded), scores(n, k, graded=graded, seed=2)
    labels = None if clusters is None else [f"c{i % clusters}" for i in range(n)]
    g = np.random.default_rng(3)
    estimate: DeltaEstimate = estimate_delta(base, cand, margin=0.1, alpha=0.05, rng=g, clusters=labels)
    test: DifferenceTest = difference_test(base, cand, rng=g, clusters=labels)
    assert type(estimate) is method and type(test) is alarm
    assert (estimate.n, estimate.margin, estimate.alpha) == (n, 0.1, 0.05)
    assert estimate.delta == pytest.approx(cand.mean() - base.mean())
    assert (estimate.noninferiority_p <= 0.05) == (estimate.lower > -0.1)
    assert estimate.method and estimate.citation and test.method and test.citation
    assert 0.0 < test.two_sided_p <= 1.0


def test_unequal_repeats_count_by_the_fewer() -> None:
    g = np.random.default_rng(1)
    few = estimate_delta(scores(50, 3), scores(50, 8), margin=0.1, alpha=0.05, rng=g)
    assert isinstance(few, BootstrapTResult)
    assert (few.repeats_baseline, few.repeats_candidate) == (3, 8)


def test_single_answers_give_the_tests_of_the_discordant_counts() -> None:
    base, cand = scores(300, 1), scores(300, 1, seed=2)
    b, c = int(((base == 1) & (cand == 0)).sum()), int(((base == 0) & (cand == 1)).sum())
    g = np.random.default_rng(1)
    assert estimate_delta(base, cand, margin=0.1, alpha=0.05, rng=g) == tango_test(b, c, 300, margin=0.1)
    assert difference_test(base, cand, rng=g) == mcnemar_test(b, c)


def test_one_cluster_of_many_items_never_passes() -> None:
    base = np.ones((200, 1))
    ours = estimate_delta(
        base, base, margin=0.5, alpha=0.05, rng=np.random.default_rng(1), clusters=["doc"] * 200
    )
    assert np.isnan(ours.lower) and not ours.noninferiority_p <= 0.05


def test_the_choice_passes_clusters_seed_and_alpha_on() -> None:
    base, cand = scores(120, 2), scores(120, 2, seed=2)
    labels = np.arange(120) % 7
    ours = estimate_delta(base, cand, margin=0.1, alpha=0.1, rng=np.random.default_rng(4), clusters=labels)
    direct = bootstrap_t(base, cand, margin=0.1, alpha=0.1, rng=np.random.default_rng(4), clusters=labels)
    assert ours == direct
