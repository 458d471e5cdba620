"""Tango's test: published values, the likelihood it comes from, and what must hold for every table."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from statsmodels.stats.weightstats import ttost_paired

from equipoise.evals.statistics.tango import tango_delta_limits, tango_statistic, tango_test

# Decimal keeps the digits that were published, and so the tolerance.
VECTORS: dict[str, Any] = json.loads(
    Path(__file__).with_name("vectors.json").read_text(), parse_float=Decimal
)
INTERVALS = [v for v in VECTORS["paired_difference_ci"] if "tango" in v]
ZERO_DISCORDANCE = [v for v in VECTORS["paired_difference_ci"] if "zero_discordant_n" in v]


def half_a_digit(value: Decimal) -> float:
    """Half a unit of the last published digit, and a hair for values that fall on it."""
    return 0.5001 * 10.0 ** int(value.as_tuple().exponent)


@st.composite
def tables(draw: st.DrawFn, max_n: int = 400) -> tuple[int, int, int]:
    n = draw(st.integers(1, max_n))
    b = draw(st.integers(0, n))
    return b, draw(st.integers(0, n - b)), n


@pytest.mark.parametrize("vector", INTERVALS, ids=lambda v: f"{v['source']}:{v['table']}")
def test_tango_interval_matches_published_values(vector: dict[str, Any]) -> None:
    _, b, c, _ = vector["table"]
    result = tango_test(b, c, sum(vector["table"]), margin=0.05, level=float(vector["level"]))
    low, high = vector["tango"]  # of (b - c) / n: ours is its negative, reversed
    assert -result.ci_upper == pytest.approx(float(low), abs=half_a_digit(low))
    assert -result.ci_lower == pytest.approx(float(high), abs=half_a_digit(high))


@pytest.mark.parametrize("vector", ZERO_DISCORDANCE, ids=lambda v: str(v["zero_discordant_n"]))
def test_tango_interval_is_valid_at_zero_discordance(vector: dict[str, Any]) -> None:
    result = tango_test(0, 0, vector["zero_discordant_n"], margin=0.02, level=float(vector["level"]))
    expected = vector["tango_half_width"]
    assert result.ci_upper == pytest.approx(float(expected), abs=half_a_digit(expected))
    assert result.ci_lower == pytest.approx(-result.ci_upper, abs=1e-12)


def test_noninferiority_statistic_matches_its_reference() -> None:
    (vector,) = VECTORS["tango_noninferiority"]
    _, candidate_only, baseline_only, _ = vector["table"]  # the first arm is the candidate there
    result = tango_test(baseline_only, candidate_only, sum(vector["table"]), margin=0.1)
    assert -result.statistic_at_margin == pytest.approx(float(vector["T_at_null"]), abs=5e-5)
    assert result.noninferiority_p == pytest.approx(float(vector["p"]), abs=5e-6)


def test_zero_discordance_passes_only_the_margin_that_its_size_supports() -> None:
    assert tango_statistic(0, 0, 198, 0.02) == pytest.approx(-2.01, abs=5e-3)
    assert tango_statistic(0, 0, 198, 0.01) == pytest.approx(-1.41, abs=5e-3)
    assert tango_test(0, 0, 198, margin=0.02).noninferiority_p < 0.05
    assert tango_test(0, 0, 198, margin=0.01).noninferiority_p > 0.05


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (0, 1)])
def test_one_pair_gives_a_wide_interval_and_no_verdict(b: int, c: int) -> None:
    result = tango_test(b, c, 1, margin=0.05)
    assert result.ci_lower <= result.delta <= result.ci_upper
    assert result.ci_upper - result.ci_lower > 1.0
    assert result.noninferiority_p > 0.05
    assert result.equivalence_p > 0.05


@settings(max_examples=60, deadline=None)
@given(tables(max_n=60), st.floats(-0.9, 0.9))
def test_statistic_equals_the_score_test_of_the_numerical_likelihood(
    table: tuple[int, int, int], loss: float
) -> None:
    b, c, n = table

    def negative_log_likelihood(p_c: float) -> float:
        terms = ((b, p_c + loss), (c, p_c), (n - b - c, 1 - loss - 2 * p_c))
        return -sum(k * np.log(max(p, 1e-300)) for k, p in terms if k)

    bounds = (max(0.0, -loss), (1 - loss) / 2)
    fit = minimize_scalar(negative_log_likelihood, bounds=bounds, method="bounded", options={"xatol": 1e-12})
    variance = n * (2 * fit.x + loss * (1 - loss))
    if variance > 1e-3:
        expected = (b - c - n * loss) / np.sqrt(variance)
        assert tango_statistic(b, c, n, loss) == pytest.approx(expected, abs=1e-3, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(tables())
def test_swapping_the_arms_negates_and_reverses_the_interval(table: tuple[int, int, int]) -> None:
    b, c, n = table
    one, other = tango_test(b, c, n, margin=0.05), tango_test(c, b, n, margin=0.05)
    assert one.delta == -other.delta
    assert (one.ci_lower, one.ci_upper) == pytest.approx((-other.ci_upper, -other.ci_lower), abs=1e-12)
    assert one.statistic_at_margin == pytest.approx(-other.statistic_at_minus_margin, abs=1e-9)
    assert one.equivalence_p == pytest.approx(other.equivalence_p, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(tables())
def test_interval_contains_the_estimate_where_the_statistic_is_zero(table: tuple[int, int, int]) -> None:
    b, c, n = table
    result = tango_test(b, c, n, margin=0.05)
    assert tango_statistic(b, c, n, (b - c) / n) == 0.0
    assert -1.0 <= result.ci_lower <= result.lower <= result.delta <= result.upper <= result.ci_upper <= 1.0


@settings(max_examples=60, deadline=None)
@given(tables(), st.floats(0.005, 0.5), st.floats(0.01, 0.2))
def test_noninferiority_p_agrees_with_the_one_sided_bound(
    table: tuple[int, int, int], margin: float, alpha: float
) -> None:
    b, c, n = table
    result = tango_test(b, c, n, margin=margin, alpha=alpha)
    if abs(result.lower + margin) > 1e-9:
        assert (result.lower > -margin) == (result.noninferiority_p < alpha)
    if abs(result.upper - margin) > 1e-9 and abs(result.lower + margin) > 1e-9:
        assert (result.lower > -margin and result.upper < margin) == (result.equivalence_p < alpha)


@settings(max_examples=60, deadline=None)
@given(tables())
def test_one_more_lost_item_never_makes_the_candidate_look_better(table: tuple[int, int, int]) -> None:
    b, c, n = table
    if b + c < n:
        before, after = tango_test(b, c, n, margin=0.05), tango_test(b + 1, c, n, margin=0.05)
        assert after.lower <= before.lower + 1e-12
        assert after.upper <= before.upper + 1e-12
        assert after.noninferiority_p >= before.noninferiority_p - 1e-12


@settings(max_examples=100, deadline=None)
@given(st.integers(4_000, 20_000), st.floats(0.05, 0.3), st.floats(0.35, 0.65), st.floats(0.005, 0.05))
def test_with_many_pairs_it_agrees_with_two_one_sided_t_tests(
    n: int, p_d: float, share: float, margin: float
) -> None:
    """statsmodels' TOST of paired means estimates the variance freely; with many pairs that is all one."""
    b = round(n * p_d * share)
    c = round(n * p_d) - b
    difference = np.concatenate([np.full(b, -1.0), np.full(c, 1.0), np.zeros(n - b - c)])
    p, lower, upper = ttost_paired(difference, np.zeros(n), -margin, margin)
    result = tango_test(b, c, n, margin=margin)
    assert result.noninferiority_p == pytest.approx(lower[1], abs=0.01)
    assert norm.sf(result.statistic_at_minus_margin) == pytest.approx(upper[1], abs=0.01)
    assert result.equivalence_p == pytest.approx(p, abs=0.01)


