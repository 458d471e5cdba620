"""What is told beside the decision: secondary endpoints, lengths, subgroups, trends. See model.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.reports.evidence import Interval
from equipoise.reports.node import Node

__all__ = ["CompletedRow", "EndpointRow", "LengthRow", "Secondary", "SubgroupRow", "TrendRow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRow(Node):
    """How often answers of one task show a fault: truncated, not extracted (nothing in it to grade), loop."""

    task: str
    endpoint: str
    n: int  # paired items
    baseline: int  # answers with the fault
    candidate: int
    baseline_rate: float | None  # of all answers
    candidate_rate: float | None
    baseline_only: int  # items that only this arm shows it on
    candidate_only: int
    p: float | None  # two-sided
    p_adjusted: float | None  # Benjamini-Hochberg over the model's tasks and endpoints
    method: str = ""
    examples: tuple[str, ...] = ()  # item ids, candidate only
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRow(Node):
    """The primary analysis repeated on the items of which no answer was truncated in either arm."""

    task: str
    n: int
    delta: float | None
    interval: Interval | None
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRow(Node):
    """Completion tokens, candidate / baseline: of all pairs, and (``ended``) without truncated answers."""

    task: str
    n: int
    unknown: int  # items without a length
    baseline_mean: float | None  # tokens an answer
    candidate_mean: float | None
    ratio: float | None
    interval: Interval | None
    geometric_ratio: float | None = None  # of the typical item
    geometric_interval: Interval | None = None
    ended_n: int = 0
    ended_ratio: float | None = None
    ended_interval: Interval | None = None
    p: float | None = None
    p_adjusted: float | None = None
    method: str = ""
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubgroupRow(Node):
    """Candidate minus baseline on the items of one task that have one label."""

    task: str
    stratum: str
    label: str
    n: int
    accuracy_baseline: float | None
    accuracy_candidate: float | None
    delta: float | None
    interval: Interval | None  # not adjusted
    p: float | None
    p_adjusted: float | None  # Benjamini-Hochberg over the model's subgroups
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendRow(Node):
    """A test over the items of all tasks: does the loss grow with the prompt, do the strata agree?"""

    name: str
    n: int
    p: float | None  # two-sided, not adjusted
    p_loss: float | None  # one-sided: the loss grows, or there is one
    slope: float | None = None  # change of delta from the shortest to the longest prompt
    unknown: int = 0  # items without a known length
    strata: int | None = None  # tasks by length of prompt
    strata_losing: int | None = None
    strata_gaining: int | None = None
    method: str = ""
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secondary(Node):
    """All of it about one model. Exploratory: nothing here decides.

    ``warnings`` are facts that make the primary result doubtful, one sentence each.
    """

    warnings: tuple[str, ...] = ()
    endpoints: tuple[EndpointRow, ...] = ()
    completed: tuple[CompletedRow, ...] = ()
    lengths: tuple[LengthRow, ...] = ()
    trends: tuple[TrendRow, ...] = ()
    subgroups: tuple[SubgroupRow, ...] = ()
    subgroups_too_small: int = 0  # fewer items than an analysis needs: counted only
