"""What a report tells beside the decision, from what was explored. Copies values; computes nothing new."""

from collections.abc import Iterator, Mapping
from math import isfinite

from equipoise.evals.endpoints import LengthEndpoint, PairedEndpoint, TaskEndpoints
from equipoise.evals.evidence import Exploration, SuiteEvidence, TaskEvidence
from equipoise.evals.statistics.length_ratio import LengthRatioResult
from equipoise.evals.subgroups import Subgroup
from equipoise.evals.types import ArmRole
from equipoise.reports.evidence import Interval
from equipoise.reports.secondary import (
    CompletedRow,
    EndpointRow,
    LengthRow,
    Secondary,
    SubgroupRow,
    TrendRow,
)

__all__ = ["secondary_report"]

#: From here on it is the grader or the prompt that fails, not the model.
MAX_BASELINE_EXTRACTION_FAILURE = 0.10

#: What the reader is told an endpoint is: what the answer was, or had.
WORDS = {
    "truncation": "truncated",
    "extraction failure": "not extracted",
    "degenerate repetition": "loop",
}


def secondary_report(evidence: SuiteEvidence) -> Secondary | None:
    """The candidate's secondary endpoints and subgroups; None where nothing was explored."""
    exploration = evidence.exploration
    if exploration is None:
        return None
    tasks = exploration.endpoints.get(ArmRole.CANDIDATE, ())
    return Secondary(
        warnings=(*_extraction_warnings(tasks), *_nothing_right(evidence.tasks)),
        endpoints=tuple(_endpoint_row(e) for t in tasks for e in t.paired),
        completed=tuple(row for t in evidence.tasks if (row := _completed_row(t)) is not None),
        lengths=tuple(_length_row(t.length) for t in tasks if t.length is not None),
        trends=tuple(_trend_rows(exploration)),
        subgroups=tuple(_subgroup_row(s) for s in exploration.subgroups.rows),
        subgroups_too_small=exploration.subgroups.too_small,
    )


def _extraction_warnings(tasks: tuple[TaskEndpoints, ...]) -> list[str]:
    return [
        f"{e.task}: the grader found nothing in {e.baseline_rate:.1%} of the baseline's answers; "
        "the grader or the prompt may not fit"
        for t in tasks
        for e in t.paired
        if e.endpoint == "extraction failure" and e.baseline_rate > MAX_BASELINE_EXTRACTION_FAILURE
    ]


def _nothing_right(tasks: tuple[TaskEvidence, ...]) -> list[str]:
    return [
        f"{t.task}: the baseline has nothing right and can lose nothing; the grader or the prompt may not fit"
        for t in tasks
        if t.primary is not None and t.primary.baseline_accuracy == 0.0
    ]


def _endpoint_row(e: PairedEndpoint) -> EndpointRow:
    return EndpointRow(
        task=e.task,
        endpoint=WORDS[e.endpoint],
        n=e.n,
        baseline=e.baseline,
        candidate=e.candidate,
        baseline_rate=e.baseline_rate,
        candidate_rate=e.candidate_rate,
        baseline_only=e.baseline_only,
        candidate_only=e.candidate_only,
        p=e.test.two_sided_p,
        p_adjusted=e.adjusted_p,
        method=e.test.method,
        examples=e.examples,
    )


def _completed_row(task: TaskEvidence) -> CompletedRow | None:
    both = task.primary.truncation.both_completed if task.primary is not None else None
    if both is None:
        return None
    return CompletedRow(
        task=task.task,
        n=both.n,
        delta=both.delta,
        interval=_interval(both.lower, both.upper, 1.0 - 2.0 * both.alpha, both.method),
    )


def _length_row(length: LengthEndpoint) -> LengthRow:
    ratio, ended = length.all_items, length.completed
    return LengthRow(
        task=length.task,
        n=ratio.n,
        unknown=length.unknown,
        baseline_mean=ratio.baseline_mean,
        candidate_mean=ratio.candidate_mean,
        ratio=ratio.ratio,
        interval=_ratio_interval(ratio),
        geometric_ratio=ratio.geometric_ratio,
        geometric_interval=_interval(
            ratio.geometric_lower, ratio.geometric_upper, ratio.level, "t interval of log ratios"
        ),
        ended_n=0 if ended is None else ended.n,
        ended_ratio=None if ended is None else ended.ratio,
        ended_interval=None if ended is None else _ratio_interval(ended),
        p=ratio.two_sided_p,
        p_adjusted=length.adjusted_p,
        method=ratio.method,
        undefined=_why(ratio),
    )


def _why(ratio: LengthRatioResult) -> Mapping[str, str]:
    values = {
        "ratio": ratio.ratio,
        "interval": ratio.lower,
        "geometric_ratio": ratio.geometric_ratio,
        "geometric_interval": ratio.geometric_lower,
        "p": ratio.two_sided_p,
        "p_adjusted": ratio.two_sided_p,
    }
    return {name: ratio.reason for name, value in values.items() if not isfinite(value)}


def _ratio_interval(ratio: LengthRatioResult) -> Interval | None:
    return _interval(ratio.lower, ratio.upper, ratio.level, ratio.method)


def _interval(low: float, high: float, level: float, method: str) -> Interval | None:
    if not (isfinite(low) or isfinite(high)):
        return None
    return Interval(lo=low, hi=high, level=level, method=method)


def _subgroup_row(s: Subgroup) -> SubgroupRow:
    return SubgroupRow(
        task=s.task,
        stratum=s.stratum,
        label=s.label,
        n=s.n,
        accuracy_baseline=s.baseline_accuracy,
        accuracy_candidate=s.candidate_accuracy,
        delta=s.estimate.delta,
        interval=_interval(
            s.estimate.lower, s.estimate.upper, 1.0 - 2.0 * s.estimate.alpha, s.estimate.method
        ),
        p=s.test.two_sided_p,
        p_adjusted=s.adjusted_p,
    )


def _trend_rows(exploration: Exploration) -> Iterator[TrendRow]:
    strata, trend = exploration.stratified, exploration.trend
    if strata is not None:
        yield TrendRow(
            name="tasks by length of prompt",
            n=strata.n,
            p=strata.two_sided_p,
            p_loss=strata.loss_p,
            strata=strata.strata,
            strata_losing=strata.strata_losing,
            strata_gaining=strata.strata_gaining,
            method=strata.method,
        )
    if trend is not None:
        yield TrendRow(
            name="longer prompts",
            n=trend.n,
            p=trend.two_sided_p,
            p_loss=trend.growing_loss_p,
            slope=trend.slope,
            unknown=exploration.trend_unknown,
            method=trend.method,
            undefined={"slope": trend.reason} if trend.reason else {},
        )
