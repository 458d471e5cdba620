"""Sign flips against Fisher's analysis of Darwin's maize, enumeration and exact McNemar."""

import json
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.evals.statistics import sign_flip
from equipoise.evals.statistics.mcnemar import mcnemar_test
from equipoise.evals.statistics.sign_flip import sign_flip_test

(VECTOR,) = json.loads(Path(__file__).with_name("vectors.json").read_text())["sign_flip"]
# Crossed minus self-fertilised, in eighths of an inch (Darwin 1876; Fisher 1935, section 17).
MAIZE = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48])


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_darwins_maize_gives_fishers_p_value() -> None:
    ours = sign_flip_test(MAIZE / 75, rng=rng())
    assert ours.exact
    assert ours.gain_p == float(Fraction(VECTOR["one_sided"]))
    assert ours.two_sided_p == pytest.approx(VECTOR["two_sided"], abs=5e-8)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([-1.0, -2 / 3, -1 / 3, 0.0, 1 / 3, 2 / 3, 1.0, 0.125]), min_size=1, max_size=10)
)
def test_exact_p_values_equal_enumeration(difference: list[float]) -> None:
    d = np.array(difference)
    sums = np.array([(d * signs).sum() for signs in product((-1, 1), repeat=d.size)])
    ours = sign_flip_test(d, rng=rng())
    assert ours.exact
    assert ours.loss_p == pytest.approx(np.mean(sums <= d.sum() + 1e-9))
    assert ours.gain_p == pytest.approx(np.mean(sums >= d.sum() - 1e-9))
    assert ours.two_sided_p == pytest.approx(np.mean(np.abs(sums) >= abs(d.sum()) - 1e-9))
    assert ours.lost == pytest.approx(-d[d < 0].sum()) and ours.gained == pytest.approx(d[d > 0].sum())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10), st.integers(0, 10))
def test_single_right_or_wrong_answers_give_exact_mcnemar(b: int, c: int) -> None:
    ours = sign_flip_test([-1.0] * b + [1.0] * c + [0.0] * 30, rng=rng())
    exact = mcnemar_test(b, c)
    assert ours.two_sided_p == pytest.approx(exact.exact_p)
    assert ours.loss_p == pytest.approx(exact.loss_p)
    assert ours.gain_p == pytest.approx(exact.gain_p)
    assert (ours.lost, ours.gained, ours.nonzero_units) == (b, c, b + c)


def test_beyond_twenty_units_random_signs_agree_with_exact_values() -> None:
    few_values = sign_flip_test([-1.0] * 40 + [1.0] * 24, rng=rng(), resamples=100_000)
    assert not few_values.exact
    assert few_values.two_sided_p == pytest.approx(mcnemar_test(40, 24).exact_p, abs=0.003)
    # Twenty-one units of all sizes, counted over 2^21 signs.
    d = rng(2).uniform(-0.9, 0.6, size=21)
    ours = sign_flip_test(d, rng=rng(3), resamples=100_000)
    exact = sign_flip._exact_tail(np.abs(d), d.sum() + 1e-12)
    assert not ours.exact
    assert ours.loss_p == pytest.approx(exact, abs=4 * np.sqrt(exact / 100_000))


@pytest.mark.parametrize("units", [65, 300, 3_001])
def test_sums_of_many_distinct_units_have_the_moments_of_random_signs(units: int) -> None:
    size = np.sort(rng(units).random(units))
    sums = sign_flip._random_sums(size, 40_000, rng(4))
    variance = np.square(size).sum()
    assert sums.mean() == pytest.approx(0.0, abs=4 * np.sqrt(variance / 40_000))
    assert sums.var() == pytest.approx(variance, rel=0.03)
    fourth = 3 * variance**2 - 2 * (size**4).sum()
    assert (sums**4).mean() == pytest.approx(fourth, rel=0.06)
    assert np.unique(sums).size > 39_990  # no two draws share their signs


def test_a_p_value_is_never_zero_and_no_difference_is_one() -> None:
    surely = sign_flip_test(-rng().uniform(0.5, 1.0, size=200), rng=rng(), resamples=999)
    assert surely.two_sided_p == surely.loss_p == 1 / 1000
    assert surely.gain_p == 1.0
    none = sign_flip_test(np.zeros(200), rng=rng())
    assert none.two_sided_p == none.loss_p == none.gain_p == 1.0
    assert none.exact and none.nonzero_units == 0


def test_swapping_the_arms_swaps_loss_and_gain() -> None:
    d = np.round(rng(5).uniform(-0.5, 0.4, size=18), 3)
    there, back = sign_flip_test(d, rng=rng()), sign_flip_test(-d, rng=rng())
    assert (back.loss_p, back.gain_p) == pytest.approx((there.gain_p, there.loss_p))
    assert back.two_sided_p == pytest.approx(there.two_sided_p)
    assert (back.lost, back.gained) == (there.gained, there.lost)


def test_clusters_flip_as_one() -> None:
    d = np.array([0.1, 0.2, -0.05, 0.3, 0.3, -0.1])
    ours = sign_flip_test(d, rng=rng(), clusters=["a", "a", "b", "b", "c", "c"])
    of_cluster = sign_flip_test([0.3, 0.25, 0.2], rng=rng())
    assert ours.two_sided_p == of_cluster.two_sided_p == 0.25
    assert (ours.units, ours.n) == (3, 6)
    assert ours.lost == pytest.approx(0.15)  # of items, not of clusters


def test_the_level_is_kept_with_clusters_and_not_without() -> None:
    g, runs = rng(6), 400
    shared = g.choice([-0.2, 0.0, 0.2], size=(runs, 40))
    d = np.repeat(shared, 5, axis=1) + g.normal(0, 0.02, (runs, 200))
    labels = np.repeat(np.arange(40), 5)
    with_clusters = np.mean(
        [sign_flip_test(x, rng=g, clusters=labels, resamples=499).two_sided_p <= 0.05 for x in d]
    )
    without = np.mean([sign_flip_test(x, rng=g, resamples=499).two_sided_p <= 0.05 for x in d])
    assert with_clusters <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)
    assert without > 0.2


def test_no_resamples_are_refused() -> None:
    with pytest.raises(ValueError, match="resamples must be at least 1"):
        sign_flip_test([0.1] * 30, rng=rng(), resamples=0)
