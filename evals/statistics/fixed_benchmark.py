"""A small set of items taken as fixed: the claim is about these items, the chance is in the sampling.

A few dozen competition problems are no random sample of problems, and too few to bootstrap. With several
samples of each item the two servers' mean accuracy *on these very items* can still be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from equipoise.evals.statistics.scores import check_margin, item_difference, paired_scores

__all__ = ["FixedBenchmarkResult", "fixed_benchmark"]

CITATION = (
    "Agresti A, Coull BA (1998). Approximate is better than exact for interval estimation of binomial "
    "proportions. The American Statistician 52:119-126 (shrunken proportions); graded scores: Bhatia R, "
    "Davis C (2000). A better bound on the variance. American Mathematical Monthly 107:353-357."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBenchmarkResult:
    """Difference of the two arms' expected mean score on these items, with normal limits.

    Attributes
    ----------
    n, repeats_baseline, repeats_candidate
        Items, and samples per item and arm.
    estimand
        What the limits are limits of: nothing is claimed about other items.
    delta, standard_error
        Mean over items of candidate - baseline, and its standard error over the sampling of answers.
    lower, upper
        One-sided ``1 - alpha`` limits of delta, kept in [-1, 1].
    noninferiority_p, equivalence_p
        P-values against "loss >= margin" and "abs(loss) >= margin".
    note
        Empty, or why the limits are wider than need be.
    """

    n: int
    repeats_baseline: int
    repeats_candidate: int
    estimand: str
    delta: float
    standard_error: float
    lower: float
    upper: float
    margin: float
    alpha: float
    noninferiority_p: float
    equivalence_p: float
    note: str = ""
    method: str = "fixed-benchmark z"
    citation: str = CITATION


def fixed_benchmark(
    baseline: ArrayLike, candidate: ArrayLike, *, margin: float, alpha: float = 0.05
) -> FixedBenchmarkResult:
    """Non-inferiority and equivalence on a fixed set of items, each sampled several times by both arms.

    ``Var = sum_i [p_A (1 - p_A) / (K_A - 1) + p_B (1 - p_B) / (K_B - 1)] / n^2`` with
    ``p = (sum of scores + 1/2) / (K + 1)``: shrunken, so that items answered always alike (all 0 or all 1)
    do not give certainty. Graded scores in [0, 1] vary at most like right-or-wrong answers of the same mean,
    ``p (1 - p)``, so the limits are conservative for them.

    Parameters
    ----------
    baseline, candidate
        Scores in [0, 1]; shapes [n, K_A] and [n, K_B], two repeats or more (four are advisable).
    margin
        Largest tolerated loss, a fraction in (0, 1).
    alpha
        One-sided error rate of each limit.

    Raises
    ------
    ValueError
        If an arm has fewer than two repeats, scores are missing, ragged or out of range, or the arms differ
        in items.
    """
    check_margin(margin, alpha)
    base, cand = paired_scores(baseline, candidate)
    for arm, scores in (("baseline", base), ("candidate", cand)):
        if scores.shape[1] < 2:
            raise ValueError(
                f"{arm}: one sample an item shows no spread within items; ask each item at least twice "
                "(four times is advisable), or use bootstrap_t if the items are a sample of many"
            )
    n = base.shape[0]
    delta = float(item_difference(base, cand).mean())
    se = float(np.sqrt(_sampling_variance(base) + _sampling_variance(cand))) / n
    reach = float(norm.isf(alpha)) * se
    noninferiority_p = float(norm.sf((delta + margin) / se))
    binary = all(bool(np.all((s == 0.0) | (s == 1.0))) for s in (base, cand))
    return FixedBenchmarkResult(
        n=n,
        repeats_baseline=base.shape[1],
        repeats_candidate=cand.shape[1],
        estimand=f"these {n} items only",
        delta=delta,
        standard_error=se,
        lower=max(-1.0, delta - reach),
        upper=min(1.0, delta + reach),
        margin=margin,
        alpha=alpha,
        noninferiority_p=noninferiority_p,
        equivalence_p=max(noninferiority_p, float(norm.cdf((delta - margin) / se))),
        note=""
        if binary
        else "graded scores: p (1 - p) bounds their variance, so the limits are conservative",
    )


def _sampling_variance(scores: NDArray[np.float64]) -> float:
    """Sum over items of the variance of an item's mean score; [n, K] in."""
    repeats = scores.shape[1]
    p = (scores.sum(axis=1) + 0.5) / (repeats + 1.0)
    total: np.float64 = np.sum(p * (1.0 - p))
    return float(total / (repeats - 1.0))
