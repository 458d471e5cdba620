"""The smallest loss that the exact McNemar test finds."""

import json
from math import isnan, sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from equipoise.evals.statistics.detectable import (
    alarm_probability,
    detectable_at_standard_error,
    smallest_detectable_loss,
)
from equipoise.evals.statistics.mcnemar import mcnemar_exact_p
from equipoise.evals.statistics.power import sample_size_formula

Z_GATES = json.loads(Path(__file__).with_name("vectors.json").read_text())["z_gate"]


@pytest.mark.parametrize(("p_d", "loss"), [(0.1, 0.03), (0.3, 0.1), (0.05, 0.05)])
def test_alarm_probability_equals_the_simulated_one(p_d: float, loss: float) -> None:
    counts = np.random.default_rng(1).multinomial(
        200, [(p_d + loss) / 2, (p_d - loss) / 2, 1 - p_d], size=40_000
    )
    b, c = counts[:, 0], counts[:, 1]
    simulated = np.mean((mcnemar_exact_p(b, c) <= 0.05) & (b > c))
    assert alarm_probability(200, p_d, loss) == pytest.approx(simulated, abs=0.01)


def test_without_a_loss_the_alarm_rings_at_most_in_half_of_alpha() -> None:
    for n in (20, 200, 2000):
        assert alarm_probability(n, 0.1, 0.0) <= 0.025


def test_the_smallest_detectable_loss_has_the_wanted_power_and_less_has_not() -> None:
    found = smallest_detectable_loss(1800, 0.045)
    assert alarm_probability(1800, 0.045, found.loss) >= 0.8
    assert alarm_probability(1800, 0.045, found.loss - 1e-4) < 0.8
    normal = (norm.ppf(0.975) + norm.ppf(0.8)) * sqrt(0.045 / 1800)
    assert found.loss == pytest.approx(normal, rel=0.1)


def test_too_few_pairs_detect_no_loss_at_all() -> None:
    assert isnan(smallest_detectable_loss(5, 0.1).loss)  # 5 against 0 has p = .0625
    assert smallest_detectable_loss(200, 0.0).loss < 0.05  # none discordant now, a loss would make some


@pytest.mark.parametrize("vector", Z_GATES, ids=lambda v: str(v["n"]))
def test_a_published_z_gate_follows_from_the_same_formulas(vector: dict[str, float]) -> None:
    """One-sided, two independent arms, in points of 100: its threshold is the loss found half of the time."""
    n, alpha, power = int(vector["n"]), vector["alpha"], 1 - vector["beta"]
    variance = 2 * (vector["sigma"] / 100) ** 2
    found, threshold = (
        detectable_at_standard_error(n, variance, sqrt(variance / n), power=p, alpha=2 * alpha).loss
        for p in (power, 0.5)
    )
    assert 100 * found == pytest.approx(vector["theta"], abs=1e-6)
    assert -100 * threshold == pytest.approx(vector["threshold"], abs=1e-6)
    assert sample_size_formula(vector["theta"] / 100, power, variance, alpha=alpha) == pytest.approx(n, abs=1)


def test_no_spread_tells_nothing_about_what_would_be_noticed() -> None:
    for error in (0.0, float("nan")):
        assert isnan(detectable_at_standard_error(100, 0.1, error).loss)
