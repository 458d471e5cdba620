"""Variance components: hand-worked values, unbiasedness by simulation, an independent ANOVA."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from equipoise.evals.statistics.variance_components import noise_components, variance_components


def test_a_table_worked_by_hand() -> None:
    found = variance_components([[1, 0], [1, 1], [0, 0]], [[0, 0], [1, 1], [1, 0]])
    assert found.within_baseline == pytest.approx((0.5 + 0 + 0) / 3)
    assert found.within_candidate == pytest.approx((0 + 0 + 0.5) / 3)
    differences = np.array([-0.5, 0.0, 0.5])
    assert found.between == pytest.approx(differences.var(ddof=1) - 1 / 12 - 1 / 12)
    assert found.delta == 0.0
    assert found.variance_of_delta() == pytest.approx(differences.var(ddof=1) / 3)
    assert found.within_share == pytest.approx((1 / 6) / 0.25)


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.float64, (9, 4), elements=st.floats(0, 1)), arrays(np.float64, (9, 4), elements=st.floats(0, 1))
)
def test_with_equal_repeats_it_is_the_one_way_analysis_of_variance(
    base: np.ndarray, cand: np.ndarray
) -> None:
    """Repeats numbered at random make ``cand - base`` a one-way layout whose residual is s_A^2 + s_B^2."""
    found = variance_components(base, cand)
    total = base.var(axis=1, ddof=1).mean() + cand.var(axis=1, ddof=1).mean()
    assert found.within_baseline + found.within_candidate == pytest.approx(total)
    means = (cand - base).mean(axis=1)
    between_square = 4 * np.square(means - means.mean()).sum() / 8  # K times the variance of the means
    assert found.between_untruncated == pytest.approx((between_square - total) / 4, abs=1e-12)
    assert found.between == max(found.between_untruncated, 0.0)
    assert bool(found.note) == (found.between_untruncated < 0.0)


def test_the_estimates_are_unbiased_for_items_of_mixed_difficulty() -> None:
    rng = np.random.default_rng(5)
    found = []
    for _ in range(400):
        p = rng.beta(2.0, 1.0, size=200)
        q = np.where(rng.random(200) < 0.1, rng.beta(2.0, 1.0, size=200), p)
        base = (rng.random((200, 2)) < p[:, None]).astype(float)
        cand = (rng.random((200, 5)) < q[:, None]).astype(float)
        c = variance_components(base, cand)
        found.append((c.between_untruncated, c.within_baseline, c.within_candidate))
    mean, se = np.mean(found, axis=0), np.std(found, axis=0) / 20
    variance = 2 / 9 / 4  # of Beta(2, 1)
    truth = np.array([0.1 * 2 * variance, 2 / 3 - variance - 4 / 9, 2 / 3 - variance - 4 / 9])
    assert np.all(np.abs(mean - truth) < 4 * se), (mean, truth, se)


def test_one_server_asked_twice_gives_half_its_discordant_share() -> None:
    first, second = np.array([1.0, 1, 0, 0, 1, 1]), np.array([1.0, 0, 0, 1, 1, 1])
    found = noise_components(first, second)
    assert found.within_baseline == found.within_candidate == pytest.approx(2 / 6 / 2)
    assert found.between == pytest.approx(0.0, abs=0.07)
    assert found.within_share == pytest.approx(1.0, abs=0.2)


def test_repeats_shrink_the_within_part_only() -> None:
    rng = np.random.default_rng(2)
    found = variance_components(rng.integers(0, 2, (50, 3)), rng.integers(0, 2, (50, 4)))
    many = found.variance_of_delta(items=100, repeats_baseline=10**9, repeats_candidate=10**9)
    assert many == pytest.approx(found.between / 100, abs=1e-9)


def test_arms_that_never_vary_have_no_share_to_speak_of() -> None:
    assert variance_components(np.ones((4, 2)), np.ones((4, 2))).within_share is None


@pytest.mark.parametrize(
    ("base", "cand", "named"),
    [
        ([[1], [0]], [[1, 1], [0, 1]], "baseline"),
        ([[1, 1], [0, 1]], [[1], [0]], "candidate"),
        ([[1, 0]], [[1, 0]], "at least 2 items"),
        ([[1, np.nan], [0, 1]], [[1, 0], [1, 1]], "baseline"),
    ],
)
def test_what_cannot_be_estimated_is_refused_by_name(base: object, cand: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        variance_components(base, cand)  # type: ignore[arg-type]
