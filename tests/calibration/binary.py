"""One answer an item (K = 1): exact size and power of Tango's test, and the rules of others beside it."""

from __future__ import annotations

import numpy as np
from engine import ALPHA, estimates_of_tables
from montecarlo import Cell, Claim, Rate, Row, Scale, Section, at_most
from numpy.typing import NDArray
from rules import (
    drop_zero_error_passes,
    percentile_passes,
    resample_tables,
    t_passes,
    tolerance_passes,
    unpaired_z_passes,
)
from simulate import GPQA, GSM8K, IFEVAL, Benchmark, Mechanism, ask, population

from equipoise.evals.statistics.mcnemar import mcnemar_exact_p
from equipoise.evals.statistics.power import rejection_probability, sample_size
from equipoise.evals.statistics.size_control import size_controlled_z, worst_case_size

__all__ = ["binary_cells"]

GRID_P_D = (0.01, 0.02, 0.05, 0.09, 0.12, 0.2)
_ALL_P_D = 400
_LARGEST_P_D = 0.6
_BLOCK_TABLES = 500

SIZE = Section(
    title="K = 1: exact size",
    note=(
        'Probability of a false "non-inferior" at a true loss equal to the margin, by exact enumeration '
        "of the paired trinomial. Grid: p_d in {.01, .02, .05, .09, .12, .2}, at least the margin; all "
        'p_d: 400 shares from the margin to 1. "z raised": the critical value of `size_controlled_z`, and '
        "the size it leaves for p_d up to .6 (arms that are not negatively correlated differ on at most "
        "half of their items). Bounds: .055 on the grid, .07 over all p_d, .05 with z raised."
    ),
)
POWER = Section(
    title="K = 1: power",
    note=(
        "Share of simulated runs that `estimate_delta` finds non-inferior, beside the exact power "
        "(`rejection_probability`). Rows with a benchmark draw items of its difficulty, one answer an "
        "arm; p_d follows from it. Bound: two points and the Monte-Carlo error. The last rows are sizes "
        "that `sample_size` gives for a wanted power of .80."
    ),
)
OTHERS = Section(
    title="K = 1: the rules of others on the same data",
    note=(
        "Share of runs that pass. At a loss of 1 or 2 margins a pass is false; at no loss it is right. "
        'Ours, t, percentile and "drops zero SE" use one-sided 95% bounds (nominal false pass 5%), t 97.5 '
        "the lower end of a two-sided 95% interval (nominal 2.5%); McNemar and unpaired z pass what is "
        '"not significantly different" at two-sided 5% (baseline accuracy about .8); tolerance passes a '
        "score of at least baseline - margin."
    ),
)


def binary_cells(scale: Scale) -> list[Cell]:
    """All rows of the three tables."""
    sizes = [(m, n) for m in (0.01, 0.02, 0.05) for n in (100, 133, 198, 500, 1319, 5000)]
    powers = [
        (400, 0.05, 0.045, 0.005),
        (400, 0.05, 0.045, 0.01),
        (198, 0.05, 0.09, 0.0),
        (500, 0.02, 0.02, 0.005),
        (1319, 0.02, 0.05, 0.0),
        (5000, 0.01, 0.05, 0.0),
    ]
    drawn = [
        (GPQA, 0.05, 0.0, Mechanism.BOTH_WAYS),
        (IFEVAL, 0.05, 0.01, Mechanism.SHIFT),
        (GSM8K, 0.02, 0.005, Mechanism.FEW),
    ]
    sized = [(0.05, 0.02), (0.05, 0.045), (0.02, 0.05), (0.01, 0.05)]
    others = [
        (0.01, 0.02, 100),
        (0.01, 0.02, 198),
        (0.01, 0.02, 500),
        (0.01, 0.05, 198),
        (0.01, 0.05, 1319),
        (0.02, 0.05, 198),
        (0.02, 0.09, 500),
        (0.05, 0.12, 198),
    ]
    if scale.small:
        sizes, powers, drawn = [(0.01, 100), (0.02, 133), (0.02, 1319)], powers[1:2], drawn[1:2]
        sized, others = sized[1:2], others[:1]
    cells = [Cell(section=SIZE, function=size_row, arguments={"margin": m, "n": n}) for m, n in sizes]
    cells += [
        Cell(section=POWER, function=power_row, arguments={"n": n, "margin": m, "p_d": p, "loss": x})
        for n, m, p, x in powers
    ]
    cells += [
        Cell(
            section=POWER,
            function=drawn_power_row,
            arguments={"benchmark": bench, "margin": m, "loss": x, "mechanism": how},
        )
        for bench, m, x, how in drawn
    ]
    cells += [Cell(section=POWER, function=sized_row, arguments={"margin": m, "p_d": p}) for m, p in sized]
    for m, p, n in others:
        for losses in (1.0, 2.0, 0.0):
            cells.append(
                Cell(
                    section=OTHERS,
                    function=others_row,
                    arguments={"margin": m, "p_d": p, "n": n, "losses": losses},
                )
            )
    return cells


