"""Teacher-forced logprobs: coverage of the bound, special cases, and what is described beside it."""

from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.evals.statistics.logprob import compare_logprobs


def clustered(
    gen: np.random.Generator, *, shift: float, sequences: int = 30
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Baseline, candidate and sequence of tokens whose change depends on their sequence."""
    lengths = gen.integers(5, 60, sequences)
    sequence = np.repeat(np.arange(sequences), lengths)
    baseline = -gen.exponential(1.0, sequence.size)
    change = shift + np.repeat(gen.normal(0, 0.02, sequences), lengths) + gen.normal(0, 0.05, sequence.size)
    return baseline, baseline - change, sequence


def test_upper_bound_covers_the_truth_at_its_level() -> None:
    gen = np.random.default_rng(1)
    shift, covered, runs = 0.005, 0, 400
    for _ in range(runs):
        result = compare_logprobs(*clustered(gen, shift=shift), rng=gen, resamples=400)
        covered += result.upper >= shift
    # 95% nominal; three binomial standard errors at 400 runs are 3.3 points.
    assert 0.915 <= covered / runs <= 0.985


def test_the_estimate_is_the_mean_over_tokens_with_a_cluster_robust_error() -> None:
    gen = np.random.default_rng(2)
    baseline, candidate, sequence = clustered(gen, shift=0.01)
    result = compare_logprobs(baseline, candidate, sequence, rng=gen)
    change = baseline - candidate
    assert result.delta_nll_nats == pytest.approx(change.mean())
    residual = np.array([(change[sequence == g] - change.mean()).sum() for g in range(30)])
    assert result.standard_error == pytest.approx(np.sqrt(30 / 29 * np.sum(residual**2)) / change.size)
    assert result.lower < result.delta_nll_nats < result.upper
    assert result.delta_logprob_nats == -result.delta_nll_nats


def test_clustered_standard_error_matches_its_reference() -> None:
    # values 0..19, cluster i % 4: .645497 (inspect_ai's test of the clustered mean)
    result = compare_logprobs(
        np.arange(20.0), np.zeros(20), np.arange(20) % 4, rng=np.random.default_rng(1), resamples=50
    )
    assert result.standard_error == pytest.approx(0.645497, abs=5e-7)


def test_tokens_of_one_sequence_are_not_counted_as_independent() -> None:
    gen = np.random.default_rng(3)
    baseline, candidate, sequence = clustered(gen, shift=0.0)
    by_sequence = compare_logprobs(baseline, candidate, sequence, rng=gen)
    by_token = compare_logprobs(baseline, candidate, np.arange(sequence.size), rng=gen)
    assert by_sequence.standard_error > 1.5 * by_token.standard_error


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_swapping_the_arms_negates_the_change_and_reverses_the_bounds(seed: int) -> None:
    baseline, candidate, sequence = clustered(np.random.default_rng(seed), shift=0.01, sequences=12)
    one = compare_logprobs(baseline, candidate, sequence, rng=np.random.default_rng(5), resamples=999)
    other = compare_logprobs(candidate, baseline, sequence, rng=np.random.default_rng(5), resamples=999)
    assert one.delta_nll_nats == -other.delta_nll_nats
    # The two quantile ranks are one apart at most, so bounds mirror up to one bootstrap order statistic.
    width = one.upper - one.lower
    assert one.lower == pytest.approx(-other.upper, abs=0.05 * width)


def test_identical_logprobs_are_reported_as_identical() -> None:
    x = -np.arange(1.0, 11.0)
    result = compare_logprobs(x, x, np.arange(10) // 2, rng=np.random.default_rng(1))
    assert (result.lower, result.upper) == (0.0, 0.0)
    assert "identical" in result.reason


@pytest.mark.parametrize("sequence", [np.zeros(10), np.arange(10)])
def test_a_change_without_spread_between_sequences_has_no_bound(sequence: np.ndarray) -> None:
    x = np.zeros(10)
    result = compare_logprobs(x, x - 0.5, sequence, rng=np.random.default_rng(1))
    assert isnan(result.upper)
    assert isnan(result.lower)
    assert "spread" in result.reason


def test_few_varying_sequences_widen_the_bound_instead_of_dropping_resamples() -> None:
    # One sequence of eight changed: many resamples miss it and have no spread at all.
    x = np.zeros(80)
    candidate = np.where(np.arange(80) < 10, x - 0.1, x)
    result = compare_logprobs(x, candidate, np.arange(80) // 10, rng=np.random.default_rng(1))
    assert result.upper == np.inf


def test_positions_agreement_percentiles_and_worst_sequences_are_described() -> None:
    baseline = np.zeros(8)
    candidate = np.array([0.0, 0.0, -0.1, -0.1, 0.0, 0.0, -0.3, -0.5])
    result = compare_logprobs(
        baseline,
        candidate,
        np.array(["a"] * 4 + ["b"] * 4),
        rng=np.random.default_rng(1),
        position=np.array([0, 1, 100, 101] * 2),
        baseline_top1=np.ones(8, bool),
        candidate_top1=np.arange(8) != 7,
    )
    assert result.top1_agreement == 7 / 8
    assert result.worst_sequences[0] == ("b", pytest.approx(0.2))
    assert [(x.start, x.stop, x.tokens) for x in result.buckets] == [(0, 64, 4), (64, 128, 4)]
    assert [x.delta_nll_nats for x in result.buckets] == pytest.approx([0.0, 0.25])
    assert result.abs_delta_percentiles[-1] == (100.0, 0.5)


def test_unscored_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        compare_logprobs([0.0, float("nan")], [0.0, 0.0], [0, 1], rng=np.random.default_rng(1))
    with pytest.raises(ValueError, match="at least one token"):
        compare_logprobs([], [], [], rng=np.random.default_rng(1))
