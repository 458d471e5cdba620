"""KL from whole distributions and from top-k lists: exact where it can be, and never a false bound."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr
from scipy.stats import entropy

from equipoise.evals.statistics.kl import TokenKl, full_kl, topk_kl

Lists = tuple[np.ndarray, np.ndarray]


def distributions(seed: int, tokens: int, vocabulary: int, spread: float, change: float) -> Lists:
    """Log-softmax of random logits and of the same ones disturbed, shape [tokens, vocabulary]."""
    gen = np.random.default_rng(seed)
    logits = gen.normal(0.0, spread, (tokens, vocabulary))
    pair = logits, logits + gen.normal(0.0, change, logits.shape)
    return tuple(x - np.logaddexp.reduce(x, axis=1, keepdims=True) for x in pair)  # type: ignore[return-value]


def top(logprobs: np.ndarray, k: int) -> Lists:
    ids = np.argsort(-logprobs, axis=1, kind="stable")[:, :k]
    return ids, np.take_along_axis(logprobs, ids, axis=1)


def truth(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The independent oracle: scipy's relative entropy, summed over the vocabulary."""
    return rel_entr(np.exp(p), np.exp(q)).sum(axis=1)


def bounds(p: np.ndarray, q: np.ndarray, k: int, k_candidate: int | None = None, **kw: object) -> TokenKl:
    return topk_kl(*top(p, k), *top(q, k_candidate or k), **kw)  # type: ignore[arg-type]


cases = given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(2, 40),
    spread=st.floats(0.1, 8.0),
    change=st.floats(1e-4, 4.0),
    k=st.integers(1, 40),
    k_candidate=st.integers(1, 40),
)


@settings(max_examples=60, deadline=None)
@cases
def test_full_kl_is_scipys_relative_entropy(
    seed: int, vocabulary: int, spread: float, change: float, k: int, k_candidate: int
) -> None:
    p, q = distributions(seed, 20, vocabulary, spread, change)
    found = full_kl(p, q)
    np.testing.assert_allclose(found.lower, truth(p, q), rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(found.lower, entropy(np.exp(p), np.exp(q), axis=1), rtol=1e-9, atol=1e-13)
    assert found.complete
    assert found.largest_drop_nats == pytest.approx(max(0.0, (p - q).max()))


@settings(max_examples=150, deadline=None)
@cases
def test_bounds_from_lists_always_bracket_the_truth(
    seed: int, vocabulary: int, spread: float, change: float, k: int, k_candidate: int
) -> None:
    p, q = distributions(seed, 30, vocabulary, spread, change)
    assumed = max(1.0, float((p - q).max()) + 1e-9)
    found = bounds(p, q, min(k, vocabulary), min(k_candidate, vocabulary), max_drop_nats=assumed)
    kl = truth(p, q)
    assert np.all(found.lower <= kl * (1 + 1e-9) + 1e-12)
    assert np.all(kl <= found.upper * (1 + 1e-9) + 1e-12)
    assert np.all(found.lower >= 0.0)
    assert found.no_upper_reason == ""
    np.testing.assert_allclose(
        found.truncated_baseline, 1.0 - np.exp(top(p, min(k, vocabulary))[1]).sum(axis=1), atol=1e-12
    )


@settings(max_examples=60, deadline=None)
@cases
def test_the_lower_bound_is_at_least_that_of_the_merged_remainder(
    seed: int, vocabulary: int, spread: float, change: float, k: int, k_candidate: int
) -> None:
    p, q = distributions(seed, 10, vocabulary, spread, change)
    k, k_candidate = min(k, vocabulary), min(k_candidate, vocabulary)
    found = bounds(p, q, k, k_candidate, rounding=0.0)
    (base, _), (cand, _) = top(p, k), top(q, k_candidate)
    for t in range(10):  # brute force, token by token
        both = np.intersect1d(base[t], cand[t])
        cells_p = np.append(np.exp(p[t, both]), max(0.0, 1.0 - np.exp(p[t, both]).sum()))
        cells_q = np.append(np.exp(q[t, both]), max(0.0, 1.0 - np.exp(q[t, both]).sum()))
        if cells_q[-1] > 1e-9:  # a remainder of mere rounding has no meaningful ratio
            assert found.lower[t] >= rel_entr(cells_p, cells_q).sum() - 1e-10


def test_lists_of_the_whole_vocabulary_are_exact_in_any_order_and_say_so() -> None:
    p, q = distributions(3, 50, 12, 2.0, 0.3)
    shuffled = np.random.default_rng(1).permuted(np.tile(np.arange(12), (50, 1)), axis=1)
    lists = shuffled, np.take_along_axis(q, shuffled, axis=1)
    found = topk_kl(*top(p, 12), *lists, vocabulary_size=12)
    np.testing.assert_allclose(found.lower, truth(p, q), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(found.lower, found.upper)
    assert (found.complete, found.no_upper_reason) == (True, "")
    unknown = topk_kl(*top(p, 12), *lists)  # the same lists, but nobody said that they are everything
    assert not unknown.complete
    assert np.all(np.isinf(unknown.upper))


def test_more_of_the_vocabulary_tightens_both_bounds() -> None:
    p, q = distributions(5, 2_000, 200, 3.0, 0.3)
    kl = truth(p, q).mean()
    found = [bounds(p, q, k, max_drop_nats=5.0) for k in (1, 5, 20, 100, 200)]
    lower, upper = [f.lower.mean() for f in found], [f.upper.mean() for f in found]
    assert lower == sorted(lower)
    assert upper == sorted(upper, reverse=True)
    assert lower[-1] == pytest.approx(kl, rel=1e-3)
    assert lower[2] > 0.5 * kl  # twenty of two hundred tokens are worth having


def test_closed_forms() -> None:
    # Two tokens: p log(p/q) + (1-p) log((1-p)/(1-q)); a list of one token says it all.
    p, q = 0.7, 0.4
    kl = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    ids, logs = np.array([[5]]), np.log([[p]])
    found = topk_kl(ids, logs, ids, np.log([[q]]), rounding=0.0, max_drop_nats=2.0)
    assert found.lower[0] == pytest.approx(kl, rel=1e-12)
    assert found.upper[0] == pytest.approx(p * math.log(p / q) + (1 - p) * 2.0)
    # Disjoint lists: token 1 has at most .3 under the candidate and token 2 at most .2 under the baseline.
    apart = topk_kl([[1]], np.log([[0.8]]), [[2]], np.log([[0.7]]), rounding=0.0)
    expected = 0.8 * math.log(0.8 / 0.3) - 0.8 + 0.3 + 0.2 * math.log(0.2 / 0.7) - 0.2 + 0.7
    assert apart.lower[0] == pytest.approx(expected, rel=1e-12)
    # A uniform pair of V and W tokens, W > V: log(W / V).
    uniform = full_kl([[math.log(1 / 4)] * 4 + [-math.inf] * 4], [[math.log(1 / 8)] * 8])
    assert uniform.lower[0] == pytest.approx(math.log(2.0))


def test_the_same_distribution_is_exactly_0_also_through_lists() -> None:
    p, _ = distributions(7, 100, 50, 4.0, 1.0)
    assert full_kl(p, p).lower.max() == 0.0
    assert bounds(p, p, 10).lower.max() == 0.0


def test_float32_rounding_of_near_certain_tokens_does_not_look_like_a_divergence() -> None:
    logits = np.random.default_rng(1).normal(0.0, 12.0, (3_000, 64)).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= np.logaddexp.reduce(exact, axis=1, keepdims=True)
    # float32 log-softmax, as a server computes it
    shifted = logits - logits.max(axis=1, keepdims=True)
    rounded = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float32))
    found = topk_kl(*top(exact, 20), *top(rounded.astype(np.float64), 20))
    assert found.lower.max() < 1e-6


