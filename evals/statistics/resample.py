"""Totals over rows drawn with replacement: the inner loop of every bootstrap here.

Rows that are equal need not be told apart: how often each *distinct* row is drawn is a multinomial draw of
counts. That is the very law of resampling rows one by one, at a cost that does not grow with their number.
Where nearly every row is distinct, rows are drawn one by one, in blocks that bound the memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["distinct_rows", "resampled_totals"]

# A conditional binomial costs as much as drawing and adding up about this many single rows.
_ROWS_PER_BINOMIAL = 20
# Rows drawn at a time: 8 MiB of indices, and as much again for their counts.
_BLOCK_DRAWS = 1 << 20


def distinct_rows(
    sums: NDArray[np.float64], sizes: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """The distinct (sum, size) pairs in ascending order, and how often each occurs.

    The order makes a seeded result depend neither on the order of the items nor on the clusters' labels.
    """
    order = np.lexsort((sums, sizes))
    s, m = sums[order], sizes[order]
    starts = np.flatnonzero(np.concatenate(([True], (np.diff(s) > 1e-11) | (np.diff(m) != 0.0))))
    return s[starts], m[starts], np.diff(np.append(starts, s.size))


def resampled_totals(
    columns: NDArray[np.float64], counts: NDArray[np.int64], *, resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Totals of each column over as many rows as there are, drawn with replacement.

    Parameters
    ----------
    columns
        One line per distinct row, shape [distinct, columns].
    counts
        How many rows are equal to it, shape [distinct].
    resamples
        Independent resamples.

    Returns
    -------
    NDArray[np.float64]
        Shape [resamples, columns].
    """
    rows = int(counts.sum())
    if counts.size * _ROWS_PER_BINOMIAL <= rows:
        return _by_counts(columns, counts, rows, resamples, rng)
    return _one_by_one(np.repeat(columns, counts, axis=0), resamples, rng)


def _by_counts(
    columns: NDArray[np.float64],
    counts: NDArray[np.int64],
    rows: int,
    resamples: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    totals = np.empty((resamples, columns.shape[1]))
    block = max(1, _BLOCK_DRAWS // counts.size)
    for start in range(0, resamples, block):
        part = slice(start, min(start + block, resamples))
        drawn = rng.multinomial(rows, counts / rows, size=part.stop - start)
        totals[part] = drawn @ columns
    return totals


def _one_by_one(
    columns: NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    rows = columns.shape[0]
    totals = np.empty((resamples, columns.shape[1]))
    block = max(1, _BLOCK_DRAWS // rows)
    for start in range(0, resamples, block):
        part = slice(start, min(start + block, resamples))
        lines = part.stop - start
        drawn = rng.integers(0, rows, size=(lines, rows))
        for column in range(columns.shape[1]):
            totals[part, column] = columns[:, column].take(drawn).sum(axis=1)
    return totals
