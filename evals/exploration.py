"""What is looked at beside the decision: secondary endpoints, subgroups, and small losses.

A small, consistent loss hides from every single task's test: two tests look for it over the items of all
tasks together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.evals.endpoints import TaskEndpoints, adjusted, task_endpoints
from equipoise.evals.evidence import Exploration, TaskEvidence
from equipoise.evals.statistics.trend import stratified_sign_test, trend_test
from equipoise.evals.subgroups import length_buckets, subgroups
from equipoise.evals.types import ArmRole, FloatArray, PairedTable

__all__ = ["explore"]


def explore(
    tasks: Sequence[tuple[TaskEvidence, Mapping[ArmRole, PairedTable]]],
    *,
    alpha: float,
    rng: np.random.Generator,
) -> Exploration:
    """Explore one model's tasks; nothing here decides.

    Parameters
    ----------
    tasks
        Each task's evidence, and the tables it came from.
    alpha
        One-sided error rate of the subgroups' limits.
    rng
        Source of resamples; give one of its own, so that no primary result depends on what is explored.
    """
    found: dict[ArmRole, list[TaskEndpoints]] = {}
    for evidence, tables in tasks:
        for role, comparison in evidence.comparisons.items():
            endpoints = task_endpoints(tables[role], rng=rng, truncation=comparison.truncation.test)
            if endpoints is not None:
                found.setdefault(role, []).append(endpoints)
    candidate = [(tables[ArmRole.CANDIDATE], evidence.margin) for evidence, tables in tasks]
    items = _all_items([table for table, _ in candidate if table.n])
    known = np.isfinite(items.prompt_tokens)
    return Exploration(
        endpoints={role: adjusted(rows) for role, rows in found.items()},
        subgroups=subgroups(candidate, alpha=alpha, rng=rng),
        stratified=stratified_sign_test(items.difference, items.stratum, rng=rng, clusters=items.cluster)
        if items.difference.size
        else None,
        trend=trend_test(
            items.difference[known], items.prompt_tokens[known], rng=rng, clusters=items.cluster[known]
        )
        if known.any()
        else None,
        trend_unknown=int(np.sum(~known)),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Items:
    """The paired items of all tasks, in one row; tasks share neither clusters nor strata."""

    difference: FloatArray
    prompt_tokens: FloatArray  # NaN where not known
    cluster: npt.NDArray[np.int64]
    stratum: npt.NDArray[np.int64]  # task and length bucket


def _all_items(tables: Sequence[PairedTable]) -> _Items:
    prompts = [np.full(t.n, np.nan) if t.prompt_tokens is None else t.prompt_tokens for t in tables]
    return _Items(
        difference=_joined([np.asarray(t.candidate.mean(axis=1) - t.baseline.mean(axis=1)) for t in tables]),
        prompt_tokens=_joined(prompts),
        cluster=_apart([np.unique(np.array(t.cluster_ids), return_inverse=True)[1] for t in tables]),
        stratum=_apart([length_buckets(p) + 1 for p in prompts]),
    )


def _joined(parts: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate(parts) if parts else np.empty(0)


def _apart(labels: Sequence[npt.NDArray[np.integer]]) -> npt.NDArray[np.int64]:
    """Labels (0 or more) of several tasks in one row, those of different tasks different."""
    found: list[npt.NDArray[np.int64]] = []
    start = 0
    for label in labels:
        found.append(label.astype(np.int64) + start)
        start = int(found[-1].max()) + 1
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)
