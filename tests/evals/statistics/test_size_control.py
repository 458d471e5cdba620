"""Exact size of Tango's test at its margin, as it is and controlled."""

import numpy as np
import pytest
from scipy.stats import norm

from equipoise.evals.statistics.power import rejection_probability, rejection_region
from equipoise.evals.statistics.size_control import (
    size_controlled_alpha,
    size_controlled_z,
    worst_case_size,
)

GRID_N = (100, 198, 500, 1319, 5000)
GRID_MARGIN = (0.01, 0.02, 0.05)
GRID_P_D = (0.01, 0.02, 0.05, 0.09, 0.12, 0.2)


def test_tango_size_at_the_margin_is_at_most_055_on_the_grid() -> None:
    for n in GRID_N:
        for margin in GRID_MARGIN:
            shares = tuple(p for p in GRID_P_D if p >= margin)
            assert worst_case_size(n, margin, p_d=shares).worst_size <= 0.055, (n, margin)


def test_tango_size_at_the_margin_is_at_most_07_for_every_discordant_share() -> None:
    worst = max(worst_case_size(n, margin).worst_size for n in (*GRID_N, 133) for margin in GRID_MARGIN)
    assert 0.0675 <= worst <= 0.07


@pytest.mark.parametrize(("n", "margin"), [(133, 0.02), (1319, 0.02), (400, 0.05)])
def test_a_controlled_alpha_keeps_the_size_at_alpha_also_between_the_shares_searched(
    n: int, margin: float
) -> None:
    alpha = size_controlled_alpha(n, margin)
    between = (*np.geomspace(margin, 0.6, 157), *(margin + np.arange(100) / (7 * n)))
    sizes = [rejection_probability(n, margin, float(p), margin, alpha=alpha) for p in between]
    assert max(sizes) <= 0.0503
    nominal = max(rejection_probability(n, margin, float(p), margin) for p in between)
    assert nominal > 0.05 > alpha


def test_the_controlled_critical_value_is_the_smallest_that_will_do() -> None:
    z = size_controlled_z(133, 0.02)
    assert z > norm.ppf(0.95)
    assert worst_case_size(133, 0.02, z=z).worst_size <= 0.05
    assert worst_case_size(133, 0.02, z=z - 1e-3).worst_size > 0.05


def test_where_the_nominal_test_holds_its_size_nothing_is_changed() -> None:
    assert size_controlled_z(198, 0.05, p_d=(0.05, 0.1)) == pytest.approx(norm.ppf(0.95))


def test_a_region_found_once_gives_the_same_probabilities() -> None:
    region = rejection_region(300, 0.03, 1.7, max_p_d=0.4)
    for p_d, loss in ((0.03, 0.03), (0.1, 0.0), (0.4, -0.05)):
        for equivalence in (False, True):
            assert region.probability(p_d, loss, equivalence=equivalence) == pytest.approx(
                rejection_probability(300, 0.03, p_d, loss, z=1.7, equivalence=equivalence), abs=1e-12
            )
