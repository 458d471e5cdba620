"""Do arms lose samples at different rates?"""

import pytest
from scipy.stats import hypergeom

from equipoise.evals.statistics.missingness import differential_missingness


def test_fisher_p_is_the_sum_of_tables_at_most_as_likely() -> None:
    result = differential_missingness(1, 300, 9, 300)
    tables = hypergeom(600, 10, 300)
    seen = tables.pmf(1)
    expected = sum(tables.pmf(k) for k in range(11) if tables.pmf(k) <= seen * (1 + 1e-9))
    assert result.p == pytest.approx(expected)
    assert (result.baseline_rate, result.candidate_rate) == (1 / 300, 9 / 300)


def test_nothing_missing_is_no_difference() -> None:
    assert differential_missingness(0, 100, 0, 100).p == 1.0


def test_ten_lost_in_one_arm_only_is_a_difference() -> None:
    assert differential_missingness(0, 1800, 10, 1800).p < 0.01


@pytest.mark.parametrize("counts", [(0, 0, 0, 5), (6, 5, 0, 5), (-1, 5, 0, 5)])
def test_impossible_counts_are_refused_by_arm(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="baseline"):
        differential_missingness(*counts)
