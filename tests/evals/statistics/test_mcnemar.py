"""McNemar's test against published values and statsmodels."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar

from equipoise.evals.statistics.mcnemar import mcnemar_exact_p, mcnemar_test

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("vectors.json").read_text())["mcnemar"]
# name in the vectors -> (attribute, relative tolerance of the digits given)
FIELDS = {
    "exact_two_sided": ("exact_p", 1e-5),
    "mid_p": ("mid_p", 2e-5),
    "asymptotic": ("chi2_p", 2e-5),
    "p": ("chi2_p", 1e-6),
    "chi2": ("chi2", 1e-6),
    "continuity_corrected": ("chi2_corrected_p", 5e-4),
    "chi2_continuity_corrected": ("chi2_corrected", 1e-6),
    "p_continuity_corrected": ("chi2_corrected_p", 1e-6),
    "exact_one_sided": ("loss_p", 1e-5),
}


def discordant(vector: dict[str, Any]) -> tuple[int, int]:
    return (vector["table"][1], vector["table"][2]) if "table" in vector else (vector["b"], vector["c"])


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['source']}:{discordant(v)}")
def test_mcnemar_matches_published_values(vector: dict[str, Any]) -> None:
    result = mcnemar_test(*discordant(vector))
    checked = [name for name in FIELDS if name in vector]
    assert checked
    for name in checked:
        attribute, tolerance = FIELDS[name]
        # The 60/30 and 30/10 references are given to six decimals.
        assert getattr(result, attribute) == pytest.approx(vector[name], rel=tolerance, abs=6e-7), name


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_agrees_with_statsmodels(b: int, c: int) -> None:
    table = [[7, b], [c, 5]]
    result = mcnemar_test(b, c)
    if b + c:
        assert result.exact_p == pytest.approx(mcnemar(table, exact=True).pvalue, rel=1e-9)
        plain, corrected = (mcnemar(table, exact=False, correction=k) for k in (False, True))
        assert result.chi2_p == pytest.approx(plain.pvalue, rel=1e-9)
        if b != c:  # statsmodels' correction turns a difference of 0 into 1
            assert result.chi2_corrected_p == pytest.approx(corrected.pvalue, rel=1e-9)
    assert mcnemar_exact_p(b, c) == pytest.approx(result.exact_p, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_is_symmetric_and_its_tails_complete_each_other(b: int, c: int) -> None:
    one, other = mcnemar_test(b, c), mcnemar_test(c, b)
    assert one.exact_p == other.exact_p
    assert (one.loss_p, one.loss_mid_p) == pytest.approx((other.gain_p, other.gain_mid_p), rel=1e-9)
    assert one.mid_p <= one.exact_p
    if b + c:
        assert one.loss_mid_p + one.gain_mid_p == pytest.approx(1.0)


def test_no_discordant_pairs_are_no_evidence_of_a_difference() -> None:
    result = mcnemar_test(0, 0)
    assert (result.exact_p, result.mid_p, result.loss_p, result.gain_p) == (1.0, 1.0, 1.0, 1.0)
    assert result.chi2 != result.chi2  # undefined, not 0


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="b=-1"):
        mcnemar_test(-1, 3)
