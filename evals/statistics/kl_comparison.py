"""Mean KL over tokens with bounds by sequence, over all tokens and by position."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.evals.statistics.kl import CITATION as KL_CITATION
from equipoise.evals.statistics.kl import TokenKl
from equipoise.evals.statistics.logprob import BUCKET_EDGES, bucket_of
from equipoise.evals.statistics.ratio_bootstrap import CITATION, METHOD, clusters_of, ratio_bounds

__all__ = ["KlBucket", "KlComparison", "TruncatedMass", "compare_kl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedMass:
    """Probability outside an arm's lists: its mean and its largest value over tokens."""

    mean: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KlBucket:
    """Mean KL of the tokens at positions ``start <= position < stop``; see `KlComparison`."""

    start: int
    stop: int
    tokens: int
    sequences: int
    kl_nats: float
    lower: float
    upper: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KlComparison:
    """Mean over tokens of KL(baseline || candidate), nats a token.

    Attributes
    ----------
    tokens, tokens_without_lists
        Tokens that count, and those left out because an arm sent no list for them.
    kl_nats
        Mean of the tokens' lower bounds; the mean KL itself if ``complete``.
    lower, upper
        One-sided ``1 - alpha`` bounds of ``kl_nats`` (cluster bootstrap-t); NaN, with a ``reason``,
        where they are not defined; 0, with a ``reason``, where all lists are identical.
    ceiling_nats
        Mean of the tokens' upper bounds; NaN where there is none, with a ``ceiling_reason``.
    ceiling_upper
        Its one-sided ``1 - alpha`` upper bound: the mean KL is below this, whatever the lists leave out.
    max_drop_nats
        The assumption behind ``ceiling_nats``, see `topk_kl`; None if it was not made.
    largest_drop_nats
        The largest fall of a token's logprob that the lists show.
    complete
        Whether the lists hold the whole vocabulary.
    """

    sequences: int
    tokens: int
    tokens_without_lists: int
    alpha: float
    resamples: int
    kl_nats: float
    standard_error: float
    lower: float
    upper: float
    reason: str
    ceiling_nats: float
    ceiling_upper: float
    ceiling_reason: str
    max_drop_nats: float | None
    largest_drop_nats: float
    complete: bool
    truncated_baseline: TruncatedMass
    truncated_candidate: TruncatedMass
    buckets: tuple[KlBucket, ...]
    method: str
    citation: str = f"{KL_CITATION} {CITATION}"


def compare_kl(
    kl: TokenKl,
    sequence: ArrayLike,
    *,
    rng: np.random.Generator,
    position: ArrayLike | None = None,
    bucket_edges: tuple[int, ...] = BUCKET_EDGES,
    alpha: float = 0.05,
    resamples: int = 10_000,
) -> KlComparison:
    """Average the tokens' KL, with bounds from whole sequences resampled.

    Parameters
    ----------
    kl
        Bounds at each token, from `full_kl` or `topk_kl`.
    sequence
        Sequence of each token (a name or number), shape [tokens].
    rng
        Source of the resamples.
    position
        Position of each token in its sequence, shape [tokens].
    alpha
        One-sided alpha of each bound.

    Raises
    ------
    ValueError
        If shapes differ, or no token has lists in both arms.
    """
    labels = np.asarray(sequence)
    if labels.shape != kl.lower.shape:
        raise ValueError(f"need one sequence per token, got {labels.shape} for {kl.lower.shape}")
    used = np.flatnonzero(~np.isnan(kl.lower))
    if used.size == 0:
        raise ValueError("no token has lists of likely tokens in both arms; ask the server for them")
    names, index = clusters_of(labels[used])
    low, high = kl.lower[used], kl.upper[used]
    # Rows 0 and 1 are the lower and upper bounds of all tokens; then the lower bounds by bucket.
    rows, values, edges = [np.arange(used.size)] * 2, [low, high], []
    if position is not None:
        bucket = bucket_of(position, bucket_edges, tokens=labels.size)[used]
        for b in np.unique(bucket):
            rows.append(np.flatnonzero(bucket == b))
            values.append(low)
            edges.append((bucket_edges[b], bucket_edges[b + 1]))
    if kl.complete:
        values[1] = low
    pairs = list(zip(rows, values, strict=True))
    sums = np.stack([np.bincount(index[r], weights=v[r], minlength=names.size) for r, v in pairs])
    lengths = np.stack([np.bincount(index[r], minlength=names.size) for r in rows])
    found = ratio_bounds(sums, lengths, alpha=alpha, resamples=resamples, rng=rng)
    limits = [
        # KL is 0 only of the same distribution, so 0 everywhere is a fact about the arms.
        (max(0.0, float(a)), float(b), reason) if v[r].any() else (0.0, 0.0, "identical lists in both arms")
        for (r, v), a, b, reason in zip(pairs, found.lower, found.upper, found.reasons, strict=True)
    ]
    bounded = np.isfinite(found.mean[1])
    return KlComparison(
        sequences=int(names.size),
        tokens=int(used.size),
        tokens_without_lists=int(labels.size - used.size),
        alpha=alpha,
        resamples=resamples,
        kl_nats=float(found.mean[0]),
        standard_error=float(found.standard_error[0]),
        lower=limits[0][0],
        upper=limits[0][1],
        reason=limits[0][2],
        ceiling_nats=float(found.mean[1]) if bounded else nan,
        ceiling_upper=limits[1][1] if bounded else nan,
        ceiling_reason=(limits[1][2] if limits[1][1] != 0.0 else "") if bounded else kl.no_upper_reason,
        max_drop_nats=kl.max_drop_nats,
        largest_drop_nats=kl.largest_drop_nats,
        complete=kl.complete,
        truncated_baseline=_mass(kl.truncated_baseline[used]),
        truncated_candidate=_mass(kl.truncated_candidate[used]),
        buckets=tuple(
            KlBucket(
                start=start,
                stop=stop,
                tokens=int(rows[i].size),
                sequences=int(np.count_nonzero(lengths[i])),
                kl_nats=float(found.mean[i]),
                lower=limits[i][0],
                upper=limits[i][1],
                reason=limits[i][2],
            )
            for i, (start, stop) in enumerate(edges, start=2)
        ),
        method=f"{kl.method}; {METHOD}",
    )


def _mass(values: NDArray[np.float64]) -> TruncatedMass:
    return TruncatedMass(mean=float(values.mean()), max=float(values.max(initial=-inf)))
