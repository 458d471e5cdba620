"""Imagined tasks: their limits and alarms against the analysis that real tasks get."""

import numpy as np
import pytest
from scipy.stats import norm

from equipoise.evals.statistics.fixed_benchmark import fixed_benchmark
from equipoise.evals.statistics.item_model import item_model
from equipoise.evals.statistics.power import rejection_probability
from equipoise.evals.statistics.primary import difference_test, estimate_delta
from equipoise.evals.statistics.skew_limits import skew_corrected_limits
from equipoise.evals.statistics.task_draws import TaskDesign, draw_task, pooled_alarm_p


def design(**changes: object) -> TaskDesign:
    given = {"name": "t", "n": 200, "margin": 0.03, "p_d": 0.08, "loss": 0.01, "critical": True}
    return TaskDesign(**(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n", "repeats", "p_d", "noise", "loss"),
    [
        (198, 8, 0.15, 0.12, 0.01),
        (120, 4, 0.05, 0.02, 0.03),
        (400, 2, 0.03, 0.01, 0.0),
        (40, 8, 0.3, 0.2, 0.0),
    ],
)
def test_power_is_that_of_the_analysis_itself_within_its_monte_carlo_error(
    n: int, repeats: int, p_d: float, noise: float, loss: float
) -> None:
    rng, margin, runs = np.random.default_rng(7), 0.03, 150
    model = item_model(p_d=p_d, noise_p_d=noise, loss=loss)
    passes = alarms = 0
    for _ in range(runs):
        base, cand = model.draw(n, repeats, rng)
        passes += estimate_delta(base, cand, margin=margin, alpha=0.05, rng=rng).lower > -margin
        alarms += difference_test(base, cand, rng=rng).two_sided_p <= 0.05
    drawn = draw_task(
        design(n=n, repeats=repeats, p_d=p_d, noise_p_d=noise, loss=loss), alpha=0.05, draws=20_000, rng=rng
    )
    for seen, predicted in (
        (passes, np.mean(drawn.lower > -margin)),
        (alarms, np.mean(drawn.alarm_p <= 0.05)),
    ):
        error = np.sqrt(predicted * (1 - predicted) / runs) + 1e-3
        assert seen / runs == pytest.approx(predicted, abs=3.5 * error + 0.01)


def test_single_answers_have_the_exact_power() -> None:
    drawn = draw_task(design(), alpha=0.05, draws=40_000, rng=np.random.default_rng(1))
    exact = rejection_probability(200, 0.03, 0.08, 0.01)
    assert np.mean(drawn.lower > -0.03) == pytest.approx(exact, abs=0.01)


def test_a_task_with_its_own_alpha_uses_it() -> None:
    drawn = draw_task(design(alpha=0.01), alpha=0.05, draws=40_000, rng=np.random.default_rng(1))
    exact = rejection_probability(200, 0.03, 0.08, 0.01, alpha=0.01)
    assert np.mean(drawn.lower > -0.03) == pytest.approx(exact, abs=0.01)


def test_few_items_asked_often_get_the_fixed_benchmark_limits() -> None:
    rng = np.random.default_rng(4)
    drawn = draw_task(design(n=1, repeats=4, p_d=0.4, noise_p_d=0.4), alpha=0.05, draws=500, rng=rng)
    by_delta: dict[float, set[float]] = {}
    for base in range(5):
        for cand in range(5):
            scores = [[[1.0] * k + [0.0] * (4 - k)] for k in (base, cand)]
            found = fixed_benchmark(*scores, margin=0.03)
            by_delta.setdefault(round(found.delta, 9), set()).add(round(found.lower, 9))
    for delta, lower in zip(drawn.delta, drawn.lower, strict=True):
        assert round(float(lower), 9) in by_delta[round(float(delta), 9)]


def test_without_skewness_the_limits_are_those_of_z() -> None:
    lower, upper = skew_corrected_limits(0.1, 0.04, 0.0, 100, 0.05)
    assert (float(lower), float(upper)) == pytest.approx(
        (0.1 - norm.isf(0.05) * 0.02, 0.1 + norm.isf(0.05) * 0.02)
    )


def test_skewed_limits_cover_a_skewed_mean_where_z_does_not() -> None:
    x = np.random.default_rng(5).exponential(size=(40_000, 30))
    mean, variance = x.mean(axis=1), x.var(axis=1, ddof=1)
    third = np.mean((x - mean[:, None]) ** 3, axis=1)
    _, upper = skew_corrected_limits(mean, variance, third, 30, 0.05)
    plain = mean + norm.isf(0.05) * np.sqrt(variance / 30)
    assert np.mean(plain < 1.0) > 0.09  # of a nominal 5%
    assert np.mean(upper < 1.0) < 0.075


def test_no_spread_has_no_skew_corrected_limits() -> None:
    assert np.isnan(skew_corrected_limits(0.0, 0.0, 0.0, 50, 0.05)).all()


def test_items_that_never_change_fall_back_to_limits_with_width() -> None:
    drawn = draw_task(
        design(n=300, repeats=2, p_d=0.0, loss=0.0), alpha=0.05, draws=50, rng=np.random.default_rng(6)
    )
    assert np.all(drawn.delta == 0.0)
    assert np.all((drawn.lower < 0.0) & (drawn.lower > -0.02))


def test_too_few_changed_items_never_ring_the_pooled_alarm() -> None:
    drawn = draw_task(
        design(n=100, repeats=2, p_d=0.02, noise_p_d=0.01, loss=0.02),
        alpha=0.05,
        draws=2_000,
        rng=np.random.default_rng(8),
    )
    assert np.all(pooled_alarm_p([drawn])[drawn.changed <= 5] > 0.05)  # 2 / 2^5


def test_impossible_rates_name_the_task() -> None:
    with pytest.raises(ValueError, match="'copy'"):
        draw_task(design(name="copy", repeats=2, p_d=0.9), alpha=0.05, draws=10, rng=np.random.default_rng(1))
