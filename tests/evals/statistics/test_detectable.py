"""The smallest loss that the exact McNemar test finds."""

from math import isnan, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from equipoise.evals.statistics.detectable import alarm_probability, smallest_detectable_loss
from equipoise.evals.statistics.mcnemar import mcnemar_exact_p


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
