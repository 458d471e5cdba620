"""Every way of drawing has the law of resampling rows one by one."""

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chisquare, ks_2samp

from equipoise.evals.statistics import resample
from equipoise.evals.statistics.resample import distinct_rows, resampled_totals

RESAMPLES = 20_000
# A false alarm of these seeded tests would have been seen when they were written.
TINY = 1e-3
WAYS: dict[str, Callable[..., Any]] = {
    "counts": resample._by_counts,
    "groups of 2": lambda x, c, r, g: resample._in_groups(x, c, 2, r, g),
    "groups of 3": lambda x, c, r, g: resample._in_groups(x, c, 3, r, g),
    "one by one": lambda x, c, r, g: resample._one_by_one(np.repeat(x, c, axis=0), int(c.sum()), r, g),
}


@pytest.mark.parametrize("way", WAYS)
def test_totals_of_four_rows_occur_as_often_as_enumeration_says(way: str) -> None:
    values, counts = np.array([[-0.4, 0.16], [0.1, 0.01], [0.7, 0.49]]), np.array([1, 2, 1])
    rows = np.repeat(values, counts, axis=0)
    exact = Counter(
        tuple(np.round(rows[list(drawn)].sum(axis=0), 9)) for drawn in product(range(4), repeat=4)
    )
    totals = WAYS[way](values, counts, RESAMPLES, np.random.default_rng(3))
    seen = Counter(map(tuple, np.round(totals, 9)))
    assert set(seen) <= set(exact)
    expected = [RESAMPLES * exact[key] / 4**4 for key in exact]
    assert chisquare([seen[key] for key in exact], expected).pvalue > TINY


def test_poisson_counts_made_up_to_their_number_are_multinomial() -> None:
    rows = 300
    counts = resample._by_poisson_counts(np.eye(rows)[:, :5], RESAMPLES, np.random.default_rng(4))
    both = resample._by_poisson_counts(np.ones((rows, 1)), 500, np.random.default_rng(5))
    assert np.all(both == rows)
    for column in counts.T:
        seen = np.bincount(column.astype(int), minlength=6)[:6]
        seen[5] = RESAMPLES - seen[:5].sum()
        expected = RESAMPLES * np.append(binom.pmf(range(5), rows, 1 / rows), binom.sf(4, rows, 1 / rows))
        assert chisquare(seen, expected).pvalue > TINY
    # Two rows compete for the same draws: covariance -1/rows, standard error 1/sqrt(resamples) of a pair.
    covariance = np.cov(counts.T)[np.triu_indices(5, 1)].mean()
    assert covariance == pytest.approx(-1 / rows, abs=3 / np.sqrt(10 * RESAMPLES))


@pytest.mark.parametrize("distinct", [2, 9, 40, 90, 300])
def test_the_chosen_way_agrees_with_brute_force(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    values = np.sort(rng.normal(size=distinct))
    columns = np.stack((values, values**2), axis=1)
    counts = rng.integers(1, 4, size=distinct)
    rows = np.repeat(columns, counts, axis=0)
    brute = rows[rng.integers(0, len(rows), size=(4_000, len(rows)))].sum(axis=1)
    ours = resampled_totals(columns, counts, resamples=4_000, rng=rng)
    for contrast in ([1, 0], [0, 1], [1, 1], [1, -1]):
        # Rounded: sums that are ties in exact arithmetic differ in their last bits.
        pair = (np.round(x @ np.array(contrast), 9) for x in (ours, brute))
        assert ks_2samp(*pair).pvalue > TINY


def test_all_ways_are_reached() -> None:
    reached = set()
    for name in ("_by_counts", "_in_groups", "_one_by_one", "_by_poisson_counts"):
        original = getattr(resample, name)

        def spy(*arguments: Any, name: str = name, original: Any = original) -> Any:
            reached.add(name)
            return original(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resample, name, spy)
            for distinct, each in ((3, 5000), (10, 20), (200, 1), (400, 1)):
                x = np.linspace(-1, 1, distinct)[:, None]
                resampled_totals(x, np.full(distinct, each), resamples=10, rng=np.random.default_rng(1))
    assert reached == {"_by_counts", "_in_groups", "_one_by_one", "_by_poisson_counts"}


def test_memory_is_bounded_whatever_the_number_of_resamples() -> None:
    import tracemalloc

    x = np.random.default_rng(1).normal(size=(14_042, 2))
    tracemalloc.start()
    resampled_totals(x, np.ones(14_042, dtype=np.int64), resamples=2_000, rng=np.random.default_rng(2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20  # all draws at once would be 225 MB


def test_distinct_rows_keep_every_row_and_know_neither_order_nor_rounding() -> None:
    sums = np.array([0.3, 0.1, 0.1 + 1e-16, 0.3, 0.1])
    sizes = np.array([2.0, 1.0, 1.0, 2.0, 2.0])
    s, m, counts = distinct_rows(sums, sizes)
    assert s.tolist() == pytest.approx([0.1, 0.1, 0.3])
    assert m.tolist() == [1.0, 2.0, 2.0]
    assert counts.tolist() == [2, 1, 2]
