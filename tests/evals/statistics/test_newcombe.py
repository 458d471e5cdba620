"""Newcombe's hybrid score interval against published values."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.evals.statistics.newcombe import newcombe_interval

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text(), parse_float=Decimal)
INTERVALS = [v for v in VECTORS["paired_difference_ci"] if "newcombe10" in v]
count = st.integers(0, 200)


@pytest.mark.parametrize("vector", INTERVALS, ids=lambda v: f"{v['source']}:{v['table']}")
def test_newcombe_interval_matches_published_values(vector: dict[str, Any]) -> None:
    result = newcombe_interval(*vector["table"], level=float(vector["level"]))
    low, high = vector["newcombe10"]  # of baseline - candidate
    assert -result.ci_upper == pytest.approx(float(low), abs=0.5001 * 10.0 ** low.as_tuple().exponent)
    assert -result.ci_lower == pytest.approx(float(high), abs=0.5001 * 10.0 ** high.as_tuple().exponent)


@settings(max_examples=100, deadline=None)
@given(count, count, count, count)
def test_newcombe_interval_contains_its_estimate_and_mirrors_when_arms_swap(
    both: int, b: int, c: int, neither: int
) -> None:
    if both + b + c + neither == 0:
        return
    one, other = newcombe_interval(both, b, c, neither), newcombe_interval(both, c, b, neither)
    assert -1 - 1e-12 <= one.ci_lower <= one.delta <= one.ci_upper <= 1 + 1e-12
    assert (one.ci_lower, one.ci_upper) == pytest.approx((-other.ci_upper, -other.ci_lower), abs=1e-12)


def test_newcombe_interval_is_not_a_point_at_zero_discordance() -> None:
    result = newcombe_interval(198, 0, 0, 0)
    assert result.ci_upper > 0.01
    assert result.ci_lower < -0.01


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        newcombe_interval(0, 0, 0, 0)
