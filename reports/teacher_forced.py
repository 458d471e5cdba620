"""Teacher-forced evidence of a report: likelihood, divergence, and both by position. See model.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.reports.evidence import Interval
from equipoise.reports.node import Node

__all__ = ["Divergence", "LogprobRow", "PositionBucket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionBucket(Node):
    """Tokens at positions [start, end) of their sequences; ``end`` None means to the end."""

    start: int
    end: int | None
    tokens: int
    delta_nll_nats: float | None
    interval: Interval | None = None
    sequences: int | None = None
    abs_delta_logprob_nats: Mapping[str, float] = field(default_factory=dict)  # "p50" -> nats
    kl_nats: float | None = None
    kl_interval: Interval | None = None
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence(Node):
    """Mean KL(baseline || candidate) of the next token's distribution, nats a token.

    From lists of likely tokens ``kl_nats`` is a lower bound; if they are ``complete`` (the whole
    vocabulary) it is the divergence itself.
    """

    tokens: int
    tokens_without_lists: int
    kl_nats: float | None
    interval: Interval | None
    complete: bool
    ceiling_nats: float | None  # upper confidence bound, whatever the lists leave out
    max_drop_nats: float | None  # the ceiling's assumption: no token's logprob falls by more
    truncated_baseline_mean: float  # probability outside the lists, over tokens
    truncated_baseline_max: float
    truncated_candidate_mean: float
    truncated_candidate_max: float
    gate_nats: float | None = None  # the ceiling must stay below; None where the plan sets no limit
    noise_nats: float | None = None  # of A2 against A1
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobRow(Node):
    """Teacher-forced evidence; ``delta_nll_nats`` = NLL(candidate) - NLL(baseline), lower is better."""

    task: str
    critical: bool
    sequences: int
    tokens: int
    status: str  # "passed", "failed", "cache not read", "not measured", ...
    delta_nll_nats: float | None
    interval: Interval | None
    gate_nats: float | None  # the interval's upper end must stay below
    noise_nats: float | None = None  # |delta-NLL| of A2 against A1
    top1_agreement: float | None = None
    abs_delta_logprob_nats: Mapping[str, float] = field(default_factory=dict)  # "p50" -> nats
    buckets: tuple[PositionBucket, ...] = ()
    cache_read: bool | None = None
    kl: Divergence | None = None
    reason: str = ""
    undefined: Mapping[str, str] = field(default_factory=dict)
