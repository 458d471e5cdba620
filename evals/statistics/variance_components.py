"""What the variance of a difference is made of: items that change, and answers that vary by themselves.

``Var(delta) = (omega^2 + s_A^2 / K_A + s_B^2 / K_B) / N``: omega^2 is the variance over items of the true
difference of the arms' expected scores, s^2 the mean variance of one answer to the same item. Repeats
shrink the latter only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.evals.statistics.scores import item_difference, paired_scores

__all__ = ["VarianceComponents", "noise_components", "variance_components"]

CITATION = (
    "Searle SR, Casella G, McCulloch CE (1992). Variance Components, ch. 3 (analysis-of-variance "
    "estimators); for model evaluations: Miller E (2024). Adding error bars to evals. arXiv:2411.00640."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceComponents:
    """Estimated parts of the variance of delta, and the data's size.

    Attributes
    ----------
    n, repeats_baseline, repeats_candidate, delta
        Items, answers an item in each arm, mean difference.
    between
        omega^2: variance over items of the true difference; never negative, see ``note``.
    between_untruncated
        The unbiased estimate, which may be negative.
    within_baseline, within_candidate
        s_A^2 and s_B^2: mean over items of the variance of one answer.
    note
        Empty, or what had to be assumed.
    """

    n: int
    repeats_baseline: int
    repeats_candidate: int
    delta: float
    between: float
    between_untruncated: float
    within_baseline: float
    within_candidate: float
    note: str = ""
    method: str = "analysis-of-variance estimators"
    citation: str = CITATION

    def variance_of_delta(
        self,
        *,
        items: int | None = None,
        repeats_baseline: int | None = None,
        repeats_candidate: int | None = None,
    ) -> float:
        """Variance of delta with so many items and repeats; by default as many as the data have."""
        within = self._within(repeats_baseline, repeats_candidate)
        return (self.between + within) / (items if items is not None else self.n)

    @property
    def within_share(self) -> float | None:
        """Share of the variance of delta that more repeats would shrink; None if nothing varies."""
        total = self.variance_of_delta() * self.n
        return self._within(None, None) / total if total > 0.0 else None

    def _within(self, repeats_baseline: int | None, repeats_candidate: int | None) -> float:
        k_a = repeats_baseline if repeats_baseline is not None else self.repeats_baseline
        k_b = repeats_candidate if repeats_candidate is not None else self.repeats_candidate
        return self.within_baseline / k_a + self.within_candidate / k_b


def variance_components(baseline: ArrayLike, candidate: ArrayLike) -> VarianceComponents:
    """Estimate the components from repeated answers of both arms to the same items.

    ``s^2`` is the mean of the items' own sample variances; ``omega^2`` the sample variance of the items'
    mean differences less ``s_A^2 / K_A + s_B^2 / K_B``. Both are unbiased; a negative ``omega^2`` (items
    differ less than their noise would make them) is put at 0 and noted.

    Parameters
    ----------
    baseline, candidate
        Scores in [0, 1]; shapes [n, K_A] and [n, K_B], with two items and two repeats or more.

    Raises
    ------
    ValueError
        If an arm has fewer than two repeats, there are fewer than two items, or scores are missing, ragged
        or out of range.
    """
    base, cand = paired_scores(baseline, candidate)
    for arm, scores in (("baseline", base), ("candidate", cand)):
        if scores.shape[1] < 2:
            raise ValueError(
                f"{arm}: one answer an item shows no variance within items; ask each item at least twice, "
                "or estimate it from the baseline asked twice (noise_components)"
            )
    return _components(base, cand, _within(base), _within(cand))


def noise_components(first: ArrayLike, second: ArrayLike) -> VarianceComponents:
    """Estimate them from one server asked twice: all its answers to an item are repeats of each other.

    The within-item variance is common to both arms and found even from one answer an item in each, where
    it is half the mean squared difference (for right-or-wrong answers: half the discordant share).
    ``omega^2`` is 0 for one and the same server; what is estimated of it says how far from that it was.

    Parameters
    ----------
    first, second
        Scores in [0, 1]; shapes [n, K_1] and [n, K_2], or [n].

    Raises
    ------
    ValueError
        If there are fewer than two items, or scores are missing, ragged or out of range.
    """
    base, cand = paired_scores(first, second)
    within = _within(np.concatenate((base, cand), axis=1))
    return _components(base, cand, within, within)


def _components(
    base: NDArray[np.float64], cand: NDArray[np.float64], within_base: float, within_cand: float
) -> VarianceComponents:
    n = base.shape[0]
    if n < 2:
        raise ValueError(f"variance between items needs at least 2 items, got {n}")
    difference = item_difference(base, cand)
    noise = within_base / base.shape[1] + within_cand / cand.shape[1]
    between = float(difference.var(ddof=1)) - noise
    between = 0.0 if abs(between) < 1e-12 else between  # rounding
    return VarianceComponents(
        n=n,
        repeats_baseline=base.shape[1],
        repeats_candidate=cand.shape[1],
        delta=float(difference.mean()),
        between=max(between, 0.0),
        between_untruncated=between,
        within_baseline=within_base,
        within_candidate=within_cand,
        note=""
        if between >= 0.0
        else "items differ less than the noise of their answers explains: the variance between items is "
        "taken as 0",
    )


def _within(scores: NDArray[np.float64]) -> float:
    """Mean over items of the sample variance of an item's answers; [n, K] in, K >= 2."""
    return float(scores.var(axis=1, ddof=1).mean())