def test_without_an_assumption_lists_give_no_upper_bound_and_a_refuted_one_gives_none_either() -> None:
    p, q = distributions(9, 40, 30, 2.0, 1.0)
    free = bounds(p, q, 5)
    assert np.all(np.isinf(free.upper))
    assert "arbitrarily unlikely" in free.no_upper_reason
    refuted = bounds(p, q, 5, max_drop_nats=1.0)
    assert free.largest_drop_nats > 1.0
    assert np.isinf(refuted.upper).any()
    assert "more than the 1 assumed" in refuted.no_upper_reason
    # The certain token of the baseline is not even listed: its fall is seen through the list's end.
    apart = topk_kl([[1]], [[-1e-3]], [[2, 3]], np.log([[0.9, 0.01]]), max_drop_nats=4.0)
    assert apart.largest_drop_nats == pytest.approx(-1e-3 - math.log(0.01))
    assert np.isinf(apart.upper[0])


def test_a_token_without_a_list_in_one_arm_is_undefined_not_0() -> None:
    ids, logs = np.array([[1, 2], [-1, -1]]), np.array([[-0.1, -3.0], [math.nan, math.nan]])
    full = np.array([[1, 2], [1, 2]]), np.array([[-0.2, -3.0], [-0.2, -3.0]])
    for found in (topk_kl(ids, logs, *full), topk_kl(*full, ids, logs)):
        assert np.isfinite(found.lower[0])
        assert np.isnan([found.lower[1], found.upper[1], found.truncated_baseline[1]]).all()
    shorter = topk_kl([[1, -1]], [[-0.1, math.nan]], [[1]], [[-0.1]])
    assert shorter.lower[0] == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: topk_kl([[1], [1]], [[-1.0], [0.1]], [[1], [1]], [[-1.0]] * 2), "token 1: baseline"),
        (lambda: topk_kl([[1, 2]], [[-0.1, -0.1]], [[1]], [[-1.0]]), "token 0: baseline has .* sum to 1.8"),
        (lambda: topk_kl([[1]], [[-1.0]], [[7, 7]], [[-1.0, -2.0]]), "token 0: candidate lists id 7 twice"),
        (lambda: topk_kl([[1]], [[-1.0]], [[7]], [[math.nan]]), "token 0: candidate has a listed logprob"),
        (lambda: topk_kl([[1]], [[-1.0]], [[1, 2]], [[-1.0]]), "candidate: need ids and logprobs"),
        (lambda: topk_kl([[1]], [[-1.0]], [[1], [1]], [[-1.0], [-1.0]]), "1 and 2 tokens"),
        (lambda: topk_kl([[1]], [[-1.0]], [[1]], [[-1.0]], max_drop_nats=0.5), "at least 1"),
        (lambda: topk_kl([[1.5]], [[-1.0]], [[1]], [[-1.0]]), "must be integers"),
        (lambda: full_kl([[-1.0, -2.0]], [[-0.69314718056] * 2]), "token 0: baseline has .* sum to 0.5"),
        (lambda: full_kl([[math.nan, -1.0]], [[-0.69314718056] * 2]), "token 0: baseline"),
        (lambda: full_kl([[0.0]], [[0.0, 0.0]]), "shape"),
    ],
)
def test_what_is_not_a_distribution_is_refused_by_name(call: Callable[[], TokenKl], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_an_impossible_token_under_the_candidate_is_infinite_and_said() -> None:
    found = full_kl([[math.log(0.5)] * 2], [[0.0, -math.inf]])
    assert found.lower[0] == math.inf
    assert "no chance" in found.no_upper_reason
