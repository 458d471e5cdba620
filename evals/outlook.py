"""What is left of sign-off in the middle of a run: how probable, or impossible, each condition has become."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np

from equipoise.evals.evidence import Comparison, SuiteEvidence
from equipoise.evals.plan import Plan
from equipoise.evals.policy import POOLED, Policy
from equipoise.evals.statistics.curtailment import (
    conditional_power,
    macro_conditional_power,
    project_counts,
    project_estimate,
    still_possible,
)
from equipoise.evals.statistics.tango import TangoResult

__all__ = ["Outlook", "outlooks_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is left of one condition of sign-off: a critical task, or the pooled mean.

    ``conditional_power`` is None where the data give no limit to project; ``possible`` is False if not even
    the best answers to all remaining items would pass.
    """

    name: str
    conditional_power: float | None
    possible: bool


def outlooks_of(
    plan: Plan, evidence: SuiteEvidence, policy: Policy, items: Mapping[str, int]
) -> tuple[Outlook, ...]:
    """Of every critical task, and of the pooled mean; a task that has no pairs yet has none.

    What else sign-off needs (A/A, logprob gates, a lowered level of ``control_size``) can only make it less
    probable than said here.
    """
    alpha, loss = evidence.alpha, plan.decision.assumed_loss
    assumed = {t.name: max(t.p_d, t.noise_p_d, loss) for t in plan.tasks}
    found: list[Outlook] = []
    projected, best = [], []
    for task in evidence.tasks:
        comparison = task.primary
        if comparison is None:
            return tuple(found)
        end = comparison.n + items[task.task] - task.n_planned
        projection = _projection(comparison, end, p_d=assumed[task.task], loss=loss, alpha=alpha)
        projected.append(projection)
        # The estimate itself, if the candidate alone were right on every remaining item.
        best.append((comparison.n * comparison.estimate.delta + end - comparison.n) / end)
        if task.task in policy.critical:
            found.append(
                _task_outlook(
                    comparison,
                    end,
                    p_d=assumed[task.task],
                    loss=loss,
                    alpha=alpha,
                    projection=projection,
                    best=best[-1],
                )
            )
    power = macro_conditional_power(*zip(*projected, strict=True), margin=evidence.suite_margin)
    possible = float(np.mean(best)) > -evidence.suite_margin
    return (*found, Outlook(name=POOLED, conditional_power=_known(float(power)), possible=possible))


def _projection(
    comparison: Comparison, end: int, *, p_d: float, loss: float, alpha: float
) -> tuple[float, float, float]:
    """Mean, lower half-width and deviation of the task's delta at the end."""
    estimate = comparison.estimate
    if isinstance(estimate, TangoResult):
        values = project_counts(estimate.b, estimate.c, estimate.n, end, p_d=p_d, loss=loss, alpha=alpha)
    else:
        values = project_estimate(estimate.delta, estimate.lower, comparison.n, end, loss=loss, alpha=alpha)
    mean, half_width, deviation = (float(x) for x in values)
    return mean, half_width, deviation


def _task_outlook(
    comparison: Comparison,
    end: int,
    *,
    p_d: float,
    loss: float,
    alpha: float,
    projection: tuple[float, float, float],
    best: float,
) -> Outlook:
    estimate = comparison.estimate
    margin = estimate.margin
    if isinstance(estimate, TangoResult):
        counts = (round(estimate.b), round(estimate.c), estimate.n, end)
        power = conditional_power(*counts, margin=margin, p_d=p_d, loss=loss, alpha=alpha)
        possible = bool(still_possible(*counts, margin=margin, alpha=alpha))
    else:
        power = macro_conditional_power(*([x] for x in projection), margin=margin)
        possible = best > -margin
    return Outlook(name=comparison.task, conditional_power=_known(float(power)), possible=possible)


def _known(power: float) -> float | None:
    return None if isnan(power) else power
