"""Exact power: against a sum over all tables, published sizes, and what the plan promises."""

import json
from math import nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multinomial, norm

from equipoise.evals.statistics.power import (
    items_to_decide,
    rejection_probability,
    sample_size,
    sample_size_formula,
)
from equipoise.evals.statistics.tango import tango_statistic

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text())


def probability_over_all_tables(
    n: int, margin: float, p_d: float, loss: float, *, equivalence: bool
) -> float:
    """The definition, summed over every (b, c)."""
    b, c = (x.ravel() for x in np.meshgrid(np.arange(n + 1), np.arange(n + 1)))
    b, c = b[b + c <= n], c[b + c <= n]
    z = norm.ppf(0.95)
    rejects = tango_statistic(b, c, n, margin) <= -z
    if equivalence:
        rejects &= tango_statistic(b, c, n, -margin) >= z
    shares = [(p_d + loss) / 2, (p_d - loss) / 2, 1 - p_d]
    return float(multinomial.pmf(np.stack([b, c, n - b - c], axis=1), n, shares)[rejects].sum())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 70), st.floats(0.005, 0.3), st.floats(0.01, 0.9), st.floats(-1, 1), st.booleans())
def test_enumeration_equals_the_sum_over_all_tables(
    n: int, margin: float, p_d: float, share: float, equivalence: bool
) -> None:
    loss = share * p_d
    expected = probability_over_all_tables(n, margin, p_d, loss, equivalence=equivalence)
    assert rejection_probability(n, margin, p_d, loss, equivalence=equivalence) == pytest.approx(
        expected, abs=1e-9
    )


@pytest.mark.parametrize(
    ("margin", "n", "p_d", "size"),
    [(0.01, 100, 0.05, 0.0549), (0.02, 1319, 0.02, 0.0544), (0.02, 133, 0.02, 0.068)],
)
def test_exact_size_of_tango_exceeds_alpha_where_it_is_known_to(
    margin: float, n: int, p_d: float, size: float
) -> None:
    digits = 5e-5 if size != 0.068 else 5e-4
    assert rejection_probability(n, margin, p_d, margin) == pytest.approx(size, abs=digits)


@pytest.mark.parametrize("vector", VECTORS["sample_size"], ids=lambda v: f"{v['kind']}:{v['p_d']}")
def test_sample_size_formula_matches_reference_values(vector: dict[str, float]) -> None:
    n = sample_size_formula(
        vector["margin"], vector["power"], vector["p_d"], equivalence=vector["kind"] == "equivalence"
    )
    assert n == vector["n"]


@pytest.mark.parametrize(("p_d", "true_power"), [(0.045, 0.71), (0.02, 0.25)])
def test_the_formula_over_promises_when_few_pairs_are_discordant(p_d: float, true_power: float) -> None:
    size = sample_size(0.05, 0.8, p_d)
    assert size.power_at_n == pytest.approx(true_power, abs=5e-3)
    assert size.n_exact > size.n
    assert size.power_exact >= 0.8


@pytest.mark.parametrize(("loss", "power"), [(0.005, 0.99), (0.01, 0.96)])
def test_a_critical_task_of_the_embedded_plan_has_the_stated_power(loss: float, power: float) -> None:
    assert rejection_probability(400, 0.05, 0.045, loss) == pytest.approx(power, abs=5e-3)


def test_release_grade_margin_needs_about_3900_items() -> None:
    assert sample_size(0.01, 0.9, 0.045).n_exact == pytest.approx(3900, abs=50)


def test_exact_sizes_keep_their_power_when_a_few_items_are_added() -> None:
    for equivalence in (False, True):
        size = sample_size(0.02, 0.8, 0.05, loss=0.002, equivalence=equivalence)
        powers = [
            rejection_probability(size.n_exact + k, 0.02, 0.05, 0.002, equivalence=equivalence)
            for k in range(10)
        ]
        assert min(powers) >= 0.8


def test_a_loss_as_large_as_the_margin_cannot_be_sized() -> None:
    with pytest.raises(ValueError, match="no number of items"):
        sample_size(0.01, 0.8, 0.05, loss=0.01)


@pytest.mark.parametrize(
    ("n", "p_d", "loss"), [(0, 0.1, 0.0), (10, 0.01, 0.02), (10, 1.2, 0.0), (10, nan, 0.0)]
)
def test_impossible_rates_are_refused(n: int, p_d: float, loss: float) -> None:
    with pytest.raises(ValueError, match="need n >= 1"):
        rejection_probability(n, 0.05, p_d, loss)


def test_items_to_decide_points_the_way_the_data_do() -> None:
    below = items_to_decide(12, 9, 200, margin=0.05)
    assert below.noninferior
    assert below.items is not None
    assert rejection_probability(below.items, 0.05, 21 / 200, 3 / 200) >= 0.8
    above = items_to_decide(20, 6, 200, margin=0.05)
    assert not above.noninferior
    assert above.items is not None
    assert above.items > 200
    assert items_to_decide(10, 0, 200, margin=0.05).items is None  # exactly at the margin


def test_items_to_decide_without_any_discordant_pair_is_what_zero_discordance_needs() -> None:
    size = items_to_decide(0, 0, 20, margin=0.05)
    assert size.items is not None
    assert tango_statistic(0, 0, size.items, 0.05) <= -norm.ppf(0.95)
    assert tango_statistic(0, 0, size.items - 1, 0.05) > -norm.ppf(0.95)