def size_row(*, margin: float, n: int, rng: np.random.Generator, scale: Scale) -> Row:
    grid = worst_case_size(n, margin, p_d=tuple(p for p in GRID_P_D if p >= margin))
    everywhere = tuple(float(p) for p in np.geomspace(margin, 1.0, 30 if scale.small else _ALL_P_D))
    worst = worst_case_size(n, margin, p_d=everywhere)
    z = size_controlled_z(n, margin)
    plausible = tuple(p for p in everywhere if p <= _LARGEST_P_D)
    controlled = worst_case_size(n, margin, p_d=plausible, z=z).worst_size
    claims = [Claim(text="worst <= .07", holds=worst.worst_size <= 0.07)]
    if n != 133:  # not of the grid: where the worst case was found
        claims.append(Claim(text="grid <= .055", holds=grid.worst_size <= 0.055))
    claims.append(Claim(text="controlled <= .05", holds=controlled <= 0.05 + 5e-4))
    return Row(
        values={
            "margin": margin,
            "n": n,
            "worst on grid": grid.worst_size,
            "at p_d": grid.worst_p_d,
            "worst over all p_d": worst.worst_size,
            "at its p_d": worst.worst_p_d,
            "z raised": z,
            "size then": controlled,
        },
        claims=tuple(claims),
    )


def power_row(
    *, n: int, margin: float, p_d: float, loss: float, rng: np.random.Generator, scale: Scale
) -> Row:
    b, c = _tables(n, p_d, loss, scale.tables, rng)
    return _power(f"p_d {p_d:g}", n, margin, p_d, loss, b, c, rng)


def drawn_power_row(
    *,
    benchmark: Benchmark,
    margin: float,
    loss: float,
    mechanism: Mechanism,
    rng: np.random.Generator,
    scale: Scale,
) -> Row:
    items = population(benchmark, mechanism, loss)
    b, c = (np.empty(scale.runs, dtype=np.int64) for _ in range(2))
    for run in range(scale.runs):
        baseline, candidate = ask(items, 1, rng, n=benchmark.n)
        b[run] = np.count_nonzero(baseline > candidate)
        c[run] = np.count_nonzero(candidate > baseline)
    return _power(f"{benchmark.name}, {mechanism}", benchmark.n, margin, items.p_d, loss, b, c, rng)


def sized_row(*, margin: float, p_d: float, rng: np.random.Generator, scale: Scale) -> Row:
    n = sample_size(margin, 0.8, p_d).n_exact
    b, c = _tables(n, p_d, 0.0, scale.tables, rng)
    return _power(f"n_exact at p_d {p_d:g}", n, margin, p_d, 0.0, b, c, rng)


def _power(
    data: str,
    n: int,
    margin: float,
    p_d: float,
    loss: float,
    b: NDArray[np.int64],
    c: NDArray[np.int64],
    rng: np.random.Generator,
) -> Row:
    exact = rejection_probability(n, margin, p_d, loss)
    estimates, place = estimates_of_tables(b, c, n, margin, rng)
    rate = Rate.of(np.array([e.lower > -margin for e in estimates])[place])
    gap = abs(rate.share - exact)
    return Row(
        values={
            "data": data,
            "n": n,
            "margin": margin,
            "p_d": p_d,
            "loss": loss,
            "exact power": exact,
            "simulated": rate,
            "runs": rate.draws,
        },
        claims=(Claim(text="within .02", holds=gap <= 0.02 + 2.0 * rate.standard_error),),
    )


def others_row(
    *, margin: float, p_d: float, n: int, losses: float, rng: np.random.Generator, scale: Scale
) -> Row:
    loss = losses * margin
    b, c = _tables(n, p_d, loss, scale.tables, rng)
    tables, place = np.unique(np.stack([b, c], axis=1), axis=0, return_inverse=True)
    b_, c_, place = tables[:, 0], tables[:, 1], place.reshape(-1)
    estimates, _ = estimates_of_tables(b_, c_, n, margin, rng)
    delta = (c_ - b_) / n
    error = np.sqrt(np.maximum(b_ + c_ - np.square(b_ - c_) / n, 0.0) / (n * (n - 1.0)))
    percentile, dropped = (np.empty(b_.size, dtype=np.bool_) for _ in range(2))
    for start in range(0, b_.size, _BLOCK_TABLES):
        block = slice(start, start + _BLOCK_TABLES)
        sample = resample_tables(b_[block], c_[block], n, scale.resamples, rng)
        percentile[block] = percentile_passes(sample, margin, alpha=ALPHA)
        dropped[block] = drop_zero_error_passes(sample, margin, alpha=ALPHA)
    passes = {
        "ours": np.array([e.lower > -margin for e in estimates]),
        "t": t_passes(delta, error, n, margin, alpha=ALPHA),
        "t 97.5": t_passes(delta, error, n, margin, alpha=ALPHA / 2.0),
        "percentile": percentile,
        "drops zero SE": dropped,
        "McNemar": mcnemar_exact_p(b_, c_) >= ALPHA,
        "tolerance": tolerance_passes(delta, margin),
    }
    rates = {name: Rate.of(flags[place]) for name, flags in passes.items()}
    both_right = rng.binomial(n - b - c, 0.8)
    rates["unpaired z"] = Rate.of(unpaired_z_passes(both_right + b, both_right + c, n))
    return Row(
        values={"margin": margin, "p_d": p_d, "n": n, "loss": f"{losses:g} m", **rates, "runs": b.size},
        # Between whole counts the exact size may exceed .055 off the grid: .07 is the bound everywhere.
        claims=(at_most(rates["ours"], 0.055 if p_d in GRID_P_D else 0.07),) if losses == 1.0 else (),
    )


def _tables(
    n: int, p_d: float, loss: float, runs: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    counts = rng.multinomial(n, [(p_d + loss) / 2.0, (p_d - loss) / 2.0, 1.0 - p_d], size=runs)
    return counts[:, 0], counts[:, 1]
