"""Whole plans, simulated with and without looks: what each rule decides, and when.

Ways to test "degraded" at looks: two spending functions, and an e-process that bets on the paired
differences (Waudby-Smith I, Ramdas A (2024). Estimating means of bounded random variables by betting.
JRSS B 86:1-27), looked at as often as the others and after every 16 items. Futility is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from equipoise.evals.statistics.curtailment import (
    conditional_power,
    macro_conditional_power,
    project_counts,
    still_possible,
)
from equipoise.evals.statistics.mover import mover_limits
from equipoise.evals.statistics.sequential import (
    SPENDING,
    LookDesign,
    LookLevels,
    items_by_look,
    look_levels,
)
from equipoise.evals.statistics.tango import tango_delta_limits

__all__ = [
    "ALPHA",
    "DESIGNS",
    "GAMMA",
    "QUARTERS",
    "SMALL",
    "Design",
    "Method",
    "Outcomes",
    "Task",
    "by_betting",
    "by_levels",
    "draw",
    "fixed",
    "futile",
    "levels_of",
    "limits",
    "methods_of",
    "simulate",
]

ALPHA, GAMMA = 0.05, 0.02
QUARTERS = (0.25, 0.5, 0.75)
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Task:
    items: int
    margin: float
    critical: bool = True


@dataclass(frozen=True, kw_only=True)
class Design:
    """A plan for one model; ``p_d`` and ``loss`` are what it assumes."""

    name: str
    tasks: tuple[Task, ...]
    suite_margin: float
    p_d: float = 0.045
    loss: float = 0.005

    def true_p_d(self, loss: float) -> float:
        """The differences that the plan assumes beside its loss, and the lost items."""
        return self.p_d - self.loss + loss


EMBEDDED = Design(
    name="6 tasks (3 critical x 400, 3 x 200), margin .05, suite margin .025",
    tasks=(Task(items=400, margin=0.05),) * 3 + (Task(items=200, margin=0.05, critical=False),) * 3,
    suite_margin=0.025,
)
DESIGNS = (
    EMBEDDED,
    Design(name="1 task x 1,319, margin .02", tasks=(Task(items=1319, margin=0.02),), suite_margin=0.02),
    Design(name="1 task x 1,319, margin .05", tasks=(Task(items=1319, margin=0.05),), suite_margin=0.05),
)


SMALL = Design(
    name="3 tasks x 100, margin .1, suite margin .06",
    tasks=(Task(items=100, margin=0.1),) * 2 + (Task(items=100, margin=0.1, critical=False),),
    suite_margin=0.06,
)


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Of many runs; shapes [runs]. ``asked`` is the share of the items."""

    signed_off: Bools
    no_go: Bools
    futile: Bools
    asked: Floats


@dataclass(frozen=True, kw_only=True)
class Method:
    """``no_go(b, c, design, items, look)`` of cumulated counts [runs, tasks]; the last look is the end."""

    name: str
    fractions: tuple[float, ...]
    no_go: Callable[[Ints, Ints, Design, Sequence[int], int], Bools]
    futility_at: frozenset[int]
    gamma: float = GAMMA


