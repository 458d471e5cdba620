"""The pooled mean: what its limits must be in cases that are known otherwise."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.evals.statistics.mover import macro_mean, mover_limits

delta = st.floats(-0.5, 0.5)
half = st.floats(0.001, 0.3)


def test_one_task_keeps_its_own_limits() -> None:
    result = macro_mean([-0.01], [-0.04], [0.015], margin=0.05)
    assert (result.delta, result.lower, result.upper) == pytest.approx((-0.01, -0.04, 0.015))
    assert result.equivalent


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(delta, half), min_size=1, max_size=12))
def test_symmetric_limits_pool_like_independent_standard_errors(tasks: list[tuple[float, float]]) -> None:
    d = [x for x, _ in tasks]
    result = macro_mean(d, [x - w for x, w in tasks], [x + w for x, w in tasks], margin=0.05)
    expected = sqrt(sum(w * w for _, w in tasks)) / len(tasks)
    assert result.delta == pytest.approx(float(np.mean(d)))
    assert result.delta - result.lower == pytest.approx(expected)
    assert result.upper - result.delta == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(delta, half, half), min_size=1, max_size=12))
def test_swapping_the_arms_mirrors_the_pooled_limits(tasks: list[tuple[float, float, float]]) -> None:
    d, low, high = (
        [f(t) for t in tasks] for f in (lambda t: t[0], lambda t: t[0] - t[1], lambda t: t[0] + t[2])
    )
    one = macro_mean(d, low, high, margin=0.05)
    other = macro_mean([-x for x in d], [-x for x in high], [-x for x in low], margin=0.05)
    assert (one.lower, one.upper) == pytest.approx((-other.upper, -other.lower), abs=1e-12)


def test_limits_of_many_runs_at_once_are_those_of_each() -> None:
    rng = np.random.default_rng(2)
    d = rng.normal(0, 0.02, (4, 6))
    low, high = d - rng.random((4, 6)), d + rng.random((4, 6))
    _, lower, upper = mover_limits(d, low, high)
    for i in range(4):
        one = macro_mean(d[i], low[i], high[i], margin=0.05)
        assert (lower[i], upper[i]) == pytest.approx((one.lower, one.upper))


def test_a_limit_on_the_margin_does_not_pass() -> None:
    assert not macro_mean([0.0], [-0.05], [0.01], margin=0.05).noninferior
    on_top = macro_mean([0.0], [-0.01], [0.05], margin=0.05)
    assert on_top.noninferior
    assert not on_top.equivalent


@pytest.mark.parametrize(
    ("d", "low", "high"),
    [([], [], []), ([0.0, 0.0], [-0.1], [0.1]), ([0.0], [0.1], [0.2]), ([0.0], [float("nan")], [0.1])],
)
def test_limits_that_are_none_are_refused(d: list[float], low: list[float], high: list[float]) -> None:
    with pytest.raises(ValueError, match="task"):
        macro_mean(d, low, high, margin=0.05)
