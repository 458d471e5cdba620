"""Registered looks: may a run stop now, as degraded or as futile? Never as passed.

A look sees the same random share of every task's items in every arm. It stops the run

* as NO-GO where a task or the pooled mean is DEGRADED at the level that this look may spend,
* as FUTILE where a critical task or the pooled mean cannot pass any more, or passes with a conditional
  probability below the plan's gamma at its assumed loss and p_d,
* as INVALID where the arms differ in a way that no further answer can undo.

Otherwise, and wherever a condition of validity fails that more answers may still mend, it goes on. Signing
off is left to the end, at the fixed design's full alpha: looks cannot raise the rate of false sign-offs.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from equipoise.evals.evidence import SuiteEvidence
from equipoise.evals.outlook import Outlook, outlooks_of
from equipoise.evals.plan import LooksSpec, Plan
from equipoise.evals.policy import Policy, decide_model
from equipoise.evals.statistics.sequential import LookDesign, LookLevels, items_by_look, look_levels
from equipoise.evals.types import TaskItem
from equipoise.evals.verdict import Outcome, RunVerdict, SuiteVerdict, TaskLabel, TaskVerdict

__all__ = [
    "LookAction",
    "LookDecision",
    "decide_at_look",
    "items_at",
    "levels_of",
    "with_fixed_veto",
    "without_passes",
]


class LookAction(StrEnum):
    """What a look decides."""

    GO_ON = "go on"
    NO_GO = "no-go"
    FUTILE = "futile"
    INVALID = "invalid"

    @property
    def stops(self) -> bool:
        return self is not LookAction.GO_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class LookDecision:
    """One look: where it stood, what it tested at which level, what it decided and why."""

    look: int  # counted from 1
    fraction: float
    nogo_alpha: float
    action: LookAction
    reasons: tuple[str, ...]
    outlooks: tuple[Outlook, ...]


def levels_of(plan: Plan, items: Mapping[str, int]) -> LookLevels | None:
    """Levels of "degraded" at the plan's looks and at the end; None if it registered no looks.

    Parameters
    ----------
    items
        Items of each task at the end.
    """
    if plan.looks is None:
        return None
    times = (*plan.looks.fractions, 1.0)
    designs = [
        LookDesign(items=items_by_look(items[t.name], times), margin=t.margin)
        for t in plan.tasks
        if t.margin is not None and t.repeats == 1
    ]
    return look_levels(
        plan.looks.fractions,
        alpha=plan.decision.effective_alpha,
        spending=plan.looks.spending,
        designs=designs,
    )


def items_at(items: Sequence[TaskItem], fraction: float, *, seed: int) -> tuple[TaskItem, ...]:
    """The items that a look at ``fraction`` sees: whole random clusters (of one item, mostly), then a rest.

    A later look sees all that an earlier one saw. The order of the task's data does not matter to which
    items come first; those chosen are returned in that order.
    """
    clusters: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        clusters.setdefault(item.cluster_id, []).append(index)
    names = sorted(clusters)
    random.Random(f"looks:{seed}:{items[0].task}").shuffle(names)
    (count,) = items_by_look(len(items), (fraction,))
    chosen = [index for name in names for index in clusters[name]][:count]
    return tuple(items[i] for i in sorted(chosen))


def decide_at_look(
    plan: Plan,
    evidence: SuiteEvidence,
    policy: Policy,
    *,
    look: int,
    levels: LookLevels,
    items: Mapping[str, int],
) -> LookDecision:
    """Stop here, or go on?

    Parameters
    ----------
    plan
        With looks.
    evidence
        Of the items of this look, with `LookLevels.nogo_alpha` of this look.
    policy
        Of the plan.
    look
        Number of the look, from 1.
    levels
        Of the plan, from `levels_of`.
    items
        Items of each task at the end.
    """
    assert plan.looks is not None, "a plan without looks is not looked at"
    verdict = decide_model(evidence, policy)
    outlooks = outlooks_of(plan, evidence, policy, items)
    action, reasons = _action(evidence, verdict, outlooks, plan.looks, plan.decision.assumed_loss)
    return LookDecision(
        look=look,
        fraction=levels.fractions[look - 1],
        nogo_alpha=levels.nogo_alpha(look),
        action=action,
        reasons=tuple(reasons),
        outlooks=outlooks,
    )


def without_passes(verdict: RunVerdict, stopped: Mapping[str, str]) -> RunVerdict:
    """The verdict of a run whose models named in ``stopped`` ended at a look: nothing passes there.

    Parameters
    ----------
    stopped
        Model -> at which look it stopped, in words.
    """
    return _worst_of(
        [_without_passes(m, stopped[m.model]) if m.model in stopped else m for m in verdict.models]
    )


def with_fixed_veto(verdict: RunVerdict, evidence: Sequence[SuiteEvidence]) -> RunVerdict:
    """The verdict at the end of a plan with looks: it signs off nothing that the same plan without would not.

    Looks leave less than alpha for "degraded" at the end. A supporting task that is degraded at alpha, but
    not at what is left, is not called so; but nothing is signed off over it either.
    """
    models = []
    for model, shown in zip(verdict.models, evidence, strict=True):
        vetoes = [
            f"{t.task}: degraded at the level of a plan without looks (delta at most "
            f"{c.estimate.upper:+.4f}), though not at what the looks have left of it"
            for t in shown.tasks
            if (c := t.primary) is not None and c.estimate.upper < -t.margin
        ]
        if vetoes and model.outcome is Outcome.SIGNED_OFF:
            outcome, reasons = Outcome.INCONCLUSIVE, tuple(vetoes)
            models.append(replace(model, outcome=outcome, indistinguishable=False, reasons=reasons))
        else:
            models.append(model)
    return _worst_of(models)


def _worst_of(models: Sequence[SuiteVerdict]) -> RunVerdict:
    order = list(Outcome)
    return RunVerdict(
        outcome=min((m.outcome for m in models), key=order.index),
        indistinguishable=all(m.indistinguishable for m in models),
        models=tuple(models),
    )


def _action(
    evidence: SuiteEvidence,
    verdict: SuiteVerdict,
    outlooks: Sequence[Outlook],
    looks: LooksSpec,
    assumed_loss: float,
) -> tuple[LookAction, list[str]]:
    if evidence.parity_violations:
        return LookAction.INVALID, [f"parity: {v}" for v in evidence.parity_violations]
    if verdict.outcome is Outcome.INVALID:
        return LookAction.GO_ON, [f"nothing is decided yet: {reason}" for reason in verdict.reasons]
    # Not the logprob gate: its error is not spent over looks, so it is left to the end.
    degraded = [v for v in (*verdict.tasks, verdict.pooled) if v.label is TaskLabel.DEGRADED]
    if degraded:
        return LookAction.NO_GO, [f"{v.task}: {reason}" for v in degraded for reason in v.reasons]
    if looks.futility:
        impossible = [o.name for o in outlooks if not o.possible]
        hopeless = [
            f"{o.name}: non-inferior at the end with probability {o.conditional_power:.2g}, below "
            f"{looks.gamma:g}, if the remaining items lose {assumed_loss:g} as the plan assumes"
            for o in outlooks
            if o.possible and o.conditional_power is not None and o.conditional_power < looks.gamma
        ]
        reasons = [
            f"{name}: no answers to the remaining items would show non-inferiority" for name in impossible
        ]
        if impossible or hopeless:
            return LookAction.FUTILE, [*reasons, *hopeless]
    return LookAction.GO_ON, []


_PASSING = (TaskLabel.NON_INFERIOR, TaskLabel.EQUIVALENT, TaskLabel.DETECTED_WITHIN_MARGIN)


def _without_passes(verdict: SuiteVerdict, where: str) -> SuiteVerdict:
    signed_off = verdict.outcome is Outcome.SIGNED_OFF
    return replace(
        verdict,
        outcome=Outcome.INCONCLUSIVE if signed_off else verdict.outcome,
        indistinguishable=False,
        reasons=(f"stopped {where}: nothing passes there",) if signed_off else verdict.reasons,
        tasks=tuple(_not_passed(v, where) for v in verdict.tasks),
        pooled=_not_passed(verdict.pooled, where),
    )


def _not_passed(verdict: TaskVerdict, where: str) -> TaskVerdict:
    worst = TaskLabel.INCONCLUSIVE if verdict.worst_case_label in _PASSING else verdict.worst_case_label
    if verdict.label not in _PASSING:
        return replace(verdict, worst_case_label=worst)
    reason = f"stopped {where}: nothing passes there (so far: {verdict.label.value})"
    return replace(
        verdict, label=TaskLabel.INCONCLUSIVE, worst_case_label=worst, reasons=(reason,), improved=False
    )
