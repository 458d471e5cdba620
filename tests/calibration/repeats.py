"""Repeated answers (K > 1): does the engine keep its error rate with realistic items, and do other rules?"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
from engine import ALPHA, estimate
from montecarlo import Cell, Rate, Row, Scale, Section, at_most
from numpy.typing import NDArray
from rules import (
    drop_zero_error_passes,
    percentile_passes,
    resample,
    t_passes,
    tolerance_passes,
    unpaired_z_passes,
)
from scipy.stats import norm
from simulate import AIME, GPQA, GREEDY, GSM8K, IFEVAL, Benchmark, Mechanism, ask, population

from equipoise.evals.statistics.tango import tango_statistic

__all__ = ["repeats_cells"]

SUPER = Section(
    title="K > 1: random items",
    note=(
        "Share of runs that pass. Every run draws n items of the benchmark's difficulty (Beta-distributed "
        "success probabilities, most mass near 0 and 1) and asks both arms K times. Losses of 1 and 2 "
        'margins must not pass (bound at 1 margin: .055); "expected" at no loss is the normal prediction '
        "from the true variance. Same data for the rules of others: one-sided 95% bounds (nominal 5%) by "
        "t on the items' mean differences, percentile bootstrap and bootstrap-t that drops resamples "
        'without spread; t 97.5 (nominal 2.5%); "pooled repeats" takes the n K pairs as independent '
        '(Tango\'s test); "unpaired z" passes what is not significantly different among the n K answers of '
        "each arm; tolerance passes a score of at least baseline - margin."
    ),
)
HARD = Section(
    title="K > 1: hard cases",
    note=(
        "A few items carry the whole loss, right before and wrong now, and most others do not vary: the "
        "data then say little, most of all where a sample may miss those items altogether. As before, at "
        'a loss of 1 margin; bound .07, the worst size of Tango\'s test at K = 1. "Greedy-like": nearly '
        "every answer is the same in all repeats."
    ),
)
FIXED = Section(
    title="K > 1: the benchmark as it is (n < 100)",
    note=(
        "The same 30 items in every run: the estimand is the loss on these items, and only the answers "
        "vary. Bound at a loss of 1 margin: .055. The intervals of others aim at all possible items, "
        "another question: they are not shown but for pooled repeats, which claims n K pairs."
    ),
)


def repeats_cells(scale: Scale) -> list[Cell]:
    """All rows of both tables: size at the margin everywhere, 2 margins and no loss for two mechanisms."""
    margins = {GPQA.name: 0.02, IFEVAL.name: 0.02, GSM8K.name: 0.01}
    cells: list[Cell] = []
    for benchmark in (GPQA, IFEVAL, GSM8K):
        for repeats in (8, 32):
            for mechanism in Mechanism:
                for losses in (1.0, 2.0, 0.0):
                    if losses != 1.0 and mechanism not in (Mechanism.SHIFT, Mechanism.BOTH_WAYS):
                        continue
                    if losses == 2.0 and mechanism is Mechanism.BOTH_WAYS:
                        continue
                    arguments = {
                        "benchmark": benchmark,
                        "repeats": repeats,
                        "mechanism": mechanism,
                        "margin": margins[benchmark.name],
                        "losses": losses,
                    }
                    cells.append(Cell(section=SUPER, function=random_items_row, arguments=arguments))
    hard = [
        (GREEDY, 100, 0.01),
        (GREEDY, 198, 0.01),
        (GREEDY, 198, 0.02),
        (GPQA, 100, 0.02),
        (GPQA, 198, 0.01),
        (GSM8K, 198, 0.01),
        (GSM8K, 300, 0.01),
    ]
    for benchmark, n, margin in hard:
        for repeats in (8, 32):
            arguments = {
                "benchmark": replace(benchmark, n=n),
                "repeats": repeats,
                "mechanism": Mechanism.FEW,
                "margin": margin,
                "losses": 1.0,
                "bound": 0.07,
            }
            cells.append(Cell(section=HARD, function=random_items_row, arguments=arguments))
    for repeats in (8, 32):
        for mechanism in Mechanism:
            for losses in (1.0, 2.0, 0.0) if mechanism is Mechanism.SHIFT else (1.0,):
                arguments = {"repeats": repeats, "mechanism": mechanism, "margin": 0.05, "losses": losses}
                cells.append(Cell(section=FIXED, function=fixed_items_row, arguments=arguments))
    if scale.small:
        wanted = (
            (GPQA, 8, Mechanism.SHIFT),
            (None, 8, Mechanism.SHIFT),
            (replace(GREEDY, n=198), 8, Mechanism.FEW),
        )
        cells = [
            c
            for c in cells
            if (c.arguments.get("benchmark"), c.arguments["repeats"], c.arguments["mechanism"]) in wanted
        ]
    return cells


def random_items_row(
    *,
    benchmark: Benchmark,
    repeats: int,
    mechanism: Mechanism,
    margin: float,
    losses: float,
    rng: np.random.Generator,
    scale: Scale,
    bound: float = 0.055,
) -> Row:
    items = population(benchmark, mechanism, losses * margin)
    runs = scale.runs_at(losses)
    names = (
        "ours",
        "t",
        "t 97.5",
        "percentile",
        "drops zero SE",
        "pooled repeats",
        "unpaired z",
        "tolerance",
    )
    passes = {name: np.empty(runs, dtype=np.bool_) for name in names}
    n = benchmark.n
    for run in range(runs):
        baseline, candidate = ask(items, repeats, rng, n=n)
        ours = estimate(baseline, candidate, margin=margin, rng=rng, resamples=scale.resamples)
        passes["ours"][run] = ours.lower > -margin
        sample = resample(_difference(baseline, candidate), scale.resamples, rng)
        delta, error = sample.delta, sample.standard_error
        passes["t"][run] = t_passes(delta, error, n, margin, alpha=ALPHA)
        passes["t 97.5"][run] = t_passes(delta, error, n, margin, alpha=ALPHA / 2.0)
        passes["percentile"][run] = percentile_passes(sample, margin, alpha=ALPHA)
        passes["drops zero SE"][run] = drop_zero_error_passes(sample, margin, alpha=ALPHA)
        passes["pooled repeats"][run] = _pooled_repeats_pass(baseline, candidate, margin)
        passes["unpaired z"][run] = unpaired_z_passes(baseline.sum(), candidate.sum(), n * repeats)
        passes["tolerance"][run] = tolerance_passes(delta, margin)
    rates = {name: Rate.of(flags) for name, flags in passes.items()}
    spread = sqrt(items.variance_of_difference(repeats) / n)
    expected = float(norm.cdf((1.0 - losses) * margin / spread - norm.ppf(1.0 - ALPHA)))
    return Row(
        values={
            "items": benchmark.name,
            "n": n,
            "K": repeats,
            "margin": margin,
            "loss": f"{losses:g} m",
            "how": str(mechanism),
            "expected": expected,
            **rates,
            "runs": runs,
        },
        claims=(at_most(rates["ours"], bound),) if losses == 1.0 else (),
    )


def fixed_items_row(
    *,
    repeats: int,
    mechanism: Mechanism,
    margin: float,
    losses: float,
    rng: np.random.Generator,
    scale: Scale,
) -> Row:
    items = population(AIME, mechanism, losses * margin, items=AIME.n)
    runs = scale.runs_at(losses)
    ours, pooled = (np.empty(runs, dtype=np.bool_) for _ in range(2))
    for run in range(runs):
        baseline, candidate = ask(items, repeats, rng)
        estimated = estimate(baseline, candidate, margin=margin, rng=rng, resamples=scale.resamples)
        ours[run] = estimated.lower > -margin
        pooled[run] = _pooled_repeats_pass(baseline, candidate, margin)
    rate = Rate.of(ours)
    p, q = items.baseline, items.candidate
    spread = sqrt(float(np.sum(p * (1.0 - p) + q * (1.0 - q))) / repeats) / AIME.n
    return Row(
        values={
            "items": AIME.name,
            "n": AIME.n,
            "K": repeats,
            "margin": margin,
            "loss": f"{losses:g} m",
            "how": str(mechanism),
            "expected": float(norm.cdf((1.0 - losses) * margin / spread - norm.ppf(1.0 - ALPHA))),
            "ours": rate,
            "pooled repeats": Rate.of(pooled),
            "runs": runs,
        },
        claims=(at_most(rate, 0.055),) if losses == 1.0 else (),
    )


def _difference(baseline: NDArray[np.int8], candidate: NDArray[np.int8]) -> NDArray[np.float64]:
    """Items' mean differences [n]; equal ones are equal to the last bit."""
    change = candidate.sum(axis=1, dtype=np.int64) - baseline.sum(axis=1, dtype=np.int64)
    return np.asarray(change / baseline.shape[1])


def _pooled_repeats_pass(baseline: NDArray[np.int8], candidate: NDArray[np.int8], margin: float) -> bool:
    b, c = np.count_nonzero(baseline > candidate), np.count_nonzero(candidate > baseline)
    return bool(tango_statistic(b, c, baseline.size, margin) <= -norm.ppf(1.0 - ALPHA))
