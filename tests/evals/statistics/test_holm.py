"""Adjusted p-values against published values and statsmodels."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from equipoise.evals.statistics.holm import benjamini_hochberg, holm, holm_adjusted

(VECTOR,) = json.loads(Path(__file__).with_name("vectors.json").read_text())["multiplicity"]
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=20)


def test_adjustments_match_reference_values() -> None:
    assert holm(VECTOR["p"]).adjusted == pytest.approx(VECTOR["holm"])
    assert benjamini_hochberg(VECTOR["p"]).adjusted == pytest.approx(VECTOR["bh"])


@settings(max_examples=15, deadline=None)  # statsmodels takes tens of milliseconds a call
@given(p_values)
def test_adjustments_agree_with_statsmodels(p: list[float]) -> None:
    assert holm(p).adjusted == pytest.approx(multipletests(p, method="holm")[1], abs=1e-12)
    assert benjamini_hochberg(p).adjusted == pytest.approx(multipletests(p, method="fdr_bh")[1], abs=1e-12)


def test_many_families_at_once_are_adjusted_each_by_itself() -> None:
    families = np.random.default_rng(1).random((5, 7))
    for row, adjusted in zip(families, holm_adjusted(families), strict=True):
        assert tuple(adjusted) == pytest.approx(holm(row).adjusted)


@pytest.mark.parametrize("bad", [[0.5, float("nan")], [1.5], [-0.1]])
def test_a_p_value_that_is_none_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="p-values"):
        holm(bad)
