"""Secondary endpoints of a comparison: what else may have changed while the accuracy held.

Each is paired like the primary analysis: answers that ran into their budget, answers in which the grader
found nothing, answers stuck in a loop, and how long answers are. They are exploratory: p-values are
adjusted over all tasks and endpoints of an arm (Benjamini-Hochberg), and none of them decides. (Truncation
has an alarm of its own besides, adjusted over the tasks; see `rules`.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Literal

import numpy as np
import numpy.typing as npt

from equipoise.evals.statistics.delta import DifferenceTest
from equipoise.evals.statistics.holm import benjamini_hochberg
from equipoise.evals.statistics.length_ratio import LengthRatioResult, length_ratio
from equipoise.evals.statistics.primary import difference_test
from equipoise.evals.types import FloatArray, PairedTable

__all__ = [
    "EndpointName",
    "LengthEndpoint",
    "PairedEndpoint",
    "TaskEndpoints",
    "adjusted",
    "task_endpoints",
]

EndpointName = Literal["truncation", "extraction failure", "degenerate repetition"]

MAX_EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEndpoint:
    """How often answers show a fault in either arm, over paired items.

    Attributes
    ----------
    n
        Items.
    baseline, candidate, baseline_answers, candidate_answers
        Answers with the fault, of all answers (items times repeats).
    baseline_only, candidate_only
        Items of which only that arm has an answer with the fault.
    examples
        Ids of the first items of ``candidate_only``, at most five.
    test
        Two-sided test of "equally often": exact McNemar, or sign flips of the items' rates where answers
        are repeated or items share clusters.
    adjusted_p
        Benjamini-Hochberg over all tasks and endpoints of the arm; NaN before `adjusted`.
    """

    task: str
    endpoint: EndpointName
    n: int
    baseline: int
    candidate: int
    baseline_answers: int
    candidate_answers: int
    baseline_only: int
    candidate_only: int
    examples: tuple[str, ...]
    test: DifferenceTest
    adjusted_p: float = nan

    @property
    def baseline_rate(self) -> float:
        return self.baseline / self.baseline_answers

    @property
    def candidate_rate(self) -> float:
        return self.candidate / self.candidate_answers

    @property
    def seen(self) -> bool:
        """Whether any answer shows the fault."""
        return self.baseline > 0 or self.candidate > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthEndpoint:
    """Completion tokens of the candidate relative to the baseline.

    ``completed`` leaves out items with a truncated answer in either arm, whose lengths say only what the
    budget was; None if no item is left. ``unknown`` counts items without a length in some answer.
    """

    task: str
    all_items: LengthRatioResult
    completed: LengthRatioResult | None
    unknown: int
    adjusted_p: float = nan


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEndpoints:
    """The secondary endpoints of one arm on one task; an endpoint that cannot be known is absent."""

    task: str
    paired: tuple[PairedEndpoint, ...]
    length: LengthEndpoint | None


def task_endpoints(
    table: PairedTable, *, rng: np.random.Generator, truncation: DifferenceTest | None = None
) -> TaskEndpoints | None:
    """All secondary endpoints of one table; None if it has no pairs.

    Parameters
    ----------
    table
        Paired answers.
    rng
        Source of random signs, where there are too many to count.
    truncation
        The test of truncation, where the primary analysis has made it already.
    """
    if table.n == 0:
        return None
    clusters = np.array(table.cluster_ids) if len(set(table.cluster_ids)) < table.n else None
    one, other = table.baseline_answers, table.candidate_answers
    flags: tuple[tuple[EndpointName, npt.NDArray[np.bool_] | None, npt.NDArray[np.bool_] | None], ...] = (
        ("truncation", table.baseline_truncated, table.candidate_truncated),
        ("extraction failure", one.unextracted, other.unextracted),
        ("degenerate repetition", one.degenerate, other.degenerate),
    )
    paired = tuple(
        _paired_endpoint(
            table,
            name,
            base,
            cand,
            test=truncation
            if name == "truncation" and truncation is not None
            # A fault is a loss: being without one is the score.
            else difference_test(
                (~base).astype(np.float64), (~cand).astype(np.float64), rng=rng, clusters=clusters
            ),
        )
        for name, base, cand in flags
        if base is not None and cand is not None
    )
    return TaskEndpoints(task=table.task, paired=paired, length=_length(table, clusters))


def adjusted(tasks: Sequence[TaskEndpoints]) -> tuple[TaskEndpoints, ...]:
    """The same endpoints with p-values adjusted over all of them (Benjamini-Hochberg); NaN stays NaN."""
    raw = [p for t in tasks for p in _p_values(t)]
    known = [p for p in raw if not isnan(p)]
    found = iter(benjamini_hochberg(known).adjusted if known else ())
    result = []
    for task in tasks:
        paired = tuple(replace(e, adjusted_p=next(found)) for e in task.paired)
        length = task.length
        if length is not None and not isnan(length.all_items.two_sided_p):
            length = replace(length, adjusted_p=next(found))
        result.append(replace(task, paired=paired, length=length))
    return tuple(result)


def _p_values(task: TaskEndpoints) -> list[float]:
    """In the order in which `adjusted` hands them back."""
    lengths = [] if task.length is None else [task.length.all_items.two_sided_p]
    return [*(e.test.two_sided_p for e in task.paired), *lengths]


def _paired_endpoint(
    table: PairedTable,
    name: EndpointName,
    baseline: npt.NDArray[np.bool_],  # [n, repeats]
    candidate: npt.NDArray[np.bool_],  # [n, repeats]
    *,
    test: DifferenceTest,
) -> PairedEndpoint:
    in_baseline, in_candidate = baseline.any(axis=1), candidate.any(axis=1)
    only = np.flatnonzero(in_candidate & ~in_baseline)
    return PairedEndpoint(
        task=table.task,
        endpoint=name,
        n=table.n,
        baseline=int(baseline.sum()),
        candidate=int(candidate.sum()),
        baseline_answers=baseline.size,
        candidate_answers=candidate.size,
        baseline_only=int(np.sum(in_baseline & ~in_candidate)),
        candidate_only=only.size,
        examples=tuple(table.item_ids[i] for i in only[:MAX_EXAMPLES]),
        test=test,
    )


def _length(table: PairedTable, clusters: npt.NDArray[np.str_] | None) -> LengthEndpoint | None:
    one, other = table.baseline_answers.completion_tokens, table.candidate_answers.completion_tokens
    if one is None or other is None:
        return None
    known = np.asarray(np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1), dtype=np.bool_)
    if not known.any():
        return None
    cut = table.baseline_truncated.any(axis=1) | table.candidate_truncated.any(axis=1)
    completed = np.asarray(known & ~cut, dtype=np.bool_)

    def ratio(rows: npt.NDArray[np.bool_], base: FloatArray, cand: FloatArray) -> LengthRatioResult:
        labels = None if clusters is None else clusters[rows]
        return length_ratio(base[rows], cand[rows], clusters=labels)

    return LengthEndpoint(
        task=table.task,
        all_items=ratio(known, one, other),
        completed=ratio(completed, one, other) if completed.any() else None,
        unknown=int(np.sum(~known)),
    )
