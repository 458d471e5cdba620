"""Bounds of means over tokens: the same as resampling token by token, and honest where there is no spread."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.evals.statistics.logprob import compare_logprobs
from equipoise.evals.statistics.ratio_bootstrap import clusters_of, ratio_bounds


def by_hand(values: list[np.ndarray], alpha: float, resamples: int, seed: int) -> tuple[float, float]:
    """The bootstrap-t of the mean over tokens, one resample and one sequence at a time."""
    rng = np.random.default_rng(seed)
    groups = len(values)

    def mean_and_error(chosen: list[np.ndarray]) -> tuple[float, float]:
        tokens = np.concatenate(chosen)
        residual = [x.sum() - tokens.mean() * x.size for x in chosen]
        return tokens.mean(), np.sqrt(groups / (groups - 1) * np.square(residual).sum()) / tokens.size

    mean, error = mean_and_error(values)
    pivots = []
    for picks in rng.integers(0, groups, size=(resamples, groups)):
        m, e = mean_and_error([values[i] for i in picks])
        pivots.append((m - mean) / e)
    low, high = np.quantile(pivots, [alpha, 1 - alpha], method="inverted_cdf")
    return mean - high * error, mean - low * error


def sums_of(values: list[np.ndarray]) -> tuple[list[float], list[int]]:
    return [float(x.sum()) for x in values], [x.size for x in values]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 9_999), groups=st.integers(5, 30), alpha=st.sampled_from([0.01, 0.05, 0.1]))
def test_bounds_are_those_of_resampling_sequences_one_by_one(seed: int, groups: int, alpha: float) -> None:
    gen = np.random.default_rng(seed)
    values = [gen.normal(gen.normal(), 1.0, gen.integers(1, 20)) for _ in range(groups)]
    sums, lengths = sums_of(values)
    found = ratio_bounds([sums], [lengths], alpha=alpha, resamples=199, rng=np.random.default_rng(7))
    assert (found.lower[0], found.upper[0]) == pytest.approx(by_hand(values, alpha, 199, seed=7))
    assert found.mean[0] == pytest.approx(np.concatenate(values).mean())


def test_a_mean_over_some_sequences_resamples_those_alone() -> None:
    gen = np.random.default_rng(1)
    values = [gen.normal(0.0, 1.0, 8) for _ in range(12)]
    sums, lengths = sums_of(values)
    some = (
        [s if i < 7 else 0.0 for i, s in enumerate(sums)],
        [n if i < 7 else 0 for i, n in enumerate(lengths)],
    )
    both = ratio_bounds(
        [sums, some[0]], [lengths, some[1]], alpha=0.05, resamples=99, rng=np.random.default_rng(3)
    )
    alone = ratio_bounds([sums[:7]], [lengths[:7]], alpha=0.05, resamples=99, rng=np.random.default_rng(3))
    # Which of the two groups of sequences is drawn first is not said; one of them meets the same draws.
    assert both.standard_error[1] == pytest.approx(alone.standard_error[0])
    assert both.mean[1] == pytest.approx(alone.mean[0])
    assert np.isfinite([both.lower, both.upper]).all()


def test_rounding_of_a_resample_without_spread_is_no_pivot() -> None:
    # All but one of eight sequences are alike: a third of the resamples miss it and bound nothing.
    sums, lengths = [0.3] + [0.1 * 3] * 6 + [2.0], [3] * 8
    found = ratio_bounds([sums], [lengths], alpha=0.05, resamples=2_000, rng=np.random.default_rng(1))
    assert found.upper[0] == np.inf
    assert np.isfinite(found.lower[0])


def test_undefined_bounds_have_a_reason_beside_defined_ones() -> None:
    sums = [[1.0, 2.0, 4.0], [1.0, 0.0, 0.0], [2.0, 2.0, 2.0], [np.inf, 1.0, 1.0]]
    lengths = [[1, 1, 1], [1, 0, 0], [1, 1, 1], [1, 1, 1]]
    found = ratio_bounds(sums, lengths, alpha=0.05, resamples=99, rng=np.random.default_rng(1))
    assert [bool(r) for r in found.reasons] == [False, True, True, True]
    assert np.isnan(found.upper).tolist() == [False, True, True, True]
    assert found.mean.tolist()[1:] == [1.0, 2.0, np.inf]
    with pytest.raises(ValueError, match="tokens in each row"):
        ratio_bounds([[1.0]], [[0]], alpha=0.05, resamples=9, rng=np.random.default_rng(1))


@given(st.lists(st.sampled_from(["a", "b", "longer", "b2"]), min_size=1, max_size=40))
def test_sequences_are_numbered_as_numpy_does_in_runs_or_not(labels: list[str]) -> None:
    names, index = clusters_of(labels)
    expected_names, expected = np.unique(labels, return_inverse=True)
    assert names.tolist() == expected_names.tolist()
    assert index.tolist() == expected.tolist()


def test_a_bucket_is_bounded_as_its_tokens_alone_would_be() -> None:
    gen = np.random.default_rng(2)
    sequence, position = np.repeat(np.arange(20), 100), np.tile(np.arange(100), 20)
    baseline = -gen.exponential(1.0, 2_000)
    candidate = baseline - gen.normal(0.01, 0.1, 2_000) * (position > 63)
    late = position >= 64
    one = compare_logprobs(
        baseline, candidate, sequence, rng=np.random.default_rng(5), position=position, resamples=999
    )
    alone = compare_logprobs(
        baseline[late], candidate[late], sequence[late], rng=np.random.default_rng(5), resamples=999
    )
    early, bucket = one.buckets
    assert (bucket.lower, bucket.upper) == pytest.approx((alone.lower, alone.upper))
    assert bucket.delta_nll_nats == pytest.approx(alone.delta_nll_nats)
    assert bucket.abs_delta_percentiles == alone.abs_delta_percentiles
    assert (bucket.sequences, bucket.tokens) == (20, 720)
    assert (early.lower, early.upper) == (0.0, 0.0)
    assert "identical" in early.reason
    with pytest.raises(ValueError, match="position -1 is in no bucket"):
        compare_logprobs([-1.0], [-1.0], [0], rng=gen, position=[-1])
