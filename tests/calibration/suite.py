"""The pooled macro-mean over tasks: its size and power, and whether planted faults are caught."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from engine import ALPHA, estimate, estimates_of_tables
from montecarlo import Cell, Claim, Rate, Row, Scale, Section, at_most
from numpy.typing import NDArray
from scipy.stats import norm
from simulate import GPQA, GSM8K, IFEVAL, Benchmark, Mechanism, ask, population

from equipoise.evals.statistics.mover import mover_limits

__all__ = ["suite_cells"]

Floats = NDArray[np.float64]

POOLED = Section(
    title="Pooled mean over tasks (MOVER)",
    note=(
        'Share of runs whose pooled mean is non-inferior; losses in units of the suite margin. "Alike": '
        'every task loses the same; "one task": one loses everything that the suite loses. At a loss of 1 '
        "margin the bound is .055. Stratified Wald is the usual alternative: the mean delta and the root "
        "of the tasks' summed variances, one-sided 95%. K = 1: p_d as given, or the loss where that is "
        "larger; K = 8: tasks of three difficulties."
    ),
)
CONTROLS = Section(
    title="Planted faults (graded controls)",
    note=(
        "The embedded plan: 3 critical tasks of 400 and 3 supporting of 200 items, task margin .05, suite "
        "margin .025, K = 1. Caught: the pooled mean is degraded (its upper limit below -margin) and no "
        'critical task is non-inferior. "Uneven": the tasks lose .4, .7, 1, 1, 1.2 and 1.7 times the '
        "mean. At 1 margin, degraded is false (bound .06); the gross control, 4 margins, must be caught "
        "at least 95% of the time where all tasks feel it."
    ),
)
_UNEVEN = (0.4, 0.7, 1.0, 1.0, 1.2, 1.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Items and discordant share of each task."""

    name: str
    n: tuple[int, ...]
    p_d: tuple[float, ...]

    def losses(self, mean: float, spread: str) -> tuple[float, ...]:
        """Each task's loss, so that their mean is ``mean``."""
        tasks = len(self.n)
        if spread == "one task":
            return (mean * tasks, *([0.0] * (tasks - 1)))
        if spread == "uneven":
            return tuple(mean * x for x in _UNEVEN)
        return (mean,) * tasks


def _same(n: int, tasks: int, p_d: float) -> Suite:
    return Suite(name=f"{tasks} x {n}", n=(n,) * tasks, p_d=(p_d,) * tasks)


SIX = _same(400, 6, 0.045)
SIX_QUIET = _same(400, 6, 0.025)
SIX_SMALL = _same(100, 6, 0.02)
TWELVE = Suite(
    name="12 of 100-1,319",
    n=(100, 100, 164, 198, 250, 250, 400, 500, 541, 1000, 1319, 1319),
    p_d=(0.02, 0.05, 0.09, 0.2, 0.05, 0.02, 0.045, 0.12, 0.09, 0.05, 0.02, 0.045),
)
EMBEDDED = Suite(name="3 x 400, 3 x 200", n=(400, 400, 400, 200, 200, 200), p_d=(0.045,) * 6)
_CRITICAL = 3


def suite_cells(scale: Scale) -> list[Cell]:
    """All rows of both tables."""
    pooled = [
        (suite, spread, losses)
        for suite in (SIX, SIX_QUIET, SIX_SMALL, TWELVE)
        for spread, losses in (("alike", 1.0), ("one task", 1.0), ("alike", 0.5), ("alike", 0.0))
    ]
    repeated = [("alike", 1.0), ("one task", 1.0), ("alike", 0.5), ("alike", 0.0)]
    controls = [(spread, losses) for spread in ("alike", "uneven") for losses in (1.0, 2.0, 4.0)]
    if scale.small:
        pooled, repeated, controls = pooled[4:7:2], repeated[:1], [controls[0], controls[2]]
    cells = [
        Cell(
            section=POOLED,
            function=tables_row,
            arguments={"suite": suite, "margin": 0.02, "spread": spread, "losses": losses},
        )
        for suite, spread, losses in pooled
    ]
    cells += [
        Cell(
            section=POOLED,
            function=repeats_row,
            arguments={"margin": 0.02, "spread": spread, "losses": losses},
        )
        for spread, losses in repeated
    ]
    cells += [
        Cell(section=CONTROLS, function=control_row, arguments={"spread": spread, "losses": losses})
        for spread, losses in controls
    ]
    return cells


def tables_row(
    *, suite: Suite, margin: float, spread: str, losses: float, rng: np.random.Generator, scale: Scale
) -> Row:
    delta, lower, upper, variance = _task_limits(suite, margin, losses * margin, spread, scale.tables, rng)
    ours = mover_limits(delta, lower, upper)[1] > -margin
    reach = float(norm.isf(ALPHA)) * np.sqrt(variance.sum(axis=1)) / len(suite.n)
    label = f"{suite.name}, p_d {suite.p_d[0]:g}" if len(set(suite.p_d)) == 1 else f"{suite.name}, p_d .02-.2"
    return _pooled(label, 1, margin, spread, losses, ours, delta.mean(axis=1) - reach > -margin)


