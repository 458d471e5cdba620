"""Simulated shares with their Monte-Carlo error, and the work of a calibration cut into independent cells."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from scipy.stats import beta

__all__ = ["Cell", "Claim", "Rate", "Row", "Scale", "Section", "at_most", "finished_cells"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """``hits`` of ``draws`` independent simulated runs."""

    hits: int
    draws: int

    @classmethod
    def of(cls, happened: Any) -> Rate:
        """From booleans of any shape, one a simulated run."""
        flags = np.asarray(happened, dtype=np.bool_)
        return cls(hits=int(flags.sum()), draws=int(flags.size))

    @property
    def share(self) -> float:
        return self.hits / self.draws

    @property
    def standard_error(self) -> float:
        """Of the share; with the share pulled half a run inwards, so that 0 of n is not certainty."""
        inside = (self.hits + 0.5) / (self.draws + 1.0)
        return sqrt(inside * (1.0 - inside) / self.draws)

    @property
    def lower(self) -> float:
        """One-sided 99% Clopper-Pearson bound."""
        return float(beta.ppf(0.01, self.hits, self.draws - self.hits + 1)) if self.hits else 0.0

    @property
    def upper(self) -> float:
        """One-sided 99% Clopper-Pearson bound."""
        missed = self.draws - self.hits
        return float(beta.ppf(0.99, self.hits + 1, missed)) if missed else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a row must show, and whether it does."""

    text: str
    holds: bool


def at_most(rate: Rate, bound: float) -> Claim:
    """The true rate may be ``bound`` or less: the simulation does not exclude it at 99%, one-sided.

    Of a hundred rates that lie exactly on their bound, one would fail.
    """
    return Claim(text=f"<= {bound:g}", holds=rate.lower <= bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table: column -> text, count, exact number or simulated `Rate`; and its claims."""

    values: dict[str, str | int | float | Rate]
    claims: tuple[Claim, ...] = ()

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table: ``note`` says what is simulated and how to read it."""

    title: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is simulated.

    Attributes
    ----------
    small
        Whether only a few cells of each table are wanted.
    tables
        Simulated runs where all runs are computed at once (paired tables, K = 1).
    runs
        Simulated runs where every run calls the engine on its own data.
    resamples
        Bootstrap resamples and sign flips inside such a run.
    """

    small: bool
    tables: int
    runs: int
    resamples: int

    def runs_at(self, losses: float) -> int:
        """Runs of a row at so many margins of loss: all where a bound is claimed, at 1, else a third."""
        return self.runs if losses == 1.0 else max(self.runs // 3, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row to compute: ``function(rng=..., scale=..., **arguments) -> Row``."""

    section: Section
    function: Callable[..., Row]
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    index: int
    cell: Cell
    scale: Scale
    seed: np.random.SeedSequence


def _finish(job: _Job) -> tuple[int, Row]:
    rng = np.random.default_rng(job.seed)
    return job.index, job.cell.function(rng=rng, scale=job.scale, **job.cell.arguments)


def finished_cells(
    cells: Sequence[Cell], scale: Scale, *, seed: int, processes: int
) -> Iterator[tuple[int, Row]]:
    """Rows as they are finished, with their cell's index.

    Every cell draws from its own child of ``seed``: rows do not depend on the number of processes.
    """
    children = np.random.SeedSequence(seed).spawn(len(cells))
    jobs = [
        _Job(index=i, cell=cell, scale=scale, seed=child)
        for i, (cell, child) in enumerate(zip(cells, children, strict=True))
    ]
    if processes == 1:
        yield from map(_finish, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_finish, jobs)
