"""Excess discordance: does the candidate differ from the baseline more than the baseline from itself?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.evals.statistics.tango import tango_delta_limits

__all__ = ["ExcessDiscordance", "excess_discordance"]

CITATION = "Efron B, Tibshirani RJ (1993). An Introduction to the Bootstrap, ch. 13."


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcessDiscordance:
    """Mean over items of ``(1[A1 != B] + 1[A2 != B]) / 2 - 1[A1 != A2]``, with a two-sided interval.

    Attributes
    ----------
    n, resamples, level
        Items, bootstrap resamples, level of the interval.
    candidate_discordance
        Mean share of items on which the candidate differs from a baseline run.
    baseline_discordance
        Share of items on which the two baseline runs differ.
    excess, ci_lower, ci_upper
        Their difference, and its interval.
    """

    n: int
    resamples: int
    level: float
    candidate_discordance: float
    baseline_discordance: float
    excess: float
    ci_lower: float
    ci_upper: float
    method: str = "item bootstrap, percentile interval"
    citation: str = CITATION


def excess_discordance(
    baseline: NDArray[Any],
    baseline_repeat: NDArray[Any],
    candidate: NDArray[Any],
    *,
    rng: np.random.Generator,
    resamples: int = 10_000,
    level: float = 0.95,
) -> ExcessDiscordance:
    """Compare three runs item by item.

    Parameters
    ----------
    baseline, baseline_repeat, candidate
        One value an item, in one order, shape [n]: a score, or anything that compares with ``!=``.
    rng
        Source of the resamples.

    Returns
    -------
    ExcessDiscordance
        If every item has the same excess the bootstrap has nothing to vary and would claim certainty;
        Tango's interval on the positive and negative parts is given instead, and ``method`` says so.

    Raises
    ------
    ValueError
        If there is no item or the three shapes differ.
    """
    if baseline.ndim != 1 or not baseline.shape == baseline_repeat.shape == candidate.shape:
        raise ValueError(
            "the three runs need one value per item, in one order; got shapes "
            f"{baseline.shape}, {baseline_repeat.shape}, {candidate.shape}"
        )
    n = baseline.size
    if n == 0:
        raise ValueError("excess discordance needs at least one item")
    differs = 0.5 * (
        np.asarray(baseline != candidate, dtype=np.float64)
        + np.asarray(baseline_repeat != candidate, dtype=np.float64)
    )
    noise = np.asarray(baseline != baseline_repeat, dtype=np.float64)
    per_item = differs - noise
    # Few distinct values: resampling items is a multinomial draw of how often each occurs.
    values, counts = np.unique(per_item, return_counts=True)
    method = "item bootstrap, percentile interval"
    if values.size > 1:
        means = rng.multinomial(n, counts / n, size=resamples) @ values / n
        tail = 0.5 - level / 2.0
        low, high = (float(x) for x in np.quantile(means, [tail, 1.0 - tail]))
    else:
        worse, better = np.maximum(per_item, 0.0).sum(), np.maximum(-per_item, 0.0).sum()
        limits = tango_delta_limits(better, worse, n, 0.5 + level / 2.0)
        low, high = float(limits[0]), float(limits[1])
        method = "Tango interval on fractional counts (no variation between items)"
    return ExcessDiscordance(
        n=n,
        resamples=resamples,
        level=level,
        candidate_discordance=float(differs.mean()),
        baseline_discordance=float(noise.mean()),
        excess=float(per_item.mean()),
        ci_lower=low,
        ci_upper=high,
        method=method,
    )
