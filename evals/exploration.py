"""What is looked at beside the decision: secondary endpoints of every arm, subgroups of the candidate."""

from collections.abc import Mapping, Sequence

import numpy as np

from equipoise.evals.endpoints import TaskEndpoints, adjusted, task_endpoints
from equipoise.evals.evidence import Exploration, TaskEvidence
from equipoise.evals.subgroups import subgroups
from equipoise.evals.types import ArmRole, PairedTable

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
    return Exploration(
        endpoints={role: adjusted(rows) for role, rows in found.items()},
        subgroups=subgroups(candidate, alpha=alpha, rng=rng),
    )
