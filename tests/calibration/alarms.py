"""The baseline asked twice: how often do alarms ring, and runs become INVALID, with nothing wrong?"""

from __future__ import annotations

import numpy as np
from engine import ALPHA
from montecarlo import Cell, Rate, Row, Scale, Section, at_most
from numpy.typing import NDArray
from simulate import (
    GPQA,
    GSM8K,
    IFEVAL,
    Mechanism,
    ask,
    clustered_population,
    population,
    sample_clusters,
)

from equipoise.evals.statistics.holm import holm_adjusted
from equipoise.evals.statistics.mcnemar import mcnemar_exact_p
from equipoise.evals.statistics.sign_flip import sign_flip_test
from equipoise.evals.statistics.trend import stratified_sign_test, trend_test

__all__ = ["alarm_cells"]

FAMILIES = Section(
    title="A/A: false alarms",
    note=(
        "Both arms are the same server. Family: any task's alarm after Holm over tasks, at 5%. Pooled: "
        "the test over all tasks at 5% (exact McNemar on the summed counts for K = 1, the stratified "
        "sign-flip test for repeats). INVALID: any task's or the pooled p below .001, for K = 1 on scores "
        "and on truncation (1% of answers); its bound is (tasks + 1) x .001 a kind of test. Trend: does "
        "the loss grow with the prompt's length (here independent of it); also under a constant loss of "
        ".05, which is no trend. Bounds: .05."
    ),
)
_NOISE_P = 0.001
_TRUNCATION_P_D = 0.01


def alarm_cells(scale: Scale) -> list[Cell]:
    """All rows."""
    cells = [
        Cell(section=FAMILIES, function=tables_row, arguments={"tasks": tasks, "n": n, "p_d": p_d})
        for tasks, n, p_d in ((6, 400, 0.02), (6, 400, 0.09), (12, 198, 0.05), (12, 1319, 0.05))
    ]
    cells += [
        Cell(section=FAMILIES, function=repeats_row, arguments={"repeats": k, "clusters": g})
        for k, g in ((8, 0), (8, 40), (1, 40))
    ]
    cells += [
        Cell(section=FAMILIES, function=trend_row, arguments={"repeats": k, "loss": loss})
        for k in (1, 8)
        for loss in (0.0, 0.05)
    ]
    return [cells[1], cells[4], cells[-2]] if scale.small else cells


def tables_row(*, tasks: int, n: int, p_d: float, rng: np.random.Generator, scale: Scale) -> Row:
    b, c = _tables(n, p_d, (scale.tables, tasks), rng)
    p = mcnemar_exact_p(b, c)
    pooled = mcnemar_exact_p(b.sum(axis=1), c.sum(axis=1))
    cut = _tables(n, _TRUNCATION_P_D, (scale.tables, tasks), rng)
    cut_p = np.minimum(
        mcnemar_exact_p(*cut).min(axis=1), mcnemar_exact_p(cut[0].sum(axis=1), cut[1].sum(axis=1))
    )
    smallest = np.minimum(np.minimum(p.min(axis=1), pooled), cut_p)
    return _row(f"{tasks} tasks of {n}, p_d {p_d:g}", 1, p, pooled, smallest, kinds=2)


def repeats_row(*, repeats: int, clusters: int, rng: np.random.Generator, scale: Scale) -> Row:
    """Six tasks by sign flips, of items or of whole clusters."""
    shapes = (GPQA, IFEVAL, GSM8K) * 2
    tasks = [
        clustered_population(shape, 0.0, hit_clusters=1.0)
        if clusters
        else population(shape, Mechanism.SHIFT, 0.0)
        for shape in shapes
    ]
    runs = max(scale.runs // 2, 1)
    p = np.empty((runs, len(tasks)))
    pooled = np.empty(runs)
    for run in range(runs):
        differences, strata, labels = [], [], []
        for t, items in enumerate(tasks):
            if clusters:
                baseline, candidate, label = sample_clusters(items, clusters, repeats, rng)
            else:
                baseline, candidate = ask(items, repeats, rng, n=200)
                label = np.arange(200)
            difference = _difference(baseline, candidate)
            p[run, t] = sign_flip_test(
                difference, rng=rng, clusters=label if clusters else None, resamples=_flips(scale)
            ).two_sided_p
            differences.append(difference)
            strata.append(np.full(difference.size, t))
            labels.append(label + 10_000 * t)
        pooled[run] = stratified_sign_test(
            np.concatenate(differences),
            np.concatenate(strata),
            rng=rng,
            clusters=np.concatenate(labels) if clusters else None,
            resamples=_flips(scale),
        ).two_sided_p
    label_ = f"6 tasks of {clusters} clusters" if clusters else "6 tasks of 200"
    return _row(label_, repeats, p, pooled, np.minimum(p.min(axis=1), pooled), kinds=1)


def trend_row(*, repeats: int, loss: float, rng: np.random.Generator, scale: Scale) -> Row:
    items = population(IFEVAL, Mechanism.BOTH_WAYS if loss else Mechanism.SHIFT, loss)
    p = np.empty(scale.runs)
    for run in range(scale.runs):
        baseline, candidate = ask(items, repeats, rng, n=IFEVAL.n)
        length = rng.lognormal(6.0, 1.0, size=IFEVAL.n)
        p[run] = trend_test(
            _difference(baseline, candidate), length, rng=rng, resamples=_flips(scale)
        ).two_sided_p
    rate = Rate.of(p <= ALPHA)
    what = "trend, constant loss .05" if loss else "trend"
    return Row(
        values={
            "data": f"1 task of {IFEVAL.n}: {what}",
            "K": repeats,
            "family": rate,
            "pooled": "",
            "INVALID": Rate.of(p < _NOISE_P),
            "runs": scale.runs,
        },
        claims=(at_most(rate, 0.05),),
    )


def _row(
    data: str,
    repeats: int,
    p: NDArray[np.float64],
    pooled: NDArray[np.float64],
    smallest: NDArray[np.float64],
    *,
    kinds: int,
) -> Row:
    family = Rate.of(np.any(holm_adjusted(p) <= ALPHA, axis=1))
    together = Rate.of(pooled <= ALPHA)
    invalid = Rate.of(smallest < _NOISE_P)
    return Row(
        values={
            "data": data,
            "K": repeats,
            "family": family,
            "pooled": together,
            "INVALID": invalid,
            "runs": family.draws,
        },
        claims=(
            at_most(family, 0.05),
            at_most(together, 0.05),
            at_most(invalid, kinds * (p.shape[1] + 1) * _NOISE_P),
        ),
    )


def _tables(
    n: int, p_d: float, shape: tuple[int, int], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    discordant = rng.binomial(n, p_d, size=shape)
    b = rng.binomial(discordant, 0.5)
    return b, discordant - b


def _difference(baseline: NDArray[np.int8], candidate: NDArray[np.int8]) -> NDArray[np.float64]:
    change = candidate.sum(axis=1, dtype=np.int64) - baseline.sum(axis=1, dtype=np.int64)
    return np.asarray(change / baseline.shape[1])


def _flips(scale: Scale) -> int:
    """Enough to resolve p < .001."""
    return 1_999 if scale.small else 4_999
