"""Totals over rows drawn with replacement: the inner loop of the bootstrap.

Three ways to draw from one law, the cheapest for the data at hand:

- Rows that are equal need not be told apart: how often each *distinct* row is drawn is a multinomial draw of
  counts, at a cost that does not grow with the number of rows.
- A few dozen distinct rows, drawn a few hundred times: several draws at once from the table of their sums.
- All rows distinct: how often each is drawn, as independent Poisson counts that add up to too few, and the
  rest drawn one by one. Given their total, Poisson counts are multinomial.
"""

from __future__ import annotations

from math import comb
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import poisson

__all__ = ["distinct_rows", "resampled_totals"]

_Cell = TypeVar("_Cell", np.intp, np.float64)

# Measured cost of a conditional binomial, of a draw from a table and of a row drawn alone, in nanoseconds.
_BINOMIAL_NS, _TABLE_NS, _ROW_NS = 80, 6, 3
# Largest table of sums of several rows: the more outcomes, the more of them share a cell.
_OUTCOMES = 1024
# A table is looked up by this many cells, 16 random bits.
_CELLS = 1 << 16
# Fewer rows are drawn one by one: the Poisson shortfall would be most of them.
_POISSON_ROWS = 256
# Draws at a time: their arrays stay in a core's cache.
_BLOCK_DRAWS = 1 << 16


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
        Shape [resamples, columns]. Working memory is a few MiB, or a few copies of ``columns`` if larger.
    """
    rows = int(counts.sum())
    together = min(rows, _drawn_together(counts.size))
    by_counts, by_rows = _BINOMIAL_NS * (counts.size - 1), _ROW_NS * rows
    in_groups = _TABLE_NS * rows // together if together > 1 else by_rows
    if by_counts <= min(in_groups, by_rows):
        return _by_counts(columns, counts, resamples, rng)
    if in_groups < by_rows:
        return _in_groups(columns, counts, together, resamples, rng)
    single = np.repeat(columns, counts, axis=0)
    if rows < _POISSON_ROWS:
        return _one_by_one(single, rows, resamples, rng)
    return _by_poisson_counts(single, resamples, rng)


def _by_counts(
    columns: NDArray[np.float64], counts: NDArray[np.int64], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    rows = int(counts.sum())
    totals = np.empty((resamples, columns.shape[1]))
    for part in _parts(resamples, counts.size):
        drawn = rng.multinomial(rows, counts / rows, size=part.stop - part.start)
        totals[part] = drawn @ columns
    return totals


def _in_groups(
    columns: NDArray[np.float64],
    counts: NDArray[np.int64],
    together: int,
    resamples: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """``together`` rows to a draw, from the table of their sums."""
    rows = int(counts.sum())
    sums, probability = _sums_of_several(columns, counts / rows, together)
    groups, rest = divmod(rows, together)
    parts = _parts(resamples, groups)
    draws = groups * (parts[0].stop - parts[0].start)
    table, value = _Table(probability, np.intp, draws), np.empty(draws)
    totals = _one_by_one(np.repeat(columns, counts, axis=0), rest, resamples, rng)
    for part in parts:
        drawn = table.draw((groups, part.stop - part.start), rng)
        for column in range(columns.shape[1]):
            chosen = value[: drawn.size].reshape(drawn.shape)
            totals[part, column] += sums[:, column].take(drawn, out=chosen, mode="clip").sum(axis=0)
    return totals


def _by_poisson_counts(
    columns: NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    rows = columns.shape[0]
    rate = 1.0 - 3.0 / np.sqrt(rows)
    counted = np.column_stack((columns, np.ones(rows)))
    totals = np.empty((resamples, columns.shape[1]))
    lines = max(1, _BLOCK_DRAWS // rows)
    table = _Table(poisson.pmf(np.arange(32), rate), np.float64, lines * rows)
    filled = 0
    while filled < resamples:
        part = table.draw((lines, rows), rng) @ counted
        # Given their total the counts are multinomial, whichever totals are kept: those beyond are not.
        part = part[part[:, -1] < rows][: resamples - filled]
        if part.shape[0] == 0:
            continue
        short = rows - part[:, -1].astype(np.intp)
        starts = np.cumsum(short) - short
        rest = columns.take(rng.integers(0, rows, size=int(short.sum())), axis=0)
        totals[filled : filled + short.size] = part[:, :-1] + np.add.reduceat(rest, starts, axis=0)
        filled += short.size
    return totals


def _one_by_one(
    columns: NDArray[np.float64], draws: int, resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    rows, width = columns.shape
    totals = np.zeros((resamples, width))
    for part in _parts(resamples, draws):
        drawn = rng.integers(0, rows, size=(draws, part.stop - part.start))
        for column in range(width):
            totals[part, column] = columns[:, column].take(drawn).sum(axis=0)
    return totals


class _Table(Generic[_Cell]):
    """A law on 0, 1, 2, ...: 16 random bits choose a cell, and cells that outcomes share are drawn further.

    Exact to the rounding of the cumulative probabilities. What ``draw`` returns is overwritten by the next
    draw: fresh arrays of this size would cost more than the draws that fill them.
    """

    def __init__(self, probability: NDArray[np.float64], dtype: type[_Cell], draws: int) -> None:
        cumulative = np.cumsum(probability)
        cumulative /= cumulative[-1]
        edges = np.concatenate(([0.0], cumulative)) * _CELLS
        stop = np.floor(edges[1:]).astype(np.intp)
        start = np.minimum(
            np.ceil(edges[:-1]).astype(np.intp), stop
        )  # [start, stop) lie wholly in an outcome
        shared = start - np.concatenate(([0], stop[:-1]))  # cells before, shared with others
        outcomes = np.stack((np.full(stop.size, -1), np.arange(stop.size)), axis=1).ravel()
        self._cells: NDArray[_Cell] = np.repeat(
            outcomes.astype(dtype), np.stack((shared, stop - start), axis=1).ravel()
        )
        self._inner_edges = cumulative[:-1]
        self._cell = np.empty(draws, dtype=np.intp)
        self._outcome: NDArray[_Cell] = np.empty(draws, dtype=dtype)

    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[_Cell]:
        """Independent outcomes, in the type asked for."""
        size = shape[0] * shape[1]
        cell, outcome = self._cell[:size], self._outcome[:size]
        words = rng.integers(0, 2**64 - 1, size=-(-size // 4), dtype=np.uint64, endpoint=True)
        cell[:] = words.view(np.uint16)[:size]
        self._cells.take(cell, out=outcome, mode="clip")
        torn = np.flatnonzero(outcome < 0)
        place = (cell[torn] + rng.random(torn.size)) / _CELLS
        outcome[torn] = np.searchsorted(self._inner_edges, place, side="right")
        return outcome.reshape(shape)


def _parts(resamples: int, draws: int) -> list[slice]:
    """Consecutive resamples whose draws fill a block."""
    lines = max(1, _BLOCK_DRAWS // max(1, draws))
    return [slice(start, min(start + lines, resamples)) for start in range(0, resamples, lines)]


def _drawn_together(distinct: int) -> int:
    """Most rows at a time whose unordered outcomes number at most ``_OUTCOMES``."""
    together = 1
    while distinct > 1 and comb(distinct + together, together + 1) <= _OUTCOMES:
        together += 1
    return together


def _sums_of_several(
    columns: NDArray[np.float64], probability: NDArray[np.float64], together: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Totals and probability of every multiset of ``together`` rows: [outcomes, columns] and [outcomes]."""
    row = np.arange(probability.size)
    sums, chance, last, run = columns, probability, row, np.ones(row.size)
    for drawn in range(2, together + 1):
        # Rows join in ascending order; a row that joins for the run-th time has drawn / run new orderings.
        rising = row >= last[:, None]
        run = np.where(row == last[:, None], run[:, None] + 1.0, 1.0)[rising]
        chance = (chance[:, None] * probability)[rising] * (drawn / run)
        sums = (sums[:, None, :] + columns)[rising]
        last = np.broadcast_to(row, rising.shape)[rising]
    return sums, chance