def draw(
    design: Design, loss: float, p_d: float, fractions: Sequence[float], runs: int, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Cumulated b and c, [looks, runs, tasks]."""
    b = np.empty((len(fractions), runs, len(design.tasks)), dtype=np.int64)
    c = np.empty_like(b)
    for t, task in enumerate(design.tasks):
        steps = np.diff((0, *items_by_look(task.items, fractions)))
        for k, step in enumerate(steps):
            counts = rng.multinomial(step, [(p_d + loss) / 2, (p_d - loss) / 2, 1 - p_d], size=runs)
            b[k, :, t], c[k, :, t] = counts[:, 0], counts[:, 1]
    return np.cumsum(b, axis=0), np.cumsum(c, axis=0)


def limits(b: Ints, c: Ints, items: Sequence[int], level: float) -> tuple[Floats, Floats, Floats]:
    """Delta and its one-sided limits, [runs, tasks]; each distinct table is inverted once."""
    delta, lower, upper = (np.empty(b.shape) for _ in range(3))
    for t, n in enumerate(items):
        codes, index = np.unique(b[:, t] * (n + 1) + c[:, t], return_inverse=True)
        low, high = tango_delta_limits(codes // (n + 1), codes % (n + 1), n, 1.0 - level)
        delta[:, t], lower[:, t], upper[:, t] = (c[:, t] - b[:, t]) / n, low[index], high[index]
    return delta, lower, upper


def by_levels(levels: Sequence[float]) -> Callable[[Ints, Ints, Design, Sequence[int], int], Bools]:
    """Degraded: the upper limit of some task, or of the macro-mean, is below its margin."""

    def no_go(b: Ints, c: Ints, design: Design, items: Sequence[int], look: int) -> Bools:
        delta, lower, upper = limits(b, c, items, levels[look])
        _, _, pooled = mover_limits(delta, lower, upper)
        margins = np.array([t.margin for t in design.tasks])
        return np.any(upper < -margins, axis=1) | (pooled < -design.suite_margin)

    return no_go


def by_betting(b: Ints, c: Ints, design: Design, items: Sequence[int], look: int) -> Bools:
    """One task: capital of a mixture of bets that the loss exceeds the margin has reached 1 / alpha.

    Under "loss <= margin" a bet multiplies by ``1 + stake (x - margin)``, x in {-1, 0, 1}: its capital is
    a supermartingale, so that by Ville's inequality it ever reaches ``1 / alpha`` with probability alpha.
    """
    margin = design.tasks[0].margin
    stakes = np.geomspace(0.05, 0.9, 12) / (1.0 + margin)
    b_, c_ = b[:, :1], c[:, :1]
    log_capital = (
        b_ * np.log1p(stakes * (1 - margin))
        + c_ * np.log1p(-stakes * (1 + margin))
        + (items[0] - b_ - c_) * np.log1p(-stakes * margin)
    )
    return np.asarray(logsumexp(log_capital, axis=1) - np.log(stakes.size) >= -np.log(ALPHA))


def futile(b: Ints, c: Ints, design: Design, items: Sequence[int], gamma: float = GAMMA) -> Bools:
    """Some critical task or the macro-mean passes with a conditional probability below gamma."""
    hopeless = np.zeros(b.shape[0], dtype=np.bool_)
    projected = []
    for t, task in enumerate(design.tasks):
        n = items[t]
        codes, index = np.unique(b[:, t] * (n + 1) + c[:, t], return_inverse=True)
        table = (codes // (n + 1), codes % (n + 1), n, task.items)
        assumed = {"p_d": design.p_d, "loss": design.loss, "alpha": ALPHA}
        projected.append([x[index] for x in project_counts(*table, **assumed)])
        if task.critical:
            power = conditional_power(*table, margin=task.margin, **assumed)
            possible = still_possible(*table, margin=task.margin, alpha=ALPHA)
            hopeless |= ((power < gamma) | ~possible)[index]
    if len(design.tasks) > 1:
        mean, half_width, deviation = (np.stack(x, axis=1) for x in zip(*projected, strict=True))
        hopeless |= macro_conditional_power(mean, half_width, deviation, margin=design.suite_margin) < gamma
    return hopeless


def passes(b: Ints, c: Ints, design: Design) -> Bools:
    """Non-inferior at the end on every critical task and the macro-mean: the fixed design's own rule."""
    delta, lower, upper = limits(b, c, [t.items for t in design.tasks], ALPHA)
    _, pooled, _ = mover_limits(delta, lower, upper)
    margins = np.array([t.margin for t in design.tasks])
    critical = np.array([t.critical for t in design.tasks])
    return np.all((lower > -margins) | ~critical, axis=1) & (pooled > -design.suite_margin)


def simulate(design: Design, method: Method, b: Ints, c: Ints) -> Outcomes:
    """Run every simulated run to its end or to the look that stops it."""
    runs = b.shape[1]
    fractions = (*method.fractions, 1.0)
    going = np.ones(runs, dtype=np.bool_)
    no_go, stopped_futile, signed_off = (np.zeros(runs, dtype=np.bool_) for _ in range(3))
    asked = np.ones(runs)
    total = sum(t.items for t in design.tasks)
    for k in range(len(fractions)):
        items = [items_by_look(t.items, fractions)[k] for t in design.tasks]
        at = np.flatnonzero(going)
        bad = method.no_go(b[k, at], c[k, at], design, items, k)
        no_go[at[bad]] = True
        stop = bad
        if k < len(method.fractions) and k in method.futility_at:
            hopeless = futile(b[k, at], c[k, at], design, items, method.gamma) & ~bad
            stopped_futile[at[hopeless]] = True
            stop = bad | hopeless
        if k == len(method.fractions):
            fixed_bad = by_levels((ALPHA,))(b[k, at], c[k, at], design, items, 0)
            signed_off[at] = passes(b[k, at], c[k, at], design) & ~bad & ~fixed_bad
        asked[at[stop]] = sum(items) / total
        going[at[stop]] = False
    return Outcomes(signed_off=signed_off, no_go=no_go, futile=stopped_futile, asked=asked)


# -- methods -----------------------------------------------------------------------------------


def levels_of(design: Design, spending: str) -> LookLevels:
    return look_levels(QUARTERS, alpha=ALPHA, spending=spending, designs=look_designs(design))


def look_designs(design: Design) -> list[LookDesign]:
    times = (*QUARTERS, 1.0)
    return [LookDesign(items=items_by_look(t.items, times), margin=t.margin) for t in design.tasks]


def fixed() -> Method:
    return Method(name="fixed", fractions=(), no_go=by_levels((ALPHA,)), futility_at=frozenset())


def methods_of(design: Design) -> list[Method]:
    every = frozenset(range(len(QUARTERS)))
    found = [fixed()]
    for spending in SPENDING:
        no_go = by_levels(levels_of(design, spending).levels)
        found.append(Method(name=spending, fractions=QUARTERS, no_go=no_go, futility_at=every))
    no_go = by_levels(levels_of(design, SPENDING[0]).levels)
    name = f"{SPENDING[0]}, gamma .10"
    found.append(Method(name=name, fractions=QUARTERS, no_go=no_go, futility_at=every, gamma=0.1))
    name = f"{SPENDING[0]}, no futility"
    found.append(Method(name=name, fractions=QUARTERS, no_go=no_go, futility_at=frozenset()))
    if len(design.tasks) == 1:
        found.append(Method(name="e-process", fractions=QUARTERS, no_go=by_betting, futility_at=every))
        n = design.tasks[0].items
        blocks = tuple(k * 16 / n for k in range(1, n // 16 + 1))
        at = frozenset(min(range(len(blocks)), key=lambda k: abs(blocks[k] - q)) for q in QUARTERS)
        name = "e-process, every 16 items"
        found.append(Method(name=name, fractions=blocks, no_go=by_betting, futility_at=at))
    return found
