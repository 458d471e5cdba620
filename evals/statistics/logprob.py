"""Teacher-forced logprobs of two arms: the change of the negative log-likelihood per token.

Tokens of one sequence share a context and are not independent: sequences are the clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import nan

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LogprobComparison", "PositionBucket", "compare_logprobs"]

CITATION = (
    "Field CA, Welsh AH (2007). Bootstrapping clustered data. Journal of the Royal Statistical Society B "
    "69:369-390; Hall P (1992). The Bootstrap and Edgeworth Expansion (studentized bootstrap)."
)
_PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)
# Resamples are drawn in blocks of about this many weights, to bound memory.
_BLOCK_WEIGHTS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionBucket:
    """Tokens at positions ``start <= position < stop``: faults of a cache grow with the context."""

    start: int
    stop: int
    tokens: int
    delta_nll_nats: float
    mean_abs_delta_nats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobComparison:
    """Candidate against baseline on the same tokens; nats per token, positive is worse.

    Attributes
    ----------
    sequences, tokens
        Clusters and scored tokens.
    delta_nll_nats
        Mean over tokens of ``baseline logprob - candidate logprob``.
    delta_logprob_nats
        Its negative: candidate - baseline.
    lower, upper
        One-sided ``1 - alpha`` bounds of ``delta_nll_nats`` (cluster bootstrap-t); NaN, with a
        ``reason``, where they are not defined; 0, with a ``reason``, where all logprobs are identical.
    top1_agreement
        Share of tokens on which "is the token the model's first choice" agrees; None if not known.
    abs_delta_percentiles
        (percent, nats) of the absolute change of a token's logprob.
    worst_sequences
        (sequence, mean change of its tokens' negative log-likelihood), the worst first.
    buckets
        By position; empty if positions are not known.
    """

    sequences: int
    tokens: int
    alpha: float
    resamples: int
    delta_nll_nats: float
    delta_logprob_nats: float
    standard_error: float
    lower: float
    upper: float
    reason: str
    top1_agreement: float | None
    abs_delta_percentiles: tuple[tuple[float, float], ...]
    worst_sequences: tuple[tuple[str, float], ...]
    buckets: tuple[PositionBucket, ...]
    method: str = "cluster bootstrap-t over sequences"
    citation: str = CITATION


def compare_logprobs(
    baseline: ArrayLike,
    candidate: ArrayLike,
    sequence: ArrayLike,
    *,
    rng: np.random.Generator,
    position: ArrayLike | None = None,
    baseline_top1: ArrayLike | None = None,
    candidate_top1: ArrayLike | None = None,
    bucket_edges: tuple[int, ...] = (0, 64, 128, 256, 512, 1024, 4096, 16384, 65536, 1 << 62),
    alpha: float = 0.05,
    resamples: int = 10_000,
) -> LogprobComparison:
    """Compare two arms token by token.

    Parameters
    ----------
    baseline, candidate
        Logprobs (nats) of the same tokens in the same order, shape [tokens].
    sequence
        Sequence of each token (a name or number), shape [tokens].
    rng
        Source of the resamples.
    position
        Position of each token in its sequence, shape [tokens].
    baseline_top1, candidate_top1
        Whether the token is the arm's own most likely one, shape [tokens].
    alpha
        One-sided alpha of the bounds.

    Raises
    ------
    ValueError
        If there is no token, shapes differ, or a logprob is not finite.
    """
    base, cand = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    names, index = np.unique(np.asarray(sequence), return_inverse=True)
    if base.ndim != 1 or base.size == 0 or not base.shape == cand.shape == index.shape:
        raise ValueError(
            "need at least one token, and one baseline logprob, candidate logprob and sequence per token; "
            f"got shapes {base.shape}, {cand.shape}, {index.shape}"
        )
    if not (np.all(np.isfinite(base)) and np.all(np.isfinite(cand))):
        raise ValueError("logprobs must be finite; drop unscored tokens and count them as missing")
    change = base - cand  # nats of negative log-likelihood, positive is worse
    lengths = np.bincount(index).astype(np.float64)
    sums = np.bincount(index, weights=change).astype(np.float64)
    mean, se = _ratio_with_se(sums, lengths, np.ones((1, lengths.size)))
    if np.any(change != 0.0):
        lower, upper, reason = _bounds(sums, lengths, alpha, resamples, rng)
    else:  # the arms computed the very same thing: a fact about them, not an estimate
        lower, upper, reason = 0.0, 0.0, "every logprob is identical in both arms"
    agreement = (
        float(np.mean(np.asarray(baseline_top1, dtype=bool) == np.asarray(candidate_top1, dtype=bool)))
        if baseline_top1 is not None and candidate_top1 is not None
        else None
    )
    by_sequence = sums / lengths
    worst = np.argsort(-by_sequence, kind="stable")[:5]
    return LogprobComparison(
        sequences=int(lengths.size),
        tokens=int(base.size),
        alpha=alpha,
        resamples=resamples,
        delta_nll_nats=float(mean[0]),
        delta_logprob_nats=-float(mean[0]),
        standard_error=float(se[0]),
        lower=lower,
        upper=upper,
        reason=reason,
        top1_agreement=agreement,
        abs_delta_percentiles=tuple(
            (q, float(x))
            for q, x in zip(_PERCENTILES, np.percentile(np.abs(change), _PERCENTILES), strict=True)
        ),
        worst_sequences=tuple((str(names[i]), float(by_sequence[i])) for i in worst),
        buckets=_by_position(change, np.asarray(position), bucket_edges) if position is not None else (),
    )


def _ratio_with_se(
    sums: NDArray[np.float64], lengths: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean over tokens and its cluster-robust standard error, for each row of cluster weights."""
    clusters = sums.shape[-1]
    tokens = (weights * lengths).sum(axis=1)
    mean = (weights * sums).sum(axis=1) / tokens
    residual = sums - mean[:, None] * lengths
    squares = (weights * np.square(residual)).sum(axis=1)
    inflation = clusters / (clusters - 1.0) if clusters > 1 else nan
    return mean, np.sqrt(inflation * squares) / tokens


def _bounds(
    sums: NDArray[np.float64],
    lengths: NDArray[np.float64],
    alpha: float,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[float, float, str]:
    """One-sided bounds of the mean over tokens, and why they are what they are where that is special."""
    mean, se = (float(x[0]) for x in _ratio_with_se(sums, lengths, np.ones((1, sums.size))))
    if sums.size < 2:
        return nan, nan, "one sequence shows no spread between sequences"
    if se <= 1e-15:
        return nan, nan, "every sequence changed alike: no spread between sequences"
    pivots = np.empty(resamples)
    block = max(1, _BLOCK_WEIGHTS // sums.size)
    shares = np.full(sums.size, 1.0 / sums.size)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        weights = rng.multinomial(sums.size, shares, size=rows).astype(np.float64)
        means, errors = _ratio_with_se(sums, lengths, weights)
        # A resample without spread is an infinite pivot, never dropped: dropping it narrows the interval.
        with np.errstate(divide="ignore", invalid="ignore"):
            pivot = (means - mean) / errors
        pivots[start : start + rows] = np.where(means == mean, 0.0, pivot)
    low, high = np.quantile(pivots, [alpha, 1.0 - alpha], method="inverted_cdf")
    return mean - float(high) * se, mean - float(low) * se, ""


def _by_position(
    change: NDArray[np.float64], position: NDArray[np.int_], edges: tuple[int, ...]
) -> tuple[PositionBucket, ...]:
    if position.shape != change.shape:
        raise ValueError(f"need one position per token, got {position.shape} for {change.shape}")
    buckets = []
    for start, stop in pairwise(edges):
        inside = change[(position >= start) & (position < stop)]
        if inside.size:
            buckets.append(
                PositionBucket(
                    start=start,
                    stop=stop,
                    tokens=int(inside.size),
                    delta_nll_nats=float(inside.mean()),
                    mean_abs_delta_nats=float(np.abs(inside).mean()),
                )
            )
    return tuple(buckets)
