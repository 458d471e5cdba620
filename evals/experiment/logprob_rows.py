"""A teacher-forced task's evidence and verdict as a row of the report."""

from collections.abc import Sequence
from math import isnan

from equipoise.evals.evidence import LogprobEvidence
from equipoise.evals.statistics.kl_comparison import KlComparison
from equipoise.evals.statistics.logprob import LogprobComparison
from equipoise.evals.types import ArmRole
from equipoise.evals.verdict import LogprobVerdict
from equipoise.reports.model import Divergence, Interval, LogprobRow, PositionBucket

__all__ = ["logprob_row"]


def logprob_row(evidence: LogprobEvidence, verdict: LogprobVerdict) -> LogprobRow:
    """The row; without a comparison it says only why there is none."""
    c = evidence.comparisons.get(ArmRole.CANDIDATE)
    noise = evidence.comparisons.get(ArmRole.BASELINE_REPEAT)
    cache_read = evidence.sequences_paired > 0 and evidence.sequences_cache_not_read == 0
    if c is None:
        return LogprobRow(
            task=evidence.task,
            critical=verdict.critical,
            sequences=0,
            tokens=0,
            status=verdict.status.value,
            delta_nll_nats=None,
            interval=None,
            gate_nats=verdict.gate_nats,
            cache_read=cache_read if evidence.sequences_paired else None,
            reason=verdict.reason,
        )
    kl = evidence.divergences.get(ArmRole.CANDIDATE)
    return LogprobRow(
        task=evidence.task,
        critical=verdict.critical,
        sequences=c.sequences,
        tokens=c.tokens,
        status=verdict.status.value,
        delta_nll_nats=c.delta_nll_nats,
        interval=_interval(c.lower, c.upper, c.alpha, c.method),
        gate_nats=verdict.gate_nats,
        noise_nats=abs(noise.delta_nll_nats) if noise is not None else None,
        top1_agreement=c.top1_agreement,
        abs_delta_logprob_nats=_percentiles(c.abs_delta_percentiles),
        buckets=_buckets(c, kl),
        cache_read=cache_read,
        kl=_divergence(evidence, kl) if kl is not None else None,
        reason=verdict.reason,
        undefined={"kl": evidence.kl_undefined} if evidence.kl_undefined else {},
    )


def _divergence(evidence: LogprobEvidence, kl: KlComparison) -> Divergence:
    noise = evidence.divergences.get(ArmRole.BASELINE_REPEAT)
    return Divergence(
        tokens=kl.tokens,
        tokens_without_lists=kl.tokens_without_lists,
        kl_nats=kl.kl_nats,
        interval=_interval(kl.lower, kl.upper, kl.alpha, kl.method),
        complete=kl.complete,
        ceiling_nats=kl.ceiling_upper,
        max_drop_nats=kl.max_drop_nats,
        truncated_baseline_mean=kl.truncated_baseline.mean,
        truncated_baseline_max=kl.truncated_baseline.max,
        truncated_candidate_mean=kl.truncated_candidate.mean,
        truncated_candidate_max=kl.truncated_candidate.max,
        gate_nats=evidence.max_kl_nats,
        noise_nats=noise.kl_nats if noise is not None else None,
        undefined={"ceiling_nats": kl.ceiling_reason} if isnan(kl.ceiling_upper) else {},
    )


def _buckets(c: LogprobComparison, kl: KlComparison | None) -> tuple[PositionBucket, ...]:
    diverged = {(b.start, b.stop): b for b in kl.buckets} if kl is not None else {}
    rows = []
    for b in c.buckets:
        d = diverged.get((b.start, b.stop))
        rows.append(
            PositionBucket(
                start=b.start,
                end=b.stop,
                tokens=b.tokens,
                sequences=b.sequences,
                delta_nll_nats=b.delta_nll_nats,
                interval=_interval(b.lower, b.upper, c.alpha, c.method),
                abs_delta_logprob_nats=_percentiles(b.abs_delta_percentiles),
                kl_nats=d.kl_nats if d is not None else None,
                kl_interval=_interval(d.lower, d.upper, c.alpha, kl.method) if d and kl else None,
                undefined={"interval": b.reason} if isnan(b.upper) else {},
            )
        )
    return tuple(rows)


def _interval(low: float, high: float, alpha: float, method: str) -> Interval:
    """The two one-sided bounds as one interval, at level 1 - 2 alpha."""
    return Interval(lo=low, hi=high, level=1.0 - 2.0 * alpha, method=method)


def _percentiles(found: Sequence[tuple[float, float]]) -> dict[str, float]:
    return {"max" if percent == 100.0 else f"p{percent:g}": nats for percent, nats in found}
