"""Items of mixed difficulty: the rates asked for are the rates drawn, and the laws agree with draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.evals.statistics.item_model import item_model
from equipoise.evals.statistics.variance_components import variance_components

RATES = [(0.05, 0.0, 0.0), (0.12, 0.1, 0.01), (0.2, 0.05, -0.02), (0.3, 0.3, 0.0), (0.06, 0.05, 0.05)]


@pytest.mark.parametrize(("p_d", "noise", "loss"), RATES)
def test_draws_have_the_rates_that_were_asked_for(p_d: float, noise: float, loss: float) -> None:
    model = item_model(p_d=p_d, noise_p_d=noise, loss=loss)
    assert model.p_d >= p_d - 1e-9
    base, cand = model.draw(400_000, 2, np.random.default_rng(1))
    within = 4 * 0.5 / np.sqrt(400_000)
    assert np.mean(base[:, 0] != cand[:, 0]) == pytest.approx(model.p_d, abs=within)
    better = base if loss >= 0 else cand
    assert np.mean(better[:, 0] != better[:, 1]) == pytest.approx(noise, abs=within)
    assert base.mean() - cand.mean() == pytest.approx(loss, abs=within)


@pytest.mark.parametrize(("p_d", "noise", "loss"), RATES)
def test_the_difference_law_is_that_of_the_draws(p_d: float, noise: float, loss: float) -> None:
    model = item_model(p_d=p_d, noise_p_d=noise, loss=loss)
    values, law = model.difference_law(3)
    base, cand = model.draw(300_000, 3, np.random.default_rng(2))
    steps = np.round(3 * (cand.mean(axis=1) - base.mean(axis=1))).astype(int) + 3
    assert np.bincount(steps, minlength=7) / 300_000 == pytest.approx(law, abs=4e-3)
    assert values @ law == pytest.approx(-loss, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 0.4), st.floats(0, 0.3), st.floats(-0.1, 0.1), st.integers(1, 40))
def test_laws_are_probabilities_with_the_asked_mean_and_discordance(
    p_d: float, noise: float, loss: float, repeats: int
) -> None:
    try:
        model = item_model(p_d=p_d, noise_p_d=noise, loss=loss)
    except ValueError:
        return
    joint = model.joint_pmf(repeats)
    assert joint.min() >= -1e-12
    assert joint.sum() == pytest.approx(1.0, abs=1e-6)
    values, law = model.difference_law(1)
    assert law[0] + law[2] == pytest.approx(model.p_d, abs=1e-6)
    values, law = model.difference_law(repeats)
    assert values @ law == pytest.approx(-loss, abs=1e-6)


def test_without_noise_single_answers_are_the_trinomial_of_the_plan() -> None:
    _, law = item_model(p_d=0.045, loss=0.005).difference_law(1)
    assert law == pytest.approx([0.025, 0.955, 0.02], abs=1e-6)


def test_repeats_shrink_the_variance_as_the_components_say() -> None:
    model = item_model(p_d=0.15, noise_p_d=0.12, loss=0.0)
    base, cand = model.draw(100_000, 4, np.random.default_rng(3))
    found = variance_components(base, cand)
    assert found.within_baseline == pytest.approx(0.06, abs=1e-3)
    assert found.between == pytest.approx(0.03, abs=1e-3)
    for repeats in (1, 2, 8, 32):
        values, law = model.difference_law(repeats)
        assert values**2 @ law == pytest.approx(0.03 + 0.12 / repeats, abs=1e-6)


@pytest.mark.parametrize(
    ("p_d", "noise", "loss"), [(0.9, 0.0, 0.0), (0.1, 0.5, 0.0), (0.1, 0.1, 1.0), (float("nan"), 0.0, 0.0)]
)
def test_rates_that_no_items_have_are_refused(p_d: float, noise: float, loss: float) -> None:
    with pytest.raises(ValueError, match=r"no items|need 0 <="):
        item_model(p_d=p_d, noise_p_d=noise, loss=loss)
