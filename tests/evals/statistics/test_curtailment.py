"""Conditional power: against enumeration, and what stopping for futility costs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multinomial

from equipoise.evals.statistics.curtailment import (
    conditional_power,
    macro_conditional_power,
    project_counts,
    project_estimate,
    still_possible,
)
from equipoise.evals.statistics.power import rejection_probability
from equipoise.evals.statistics.tango import tango_delta_limits, tango_test

PLAN = {"p_d": 0.045, "loss": 0.005}


def enumerated(b: int, c: int, n: int, items: int, *, margin: float, p_d: float, loss: float) -> float:
    rest = items - n
    x, y = np.meshgrid(np.arange(rest + 1), np.arange(rest + 1), indexing="ij")
    x, y = x[x + y <= rest], y[x + y <= rest]
    probabilities = [(p_d + loss) / 2, (p_d - loss) / 2, 1 - p_d]
    pmf = multinomial.pmf(np.stack([x, y, rest - x - y], axis=1), rest, probabilities)
    lower, _ = tango_delta_limits(b + x, c + y, items, 0.95)
    return float(pmf[lower > -margin].sum())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 8), st.integers(0, 8), st.sampled_from([0.1, 0.2]), st.sampled_from([0.0, 0.05]))
def test_conditional_power_equals_the_sum_over_all_continuations(
    b: int, c: int, margin: float, loss: float
) -> None:
    found = conditional_power(b, c, 30, 45, margin=margin, p_d=0.1, loss=loss)
    assert float(found) == pytest.approx(
        enumerated(b, c, 30, 45, margin=margin, p_d=0.1, loss=loss), abs=1e-9
    )


def test_before_the_first_answer_it_is_the_power() -> None:
    assert float(conditional_power(0, 0, 0, 400, margin=0.05, **PLAN)) == pytest.approx(
        rejection_probability(400, 0.05, 0.045, 0.005), abs=1e-10
    )


@pytest.mark.parametrize(("b", "c"), [(10, 8), (40, 2)])
def test_after_the_last_answer_it_is_the_verdict(b: int, c: int) -> None:
    passed = tango_test(b, c, 400, margin=0.05).noninferiority_p <= 0.05
    assert float(conditional_power(b, c, 400, 400, margin=0.05, **PLAN)) == float(passed)
    assert bool(still_possible(b, c, 400, 400, margin=0.05)) == passed


def test_arrays_give_what_single_tables_give() -> None:
    b, c = np.array([[0, 3], [9, 20]]), np.array([[1, 0], [4, 2]])
    found = conditional_power(b, c, 100, 400, margin=0.05, **PLAN)
    pairs = zip(b.ravel(), c.ravel(), strict=True)
    single = [float(conditional_power(x, y, 100, 400, margin=0.05, **PLAN)) for x, y in pairs]
    assert found.ravel() == pytest.approx(np.array(single))


def test_what_is_called_impossible_is_impossible_and_the_rest_is_not() -> None:
    for b in range(0, 31, 3):
        possible = bool(still_possible(b, 0, 30, 36, margin=0.2))
        best = enumerated(b, 0, 30, 36, margin=0.2, p_d=0.5, loss=0.0)
        assert possible == (best > 0.0)


def test_stopping_below_gamma_loses_at_most_gamma_of_the_power() -> None:
    """Enumerated over all paths of two looks, at the plan's own assumptions."""
    items, looks, margin, gamma = 200, (60, 120), 0.06, 0.05
    p_d, loss = 0.06, 0.02
    rng = np.random.default_rng(5)
    steps = np.diff((0, *looks, items))
    draws = [rng.multinomial(s, [(p_d + loss) / 2, (p_d - loss) / 2, 1 - p_d], size=200_000) for s in steps]
    b, c = (np.cumsum([d[:, side] for d in draws], axis=0) for side in (0, 1))
    going = np.ones(200_000, dtype=bool)
    for k, n in enumerate(looks):
        going &= conditional_power(b[k], c[k], n, items, margin=margin, p_d=p_d, loss=loss) >= gamma
    passes = conditional_power(b[2], c[2], items, items, margin=margin, p_d=p_d, loss=loss) == 1.0
    lost = np.mean(passes & ~going)
    assert 0.0 < lost < gamma
    assert np.mean(~going) > 0.02  # it does stop


@pytest.mark.parametrize("n", [100, 200, 300])
@pytest.mark.parametrize("b", [4, 8, 12, 16])
def test_the_projection_of_counts_agrees_with_the_exact_power(b: int, n: int) -> None:
    exact = float(conditional_power(b, 4, n, 400, margin=0.05, **PLAN))
    projected = [x[..., None] for x in project_counts(b, 4, n, 400, **PLAN)]
    assert float(macro_conditional_power(*projected, margin=0.05)) == pytest.approx(exact, abs=0.05)


def test_the_projection_of_any_estimate_is_near_that_of_its_counts() -> None:
    result = tango_test(30, 12, 300, margin=0.05)
    by_counts = project_counts(30, 12, 300, 600, p_d=42 / 300, loss=0.005)
    by_estimate = project_estimate(result.delta, result.lower, 300, 600, loss=0.005)
    for one, other in zip(by_counts, by_estimate, strict=True):
        assert float(one) == pytest.approx(float(other), rel=0.1)


def test_an_estimate_without_a_limit_has_no_projection() -> None:
    projected = [[x] for x in project_estimate(-0.1, -np.inf, 10, 20, loss=0.0)]
    assert np.isnan(macro_conditional_power(*projected, margin=0.05))


def test_at_the_end_the_macro_mean_passes_or_does_not() -> None:
    assert macro_conditional_power([0.0, -0.01], [0.02, 0.02], [0.0, 0.0], margin=0.05) == 1.0
    assert macro_conditional_power([0.0, -0.1], [0.02, 0.02], [0.0, 0.0], margin=0.05) == 0.0


def test_bad_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="b \\+ c <= n"):
        conditional_power(20, 20, 30, 40, margin=0.05, **PLAN)
    with pytest.raises(ValueError, match="n <= items"):
        still_possible(1, 1, 50, 40, margin=0.05)
    with pytest.raises(ValueError, match="abs\\(loss\\) <= p_d"):
        conditional_power(1, 1, 30, 40, margin=0.05, p_d=0.01, loss=0.02)
