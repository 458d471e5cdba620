"""The engine under test, asked through its public path, and spared asking twice about the same table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.evals.statistics.delta import DeltaEstimate
from equipoise.evals.statistics.primary import estimate_delta

__all__ = ["ALPHA", "estimate", "estimates_of_tables", "paired_scores"]

ALPHA = 0.05


def estimate(
    baseline: NDArray[np.int8],
    candidate: NDArray[np.int8],
    *,
    margin: float,
    rng: np.random.Generator,
    resamples: int,
    clusters: NDArray[np.int64] | None = None,
) -> DeltaEstimate:
    """`estimate_delta` at fewer resamples than a report uses."""
    return estimate_delta(
        baseline, candidate, margin=margin, alpha=ALPHA, rng=rng, clusters=clusters, resamples=resamples
    )


def paired_scores(b: int, c: int, n: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Scores [n, 1] of both arms with ``b`` pairs right under the baseline only and ``c`` the other way.

    Concordant pairs are right: Tango's test does not ask which.
    """
    baseline, candidate = np.ones((n, 1), dtype=np.int8), np.ones((n, 1), dtype=np.int8)
    candidate[:b] = 0
    baseline[b : b + c] = 0
    return baseline, candidate


def estimates_of_tables(
    b: NDArray[np.int64], c: NDArray[np.int64], n: int, margin: float, rng: np.random.Generator
) -> tuple[list[DeltaEstimate], NDArray[np.int64]]:
    """One estimate for each distinct table, and each run's place among them [runs]."""
    tables, place = np.unique(np.stack([b, c], axis=1), axis=0, return_inverse=True)
    estimates = [
        estimate_delta(*paired_scores(int(x), int(y), n), margin=margin, alpha=ALPHA, rng=rng)
        for x, y in tables
    ]
    return estimates, place.reshape(-1)
