"""Mean KL: its bounds cover the truth by sequence, its ceiling is a ceiling, and buckets add up."""

import math
import time

import numpy as np
import pytest

from equipoise.evals.statistics.kl import TokenKl, full_kl, topk_kl
from equipoise.evals.statistics.kl_comparison import compare_kl


def exact(kl: np.ndarray) -> TokenKl:
    return TokenKl(
        lower=kl,
        upper=kl,
        truncated_baseline=np.zeros(kl.size),
        truncated_candidate=np.zeros(kl.size),
        largest_drop_nats=0.0,
        complete=True,
        max_drop_nats=None,
        no_upper_reason="",
        method="KL of whole distributions",
    )


def lists(p: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.argsort(-p, axis=1)[:, :k]
    return ids, np.take_along_axis(p, ids, axis=1)


def random_pair(tokens: int, vocabulary: int, change: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    gen = np.random.default_rng(4)
    logits = gen.normal(0.0, 3.0, (tokens, vocabulary))
    one, other = logits, logits + gen.normal(0.0, change, logits.shape)
    return tuple(x - np.logaddexp.reduce(x, axis=1, keepdims=True) for x in (one, other))  # type: ignore[return-value]


def test_bounds_cover_a_skewed_clustered_mean_at_their_level() -> None:
    gen = np.random.default_rng(1)
    truth, runs, above, below = 0.01, 300, 0, 0
    for _ in range(runs):
        lengths = gen.integers(5, 40, 60)
        sequence = np.repeat(np.arange(60), lengths)
        kl = truth * gen.gamma(4.0, 0.25, 60)[sequence] * gen.exponential(1.0, sequence.size)
        result = compare_kl(exact(kl), sequence, rng=gen, resamples=400)
        above += result.upper >= truth
        below += result.lower <= truth
    # 95% nominal each; three binomial standard errors at 300 runs are 3.8 points.
    assert 0.91 <= above / runs <= 0.99
    assert 0.91 <= below / runs <= 0.99


def test_mean_truncated_mass_and_buckets_are_those_of_the_tokens() -> None:
    p, q = random_pair(600, 30)
    kl = topk_kl(*lists(p, 8), *lists(q, 8), max_drop_nats=3.0)
    position = np.tile(np.arange(0, 600, 6), 6)
    result = compare_kl(
        kl, np.repeat(np.arange(6), 100), rng=np.random.default_rng(1), position=position, resamples=999
    )
    assert result.kl_nats == pytest.approx(kl.lower.mean())
    assert result.ceiling_nats == pytest.approx(kl.upper.mean())
    assert result.kl_nats < full_kl(p, q).lower.mean() < result.ceiling_nats < result.ceiling_upper
    assert result.lower < result.kl_nats < result.upper
    assert result.truncated_baseline.max == pytest.approx((1 - np.exp(lists(p, 8)[1]).sum(axis=1)).max())
    assert [(b.start, b.stop, b.sequences) for b in result.buckets][:2] == [(0, 64, 6), (64, 128, 6)]
    assert sum(b.tokens for b in result.buckets) == result.tokens == 600
    assert sum(b.tokens * b.kl_nats for b in result.buckets) == pytest.approx(600 * result.kl_nats)
    first = kl.lower[position < 64].mean()
    assert result.buckets[0].kl_nats == pytest.approx(first)
    assert result.buckets[0].lower < first < result.buckets[0].upper


def test_whole_distributions_have_their_own_upper_bound_as_ceiling() -> None:
    p, q = random_pair(200, 30)
    result = compare_kl(full_kl(p, q), np.arange(200) // 10, rng=np.random.default_rng(1))
    assert (result.complete, result.ceiling_nats) == (True, result.kl_nats)
    assert result.ceiling_upper == result.upper
    assert result.ceiling_reason == ""


def test_lists_alone_have_no_ceiling_and_say_why() -> None:
    p, q = random_pair(200, 30)
    kl = topk_kl(*lists(p, 8), *lists(q, 8))
    result = compare_kl(kl, np.arange(200) // 10, rng=np.random.default_rng(1))
    assert math.isnan(result.ceiling_nats)
    assert math.isnan(result.ceiling_upper)
    assert "from below only" in result.ceiling_reason
    assert math.isfinite(result.upper)


def test_identical_arms_are_0_as_a_fact_and_one_sequence_has_no_bound() -> None:
    p, q = random_pair(50, 10)
    same = compare_kl(full_kl(p, p), np.arange(50) // 5, rng=np.random.default_rng(1))
    assert (same.kl_nats, same.lower, same.upper, same.ceiling_upper) == (0.0, 0.0, 0.0, 0.0)
    assert "identical" in same.reason
    alone = compare_kl(full_kl(p, q), np.zeros(50), rng=np.random.default_rng(1))
    assert math.isnan(alone.upper)
    assert "one sequence" in alone.reason


def test_tokens_without_lists_are_counted_not_averaged() -> None:
    kl = exact(np.array([0.1, math.nan, 0.3, 0.5]))
    result = compare_kl(kl, ["a", "a", "b", "c"], rng=np.random.default_rng(1), position=np.arange(4))
    assert (result.tokens, result.tokens_without_lists, result.sequences) == (3, 1, 3)
    assert result.kl_nats == pytest.approx(0.3)
    with pytest.raises(ValueError, match="no token has lists"):
        compare_kl(exact(np.full(2, math.nan)), ["a", "b"], rng=np.random.default_rng(1))


def test_infinite_kl_has_no_finite_mean_and_no_bound() -> None:
    kl = full_kl(np.log([[0.5, 0.5]] * 2), [[0.0, -math.inf], [math.log(0.5)] * 2])
    result = compare_kl(kl, [0, 1], rng=np.random.default_rng(1))
    assert result.kl_nats == math.inf
    assert math.isnan(result.upper)
    assert result.reason


def test_two_hundred_thousand_tokens_take_about_a_second() -> None:
    gen = np.random.default_rng(1)
    tokens, k = 200_000, 20
    ids = gen.permuted(np.tile(np.arange(26), (2_000, 1)), axis=1)[:, :k].repeat(100, axis=0)
    logs = np.log(0.5) * np.arange(1, k + 1) + np.zeros((tokens, 1))
    started = time.perf_counter()
    kl = topk_kl(ids, logs, ids[::-1], logs)
    compare_kl(kl, np.arange(tokens) // 256, rng=gen, position=np.arange(tokens) % 256)
    assert time.perf_counter() - started < 5.0  # seen: 1.0 s on one core; a busy machine is slower
