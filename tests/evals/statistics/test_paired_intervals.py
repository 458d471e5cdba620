"""Wald and Bonett-Price intervals against published values."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.evals.statistics.paired_intervals import bonett_price_interval, wald_interval

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text(), parse_float=Decimal)
METHODS = {"wald": wald_interval, "bonett_price": bonett_price_interval}
CASES = [(name, v) for v in VECTORS["paired_difference_ci"] for name in METHODS if name in v]


@pytest.mark.parametrize(("name", "vector"), CASES, ids=lambda x: x if isinstance(x, str) else x["source"])
def test_the_interval_matches_published_values(name: str, vector: dict[str, Any]) -> None:
    _, b, c, _ = vector["table"]
    found = METHODS[name](b, c, sum(vector["table"]), level=float(vector["level"]))
    low, high = vector[name]  # of baseline - candidate
    assert -found.ci_upper == pytest.approx(float(low), abs=0.5001 * 10.0 ** low.as_tuple().exponent)
    assert -found.ci_lower == pytest.approx(float(high), abs=0.5001 * 10.0 ** high.as_tuple().exponent)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 200))
def test_intervals_mirror_when_the_arms_swap(b: int, c: int, concordant: int) -> None:
    if b + c + concordant == 0:
        return
    for method in METHODS.values():
        one, other = method(b, c, b + c + concordant), method(c, b, b + c + concordant)
        assert (one.ci_lower, one.ci_upper) == pytest.approx((-other.ci_upper, -other.ci_lower), abs=1e-12)


def test_wald_is_a_point_at_zero_discordance_and_bonett_price_is_not() -> None:
    wald, adjusted = wald_interval(0, 0, 198), bonett_price_interval(0, 0, 198)
    assert (wald.ci_lower, wald.ci_upper) == (0.0, 0.0)
    assert adjusted.ci_upper > 0.01


@pytest.mark.parametrize(
    ("b", "c", "n", "level"), [(0, 0, 0, 0.95), (-1, 0, 5, 0.95), (3, 3, 5, 0.95), (1, 1, 5, 95)]
)
def test_impossible_tables_are_refused(b: int, c: int, n: int, level: float) -> None:
    for method in METHODS.values():
        with pytest.raises(ValueError, match=r"n >= 1|level"):
            method(b, c, n, level=level)
