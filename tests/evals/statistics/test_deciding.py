"""What would decide an undecided comparison, against the variance that the advised size would have."""

from dataclasses import dataclass, replace
from math import nan, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from equipoise.evals.statistics.deciding import units_to_decide
from equipoise.evals.statistics.power import items_to_decide, rejection_probability
from equipoise.evals.statistics.tango import tango_test

Z = float(norm.ppf(0.95))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A normal estimate: all that the advice may depend on."""

    n: int
    delta: float
    lower: float
    upper: float
    margin: float
    alpha: float = 0.05
    noninferiority_p: float = 0.5
    equivalence_p: float = 0.5
    method: str = ""
    citation: str = ""


def normal(*, n: int = 200, delta: float = 0.0, se: float = 0.02, margin: float = 0.02) -> Estimate:
    return Estimate(n=n, delta=delta, lower=delta - Z * se, upper=delta + Z * se, margin=margin)


def power_at(estimate: Estimate, se: float, share: float, k: int, items: int, repeats: int) -> float:
    """Power of the one-sided test at the size advised, from the two parts of the variance."""
    scaled = se * sqrt(estimate.n / items * (1 - share + share * k / repeats))
    return float(norm.cdf(abs(estimate.delta + estimate.margin) / scaled - Z))


@settings(max_examples=200, deadline=None)
@given(
    st.floats(-0.06, 0.03),
    st.floats(0.005, 0.05),
    st.floats(0, 1),
    st.integers(1, 16),
    st.sampled_from([0.8, 0.9]),
)
def test_the_advised_size_has_the_wanted_power_and_a_smaller_one_has_not(
    delta: float, se: float, share: float, k: int, power: float
) -> None:
    estimate = normal(delta=delta, se=se)
    found = units_to_decide(estimate, power=power, within_share=share, repeats=k)
    if found.advised_items is None or found.advised_repeats is None:
        assert found.reason
        return
    items, repeats = found.advised_items, found.advised_repeats
    assert power_at(estimate, se, share, k, items, repeats) >= power - 1e-9
    if repeats > k and items == estimate.n:  # repeats alone
        assert power_at(estimate, se, share, k, items, repeats - 1) < power
    elif items > 1:
        assert power_at(estimate, se, share, k, items - 1, repeats) < power + 1e-9
    if found.items is not None:
        assert power_at(estimate, se, share, k, found.items, k) >= power - 1e-9
    if found.repeats is not None:
        assert power_at(estimate, se, share, k, estimate.n, found.repeats) >= power - 1e-9


def test_repeats_come_first_while_they_carry_a_fifth_of_the_variance_then_items() -> None:
    found = units_to_decide(normal(), within_share=0.6, repeats=2)
    assert found.advised_repeats is not None
    within = 0.6 * 2 / found.advised_repeats
    assert within / (0.4 + within) < 0.2
    less = 0.6 * 2 / (found.advised_repeats - 1)
    assert less / (0.4 + less) >= 0.2
    assert found.items is not None
    assert found.advised_items is not None
    assert 200 < found.advised_items < found.items


def test_a_benchmark_whose_items_are_all_there_are_is_decided_by_repeats() -> None:
    found = units_to_decide(normal(n=30, se=0.03, margin=0.05), within_share=1.0, repeats=4)
    assert (found.advised_items, found.advised_repeats) == (30, found.repeats)
    assert found.repeats is not None
    assert found.repeats > 4
    assert found.advice == f"about {found.repeats} repeats of the same items"


def test_without_a_known_within_item_share_only_items_are_advised() -> None:
    found = units_to_decide(normal(), repeats=4)
    assert found.repeats is None
    assert (found.advised_items, found.advised_repeats) == (found.items, 4)
    assert units_to_decide(normal(), within_share=0.1, repeats=4).repeats is None  # no number would do


def test_a_loss_beyond_the_margin_is_decided_the_other_way() -> None:
    found = units_to_decide(normal(delta=-0.04, se=0.02))
    assert not found.noninferior
    assert found.items is not None
    assert power_at(normal(delta=-0.04), 0.02, 0.0, 1, found.items, 1) >= 0.8 - 1e-9


def test_what_nothing_decides_is_said_and_not_a_number() -> None:
    at_margin = units_to_decide(normal(delta=-0.02))
    assert (at_margin.items, at_margin.advised_items) == (None, None)
    assert "at the margin itself" in at_margin.advice
    near = units_to_decide(normal(delta=-0.02 + 1e-7))
    assert near.items is None
    assert "too near the margin" in near.advice
    unlimited = units_to_decide(replace(normal(), lower=nan))
    assert unlimited.items is None
    assert "no finite limits" in unlimited.advice


def test_for_a_binary_table_it_agrees_with_exact_enumeration_within_a_tenth() -> None:
    normal_size = units_to_decide(tango_test(60, 48, 1000, margin=0.025)).items
    exact = items_to_decide(60, 48, 1000, margin=0.025).items
    assert normal_size is not None
    assert exact is not None
    assert normal_size == pytest.approx(exact, rel=0.1)
    assert rejection_probability(normal_size, 0.025, 0.108, 0.012) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(
    ("given_", "named"),
    [({"power": 1.0}, "power"), ({"within_share": 1.5}, "within_share"), ({"repeats": 0}, "repeats")],
)
def test_impossible_requests_are_refused_by_name(given_: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        units_to_decide(normal(), **given_)  # type: ignore[arg-type]