def test_statistic_decreases_in_the_loss_for_all_tables_of_twelve_pairs() -> None:
    loss = np.linspace(-0.999, 0.999, 401)
    for b in range(13):
        for c in range(13 - b):
            assert np.all(np.diff(tango_statistic(b, c, 12, loss)) < 0), (b, c)


def test_limits_of_many_tables_at_once_are_those_of_each() -> None:
    b, c = np.array([0, 3, 40]), np.array([0, 9, 7])
    lower, upper = tango_delta_limits(b, c, 100, 0.95)
    for i in range(3):
        one = tango_test(int(b[i]), int(c[i]), 100, margin=0.05)
        assert (lower[i], upper[i]) == pytest.approx((one.lower, one.upper), abs=1e-14)
    assert tango_statistic(b, c, 100, -lower) == pytest.approx(np.full(3, -norm.ppf(0.95)), abs=1e-6)


@pytest.mark.parametrize(("b", "c", "n"), [(0, 0, 0), (-1, 0, 5), (3, 3, 5)])
def test_impossible_counts_are_refused_by_name(b: int, c: int, n: int) -> None:
    with pytest.raises(ValueError, match=rf"b={b}, c={c}, n={n}"):
        tango_test(b, c, n, margin=0.05)


@pytest.mark.parametrize("margin", [0.0, -0.1, 1.0, float("nan")])
def test_a_margin_that_is_no_fraction_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        tango_test(1, 1, 10, margin=margin)
