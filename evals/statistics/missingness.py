"""Do two arms lose samples at different rates?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import fisher_exact

__all__ = ["DifferentialMissingness", "differential_missingness"]

CITATION = "Fisher RA (1935). The Design of Experiments, sec. 21 (exact test of a 2x2 table)."


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentialMissingness:
    """Missing samples of two arms over a suite; ``p`` is two-sided, 1 when nothing is missing."""

    baseline_missing: int
    baseline_planned: int
    candidate_missing: int
    candidate_planned: int
    baseline_rate: float
    candidate_rate: float
    p: float
    method: str = "Fisher's exact test"
    citation: str = CITATION


def differential_missingness(
    baseline_missing: int, baseline_planned: int, candidate_missing: int, candidate_planned: int
) -> DifferentialMissingness:
    """Test whether samples go missing equally often in both arms.

    Parameters
    ----------
    baseline_missing, candidate_missing
        Samples without a score.
    baseline_planned, candidate_planned
        Samples that the plan asked for.

    Raises
    ------
    ValueError
        If nothing was planned in an arm, or more is missing than was planned.
    """
    for arm, missing, planned in (
        ("baseline", baseline_missing, baseline_planned),
        ("candidate", candidate_missing, candidate_planned),
    ):
        if planned < 1 or not 0 <= missing <= planned:
            raise ValueError(f"{arm}: need 0 <= missing <= planned and planned >= 1, got {missing}/{planned}")
    table = np.array(
        [
            [baseline_missing, baseline_planned - baseline_missing],
            [candidate_missing, candidate_planned - candidate_missing],
        ]
    )
    return DifferentialMissingness(
        baseline_missing=baseline_missing,
        baseline_planned=baseline_planned,
        candidate_missing=candidate_missing,
        candidate_planned=candidate_planned,
        baseline_rate=baseline_missing / baseline_planned,
        candidate_rate=candidate_missing / candidate_planned,
        p=float(fisher_exact(table).pvalue),
    )
