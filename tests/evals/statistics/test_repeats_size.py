"""Items and repeats of a task: the rule, the formula, and the power of the analysis at what is advised."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.evals.statistics.power import sample_size
from equipoise.evals.statistics.repeats_size import advised_repeats, repeats_size, simulated_power


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.001, 0.4), st.floats(0, 1))
def test_the_rule_takes_the_fewest_repeats_that_leave_under_a_fifth_to_answers(
    p_d: float, share: float
) -> None:
    noise = p_d * share * 0.98
    k = advised_repeats(p_d, noise, most=10**6)
    between = p_d - noise

    def within(repeats: int) -> float:
        return (noise / repeats) / (between + noise / repeats)

    assert within(k) < 0.2
    assert k == 1 or within(k - 1) >= 0.2 - 1e-9


def test_a_server_that_answers_alike_is_asked_once_and_sized_exactly() -> None:
    found, exact = repeats_size(0.01, 0.9, 0.045, rng=rng()), sample_size(0.01, 0.9, 0.045)
    assert (found.repeats, found.n, found.n_exact) == (1, exact.n, exact.n_exact)
    assert found.power_exact == exact.power_exact


def test_a_noisy_server_needs_fewer_items_with_repeats_and_as_many_as_the_formula_says() -> None:
    once = repeats_size(0.02, 0.9, 0.15, noise_p_d=0.12, repeats=1, rng=rng())
    often = repeats_size(0.02, 0.9, 0.15, noise_p_d=0.12, rng=rng())
    assert often.repeats == 17
    assert often.n_exact < 0.3 * once.n_exact
    assert often.n_exact == pytest.approx(often.n, rel=0.06)
    assert often.power_exact >= 0.9
    assert (often.between, often.within) == pytest.approx((0.03, 0.06))


@pytest.mark.parametrize("equivalence", [False, True])
def test_the_analysis_of_simulated_runs_has_the_power_that_was_asked_for(equivalence: bool) -> None:
    size = repeats_size(
        0.03, 0.8, 0.1, noise_p_d=0.07, loss=0.005, equivalence=equivalence, repeats=3, rng=rng()
    )
    found = simulated_power(size, rng=rng(), draws=150)
    assert found.power == pytest.approx(0.8, abs=3.5 * found.standard_error)
    assert 0.02 < found.standard_error < 0.045
    smaller = simulated_power(size, rng=rng(), draws=150, items=size.n_exact // 3)
    assert smaller.power < 0.6


def test_a_candidate_that_differs_by_noise_alone_gets_a_hundred_items_and_few_repeats() -> None:
    found = repeats_size(0.05, 0.9, 0.12, noise_p_d=0.12, rng=rng())
    assert (found.n_exact, found.within_share) == (100, 1.0)
    assert 2 <= found.repeats <= 8
    assert found.power_exact >= 0.9
    assert "those items only" in found.note
    assert "100% of the variance" in found.note


def test_a_discordance_below_the_noise_is_raised_to_it() -> None:
    assert repeats_size(0.05, 0.8, 0.02, noise_p_d=0.1, rng=rng()).p_d == pytest.approx(0.1)


def test_sure_powers_still_have_a_standard_error() -> None:
    size = replace(repeats_size(0.05, 0.8, 0.02, rng=rng()), n_exact=2_000)
    found = simulated_power(size, rng=rng(), draws=20)
    assert found.power == 1.0
    assert found.standard_error > 0.0


@pytest.mark.parametrize(
    ("margin", "loss", "p_d", "says"),
    [
        (0.01, 0.01, 0.1, "no number of items"),
        (0.02, 0.0, 0.9, "no items"),
        (1e-4, 0.0, 0.2, "would be needed"),
    ],
)
def test_what_cannot_be_sized_is_refused(margin: float, loss: float, p_d: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        repeats_size(margin, 0.9, p_d, noise_p_d=0.1, loss=loss, rng=rng())