def repeats_row(*, margin: float, spread: str, losses: float, rng: np.random.Generator, scale: Scale) -> Row:
    """Six tasks of 200 to 500 items asked 8 times: every task by `estimate_delta`."""
    repeats, runs = 8, scale.runs_at(losses)
    shapes = [(GPQA, 200), (IFEVAL, 400), (GSM8K, 500)] * 2
    design = Suite(name="", n=tuple(n for _, n in shapes), p_d=(1.0,) * len(shapes))
    tasks = [
        population(Benchmark(name=shape.name, n=n, a=shape.a, b=shape.b), Mechanism.BOTH_WAYS, loss)
        for (shape, n), loss in zip(shapes, design.losses(losses * margin, spread), strict=True)
    ]
    delta, lower, upper, variance = (np.empty((runs, len(tasks))) for _ in range(4))
    for run in range(runs):
        for t, (items, n) in enumerate(zip(tasks, design.n, strict=True)):
            baseline, candidate = ask(items, repeats, rng, n=n)
            result = estimate(baseline, candidate, margin=margin, rng=rng, resamples=scale.resamples)
            delta[run, t], lower[run, t], upper[run, t] = result.delta, result.lower, result.upper
            variance[run, t] = np.var(candidate.mean(axis=1) - baseline.mean(axis=1), ddof=1) / n
    ours = mover_limits(delta, lower, upper)[1] > -margin
    reach = float(norm.isf(ALPHA)) * np.sqrt(variance.sum(axis=1)) / len(tasks)
    return _pooled(
        "6 of 200-500", repeats, margin, spread, losses, ours, delta.mean(axis=1) - reach > -margin
    )


def control_row(*, spread: str, losses: float, rng: np.random.Generator, scale: Scale) -> Row:
    suite_margin, task_margin = 0.025, 0.05
    delta, lower, upper, _ = _task_limits(
        EMBEDDED, task_margin, losses * suite_margin, spread, scale.tables, rng
    )
    degraded = mover_limits(delta, lower, upper)[2] < -suite_margin
    blind = np.any(lower[:, :_CRITICAL] > -task_margin, axis=1)
    task_degraded = np.any(upper < -task_margin, axis=1)
    caught = Rate.of(degraded & ~blind)
    claims: tuple[Claim, ...] = ()
    if losses == 1.0:
        claims = (at_most(Rate.of(degraded), 0.06),)
    elif losses == 4.0 and spread == "alike":
        claims = (Claim(text=">= .95 caught", holds=caught.upper >= 0.95),)
    return Row(
        values={
            "suite": EMBEDDED.name,
            "loss": f"{losses:g} m",
            "spread": spread,
            "pooled degraded": Rate.of(degraded),
            "a task degraded": Rate.of(task_degraded),
            "a critical task non-inferior": Rate.of(blind),
            "caught": caught,
            "runs": scale.tables,
        },
        claims=claims,
    )


def _pooled(
    label: str,
    repeats: int,
    margin: float,
    spread: str,
    losses: float,
    ours: NDArray[np.bool_],
    wald: NDArray[np.bool_],
) -> Row:
    rate = Rate.of(ours)
    claims: tuple[Claim, ...] = ()
    if losses == 1.0:
        claims = (at_most(rate, 0.055),)
    elif losses == 0.5 and label == f"{SIX_QUIET.name}, p_d {SIX_QUIET.p_d[0]:g}":
        claims = (Claim(text="power .87", holds=abs(rate.share - 0.87) <= 0.03 + 2 * rate.standard_error),)
    return Row(
        values={
            "tasks": label,
            "K": repeats,
            "margin": margin,
            "loss": f"{losses:g} m",
            "spread": spread,
            "ours": rate,
            "stratified Wald": Rate.of(wald),
            "runs": rate.draws,
        },
        claims=claims,
    )


def _task_limits(
    suite: Suite, margin: float, loss: float, spread: str, runs: int, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats, Floats]:
    """Delta, its limits and Wald variance, each [runs, tasks]."""
    b, c = (np.empty((runs, len(suite.n)), dtype=np.int64) for _ in range(2))
    for t, (n, p_d, lost) in enumerate(zip(suite.n, suite.p_d, suite.losses(loss, spread), strict=True)):
        share = max(p_d, lost + (0.02 if spread != "alike" else 0.0))
        counts = rng.multinomial(n, [(share + lost) / 2, (share - lost) / 2, 1 - share], size=runs)
        b[:, t], c[:, t] = counts[:, 0], counts[:, 1]
    size = np.array(suite.n)
    lower, upper = np.empty(b.shape), np.empty(b.shape)
    for n in set(suite.n):  # tasks of one size share their tables
        alike = size == n
        estimates, place = estimates_of_tables(b[:, alike].ravel(), c[:, alike].ravel(), n, margin, rng)
        shape = (runs, int(alike.sum()))
        lower[:, alike] = np.array([e.lower for e in estimates])[place].reshape(shape)
        upper[:, alike] = np.array([e.upper for e in estimates])[place].reshape(shape)
    delta = (c - b) / size
    return delta, lower, upper, ((b + c) / size - np.square(delta)) / (size - 1.0)
