"""The logit-level gate: the upper bound of delta-NLL against the largest change that may pass."""

from __future__ import annotations

import numpy as np
from engine import ALPHA
from montecarlo import Cell, Rate, Row, Scale, Section, at_most
from scipy.stats import norm

from equipoise.evals.statistics.logprob import compare_logprobs

__all__ = ["logit_cells"]

GATE_NATS = 0.01

GATE = Section(
    title="Logit gate (delta-NLL)",
    note=(
        "Share of runs whose upper bound of delta-NLL lies below the gate, .01 nats a token. Sequences of "
        "20 to 300 tokens have effects of their own; tokens scatter with heavy tails (Student t, 3 "
        "degrees, scale .1 nats). Sequence effects: normal around the mean; exponential (few sequences "
        "suffer most); or growing with the length, as faults of a cache do. At a true change equal to the "
        "gate the bound is .055. Beside it the z bound that takes tokens as independent."
    ),
)
_SEQUENCES = 4_000  # distinct sequences that a run draws from
_TOKEN_SCALE_NATS = 0.1


def logit_cells(scale: Scale) -> list[Cell]:
    """Size at the gate for each kind of sequence effect, and power at .4 of it (what e4m3 costs)."""
    cells = [
        Cell(section=GATE, function=gate_row, arguments={"sequences": s, "effect": effect, "change": change})
        for s in (50, 200)
        for effect in ("normal", "exponential", "growing")
        for change in (1.0, 0.4)
    ]
    return cells[2:4] if scale.small else cells


def gate_row(*, sequences: int, effect: str, change: float, rng: np.random.Generator, scale: Scale) -> Row:
    lengths, effects = _population(effect, change * GATE_NATS)
    runs = scale.runs_at(change)
    gated, independent = (np.empty(runs, dtype=np.bool_) for _ in range(2))
    for run in range(runs):
        drawn = rng.integers(_SEQUENCES, size=sequences)
        size = lengths[drawn]
        scatter = _TOKEN_SCALE_NATS * rng.standard_t(3, size=int(size.sum()))
        baseline = -rng.exponential(1.5, size=scatter.size)
        candidate = baseline - np.repeat(effects[drawn], size) - scatter
        result = compare_logprobs(
            baseline,
            candidate,
            np.repeat(np.arange(sequences), size),
            rng=rng,
            alpha=ALPHA,
            resamples=scale.resamples,
        )
        gated[run] = result.upper < GATE_NATS
        nll = baseline - candidate
        reach = norm.isf(ALPHA) * nll.std(ddof=1) / np.sqrt(nll.size)
        independent[run] = nll.mean() + reach < GATE_NATS
    rate = Rate.of(gated)
    return Row(
        values={
            "sequences": sequences,
            "sequence effect": effect,
            "true change": f"{change:g} gate",
            "ours": rate,
            "tokens as independent": Rate.of(independent),
            "runs": runs,
        },
        claims=(at_most(rate, 0.055),) if change == 1.0 else (),
    )


def _population(effect: str, mean_nats: float) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and effects of all sequences; the mean effect over their tokens is exactly ``mean_nats``."""
    rng = np.random.default_rng(20_240_302)
    lengths = rng.integers(20, 301, size=_SEQUENCES)
    if effect == "normal":
        shape = 1.0 + rng.standard_normal(_SEQUENCES)
    elif effect == "exponential":
        shape = rng.exponential(1.0, size=_SEQUENCES)
    else:
        shape = lengths / lengths.mean() * rng.exponential(1.0, size=_SEQUENCES)
    return lengths, shape * mean_nats * lengths.sum() / np.sum(shape * lengths)
