"""Levels of looks: against published boundaries, the multivariate normal, and brute force over tables."""

import itertools
from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multinomial, multivariate_normal, norm

from equipoise.evals.statistics.sequential import (
    SPENDING,
    LookDesign,
    cumulative_spending,
    false_nogo_probability,
    items_by_look,
    look_levels,
    normal_critical_values,
)
from equipoise.evals.statistics.tango import tango_delta_limits

FIFTHS = (0.2, 0.4, 0.6, 0.8, 1.0)


@pytest.mark.parametrize(
    ("spending", "published"),
    [  # one-sided .025, five looks; as tabulated for the two functions of Lan and DeMets (1983)
        ("obrien-fleming", (4.8769, 3.3569, 2.6803, 2.2898, 2.0310)),
        ("pocock", (2.4380, 2.4268, 2.4101, 2.3966, 2.3859)),
    ],
)
def test_boundaries_equal_the_published_ones(spending: str, published: tuple[float, ...]) -> None:
    found = normal_critical_values(FIFTHS, cumulative_spending(spending, FIFTHS, 0.025))
    assert found == pytest.approx(published, abs=1.5e-4)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(SPENDING),
    st.lists(st.integers(5, 95), min_size=1, max_size=3, unique=True),
    st.sampled_from([0.025, 0.05, 0.1]),
)
def test_no_path_of_the_multivariate_normal_exceeds_alpha(
    spending: str, percents: list[int], alpha: float
) -> None:
    times = (*(p / 100 for p in sorted(percents)), 1.0)
    spent = cumulative_spending(spending, times, alpha)
    z = np.array(normal_critical_values(times, spent))
    t = np.array(times)
    correlation = np.sqrt(np.minimum.outer(t, t) / np.maximum.outer(t, t))
    for k in range(1, len(times) + 1):
        inside = multivariate_normal(cov=correlation[:k, :k], abseps=1e-7, releps=1e-7).cdf(
            z[:k], rng=np.random.default_rng(1)
        )
        assert 1.0 - inside == pytest.approx(spent[k - 1], abs=2e-5)


def test_one_look_at_the_end_is_the_fixed_design() -> None:
    assert normal_critical_values((1.0,), (0.05,)) == pytest.approx([norm.isf(0.05)], abs=1e-9)


@pytest.mark.parametrize("spending", SPENDING)
def test_spending_ends_at_alpha_and_increases(spending: str) -> None:
    spent = cumulative_spending(spending, np.linspace(0.05, 1.0, 20).tolist(), 0.05)
    assert np.all(np.diff(spent) > 0)
    assert spent[-1] == pytest.approx(0.05)


def brute_force(design: LookDesign, levels: tuple[float, ...], p_d: float) -> float:
    """Sum over every sequence of tables, by the limits themselves."""
    probabilities = [(p_d + design.margin) / 2, (p_d - design.margin) / 2, 1 - p_d]
    steps = np.diff((0, *design.items))
    tables = [[(b, c) for b in range(s + 1) for c in range(s + 1 - b)] for s in steps]
    total = 0.0
    for path in itertools.product(*tables):
        probability, counts, stopped = 1.0, np.zeros(2, dtype=int), False
        for (b, c), step, n, level in zip(path, steps, design.items, levels, strict=True):
            probability *= multinomial.pmf([b, c, step - b - c], step, probabilities)
            counts += (b, c)
            _, upper = tango_delta_limits(counts[0], counts[1], n, 1.0 - level)
            stopped |= bool(upper < -design.margin)
        total += probability * stopped
    return total


@pytest.mark.parametrize("p_d", [0.2, 0.5])
def test_the_exact_probability_of_a_false_nogo_is_that_of_brute_force(p_d: float) -> None:
    design, levels = LookDesign(items=(3, 6, 8), margin=0.2), (0.03, 0.1, 0.2)
    assert false_nogo_probability(design, levels, p_d) == pytest.approx(
        brute_force(design, levels, p_d), abs=1e-10
    )


@pytest.mark.parametrize("spending", SPENDING)
@pytest.mark.parametrize(("items", "margin"), [(200, 0.05), (1319, 0.02)])
def test_a_false_nogo_stays_below_alpha_at_shares_between_the_grid(
    spending: str, items: int, margin: float
) -> None:
    times = (0.25, 0.5, 0.75)
    design = LookDesign(items=items_by_look(items, (*times, 1.0)), margin=margin)
    found = look_levels(times, spending=spending, designs=[design])
    rates = [false_nogo_probability(design, found.levels, p) for p in np.geomspace(margin, 0.6, 9)]
    assert max(rates) <= 0.0505  # the grid holds .05; between its points a few thousandths of it more
    assert max(rates) > 0.03  # nor is alpha thrown away
    nominal = look_levels(times, spending=spending)
    assert all(a <= b for a, b in zip(found.levels, nominal.levels, strict=True))
    liberal = max(false_nogo_probability(design, nominal.levels, p) for p in np.geomspace(margin, 0.6, 9))
    assert liberal > 0.0505, "the normal levels alone would have been too liberal"


def test_one_list_of_levels_serves_every_task() -> None:
    designs = [LookDesign(items=items_by_look(n, (0.5, 1.0)), margin=m) for n, m in ((100, 0.1), (700, 0.03))]
    both = look_levels((0.5,), designs=designs)
    for design in designs:
        assert all(false_nogo_probability(design, both.levels, p) <= 0.0505 for p in (0.1, 0.2, 0.4))
    assert both.nogo_alpha(both.end) == both.levels[-1]
    assert max(both.exact) <= 0.05


def test_without_binary_tasks_the_levels_are_the_normal_ones() -> None:
    found = look_levels((0.5,))
    assert isnan(found.exact[0])
    critical = normal_critical_values((0.5, 1.0), found.spent)
    assert found.levels == pytest.approx(norm.sf(critical))


def test_every_look_sees_at_least_an_item_and_never_more_than_there_are() -> None:
    assert items_by_look(1, (0.25, 0.5, 1.0)) == (1, 1, 1)
    assert items_by_look(10, (0.2, 0.25, 1.0)) == (2, 3, 10)


@pytest.mark.parametrize("fractions", [(), (0.5, 0.5), (0.7, 0.3), (0.0, 1.0), (0.5, 1.2)])
def test_fractions_that_do_not_increase_within_0_and_1_are_refused(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="fractions must increase"):
        cumulative_spending("pocock", fractions, 0.05)


def test_bad_designs_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown spending"):
        look_levels((0.5,), spending="hope")
    with pytest.raises(ValueError, match="need items at 2 looks"):
        look_levels((0.5,), designs=[LookDesign(items=(1, 2, 3), margin=0.1)])
    with pytest.raises(ValueError, match="p_d must lie between"):
        false_nogo_probability(LookDesign(items=(10,), margin=0.1), (0.05,), 0.05)
