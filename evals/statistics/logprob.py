"""Teacher-forced logprobs of two arms: the change of the negative log-likelihood per token.

Tokens of one sequence share a context and are not independent: sequences are the clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.evals.statistics.ratio_bootstrap import CITATION, METHOD, clusters_of, ratio_bounds

__all__ = ["BUCKET_EDGES", "LogprobComparison", "PositionBucket", "bucket_of", "compare_logprobs"]

BUCKET_EDGES = (0, 64, 128, 256, 512, 1024, 4096, 16384, 65536, 1 << 62)
_PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionBucket:
    """Tokens at positions ``start <= position < stop``: faults of a cache grow with the context.

    ``lower`` and ``upper`` are one-sided ``1 - alpha`` bounds of ``delta_nll_nats`` over the bucket's
    sequences, each bucket for itself (exploratory: not adjusted for the number of buckets); see
    `LogprobComparison` for ``reason``.
    """

    start: int
    stop: int
    tokens: int
    sequences: int
    delta_nll_nats: float
    lower: float
    upper: float
    reason: str
    mean_abs_delta_nats: float
    abs_delta_percentiles: tuple[tuple[float, float], ...]


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
        Share of tokens on which the arms' first choices agree; None if not known.
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
    method: str = METHOD
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
    bucket_edges: tuple[int, ...] = BUCKET_EDGES,
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
        The arm's own first choice (its id) at each token, or, where only that is known, whether the token
        is that choice; shape [tokens], of one kind in both arms.
    alpha
        One-sided alpha of the bounds.

    Raises
    ------
    ValueError
        If there is no token, shapes differ, or a logprob is not finite.
    """
    base, cand = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    names, index = clusters_of(sequence)
    if base.ndim != 1 or not base.shape == cand.shape == index.shape:
        raise ValueError(
            "need at least one token, and one baseline logprob, candidate logprob and sequence per token; "
            f"got shapes {base.shape}, {cand.shape}, {index.shape}"
        )
    if not (np.all(np.isfinite(base)) and np.all(np.isfinite(cand))):
        raise ValueError("logprobs must be finite; drop unscored tokens and count them as missing")
    change = base - cand  # nats of negative log-likelihood, positive is worse
    # Row 0 is all tokens; then one row a bucket that has any.
    rows = [np.arange(change.size)]
    edges: list[tuple[int, int]] = []
    if position is not None:
        bucket = bucket_of(position, bucket_edges, tokens=change.size)
        for b in np.unique(bucket):
            rows.append(np.flatnonzero(bucket == b))
            edges.append((bucket_edges[b], bucket_edges[b + 1]))
    sums = np.stack([np.bincount(index[r], weights=change[r], minlength=names.size) for r in rows])
    lengths = np.stack([np.bincount(index[r], minlength=names.size) for r in rows])
    found = ratio_bounds(sums, lengths, alpha=alpha, resamples=resamples, rng=rng)
    limits = [
        # The arms computed the very same thing: a fact about them, not an estimate.
        (float(low), float(high), reason)
        if change[r].any()
        else (0.0, 0.0, "identical logprobs in both arms")
        for r, low, high, reason in zip(rows, found.lower, found.upper, found.reasons, strict=True)
    ]
    by_sequence = sums[0] / lengths[0]
    worst = np.argsort(-by_sequence, kind="stable")[:5]
    mean = found.mean
    return LogprobComparison(
        sequences=int(names.size),
        tokens=int(base.size),
        alpha=alpha,
        resamples=resamples,
        delta_nll_nats=float(mean[0]),
        delta_logprob_nats=-float(mean[0]),
        standard_error=float(found.standard_error[0]),
        lower=limits[0][0],
        upper=limits[0][1],
        reason=limits[0][2],
        top1_agreement=None
        if baseline_top1 is None or candidate_top1 is None
        else float(np.mean(np.asarray(baseline_top1) == np.asarray(candidate_top1))),
        abs_delta_percentiles=_percentiles(change),
        worst_sequences=tuple((str(names[i]), float(by_sequence[i])) for i in worst),
        buckets=tuple(
            PositionBucket(
                start=start,
                stop=stop,
                tokens=int(rows[b].size),
                sequences=int(np.count_nonzero(lengths[b])),
                delta_nll_nats=float(mean[b]),
                lower=limits[b][0],
                upper=limits[b][1],
                reason=limits[b][2],
                mean_abs_delta_nats=float(np.abs(change[rows[b]]).mean()),
                abs_delta_percentiles=_percentiles(change[rows[b]]),
            )
            for b, (start, stop) in enumerate(edges, start=1)
        ),
    )


def bucket_of(position: ArrayLike, edges: tuple[int, ...], *, tokens: int) -> NDArray[np.intp]:
    """Number of the bucket ``edges[b] <= position < edges[b + 1]`` of each token, shape [tokens].

    Raises
    ------
    ValueError
        If there is not one position per token, or one lies in no bucket.
    """
    at = np.asarray(position)
    if at.shape != (tokens,):
        raise ValueError(f"need one position per token, got {at.shape} for {tokens} tokens")
    bucket = np.searchsorted(edges, at, side="right") - 1
    outside = np.flatnonzero((bucket < 0) | (bucket >= len(edges) - 1))
    if outside.size:
        raise ValueError(f"token {outside[0]}: position {at[outside[0]]} is in no bucket of {edges}")
    return bucket


def _percentiles(change: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    values = np.percentile(np.abs(change), _PERCENTILES)
    return tuple((q, float(x)) for q, x in zip(_PERCENTILES, values, strict=True))
