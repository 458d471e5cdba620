"""A run with looks, stage by stage: which items come before which look, and what the journal says of each.

Without looks there is one stage. What a look decided stands in the journal, so that a resumed run neither
takes a look twice nor asks more than the first one did.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from equipoise.evals.errors import JournalError
from equipoise.evals.evidence import SuiteEvidence
from equipoise.evals.experiment.questions import Question
from equipoise.evals.experiment.scored import ModelSamples, at_items, evidence_of, planned_samples, read_model
from equipoise.evals.journal import Journal
from equipoise.evals.looks import LookAction, LookDecision, decide_at_look, items_at, levels_of
from equipoise.evals.plan import Plan
from equipoise.evals.policy import policy_of
from equipoise.evals.statistics.sequential import LookLevels
from equipoise.evals.types import ArmRole

__all__ = [
    "EarlyStop",
    "Stage",
    "early_stop",
    "evidence_at_stop",
    "final_nogo_alpha",
    "look_taken",
    "looks_in_words",
    "stages_of",
    "take_look",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the run. ``look`` is the number of the look that follows it, None at the end."""

    look: int | None
    fraction: float
    new: tuple[Question, ...]  # with the items that this stage asks
    seen: tuple[Question, ...]  # with all items up to here


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """A model that a look stopped; ``asked`` and ``planned`` count requests, a conversation as one."""

    model: str
    look: int
    looks: int
    fraction: float
    action: LookAction
    reasons: tuple[str, ...]
    asked: int
    planned: int

    @property
    def where(self) -> str:
        """At which look, in words."""
        return f"at look {self.look} of {self.looks}, with {self.fraction:.0%} of the items"

    @property
    def said(self) -> str:
        """What happened, in a sentence without its full stop."""
        why = {
            LookAction.NO_GO: "the candidate is degraded",
            LookAction.FUTILE: "signing off had become all but impossible",
            LookAction.INVALID: "the arms cannot be compared",
        }[self.action]
        saved = self.planned - self.asked
        return f"stopped early {self.where}: {why}; saved {saved:,} of {self.planned:,} requests"


def stages_of(plan: Plan, questions: Sequence[Question]) -> tuple[Stage, ...]:
    """The stages of one model's run; a look that would see every item already is left out."""
    total = sum(len(q.items) for q in questions)
    stages: list[Stage] = []
    before: set[tuple[str, str]] = set()
    for number, fraction in enumerate(plan.looks.fractions if plan.looks else (), start=1):
        seen = _at(plan, questions, fraction)
        if sum(len(q.items) for q in seen) == total:
            break
        stages.append(Stage(look=number, fraction=fraction, new=_without(seen, before), seen=seen))
        before |= {(q.spec.name, i.id) for q in seen for i in q.items}
    end = Stage(look=None, fraction=1.0, new=_without(questions, before), seen=tuple(questions))
    return (*stages, end)


def _at(plan: Plan, questions: Sequence[Question], fraction: float) -> tuple[Question, ...]:
    seed = plan.seeds.schedule
    return tuple(dataclasses.replace(q, items=items_at(q.items, fraction, seed=seed)) for q in questions)


def _without(questions: Sequence[Question], asked: set[tuple[str, str]]) -> tuple[Question, ...]:
    left = (
        dataclasses.replace(q, items=tuple(i for i in q.items if (q.spec.name, i.id) not in asked))
        for q in questions
    )
    return tuple(q for q in left if q.items)


def look_taken(journal: Journal, model: str, look: int) -> bool:
    """Whether the journal has this look."""
    return any(v["model"] == model and v["look"] == look for _, _, v in journal.records("look"))


def early_stop(
    journal: Journal, plan: Plan, questions: Sequence[Question], model: str
) -> tuple[EarlyStop, Stage] | None:
    """The look that stopped this model, and the stage before it; None if none did."""
    stopping = [
        value
        for _, _, value in journal.records("look")
        if value["model"] == model and LookAction(value["action"]).stops
    ]
    if not stopping:
        return None
    value, stages = stopping[0], stages_of(plan, questions)
    stage = next((s for s in stages if s.look == value["look"]), None)
    if stage is None:
        raise JournalError(
            f"{journal.path}: it says that look {value['look']} stopped model {model!r}, but the plan has "
            f"{len(stages) - 1}; restore the journal from a copy"
        )
    stop = EarlyStop(
        model=model,
        look=value["look"],
        looks=len(stages) - 1,
        fraction=stage.fraction,
        action=LookAction(value["action"]),
        reasons=tuple(value["reasons"]),
        asked=journal.count(model=model),
        planned=planned_samples(plan, questions),
    )
    return stop, stage


def take_look(
    journal: Journal, plan: Plan, questions: Sequence[Question], model: str, stage: Stage
) -> LookDecision:
    """Decide on the answers of a stage, and keep the decision in the journal."""
    levels = _levels(plan, questions)
    assert levels is not None, "only a plan with looks is looked at"
    assert stage.look is not None, "no look follows the last stage"
    data = at_items(read_model(journal, plan, stage.seen, model), stage.seen)
    evidence = evidence_of(plan, stage.seen, data, nogo_alpha=levels.nogo_alpha(stage.look))
    decision = _decide(plan, questions, evidence, levels, stage.look)
    journal.record("look", {"model": model, **_recorded(decision, evidence, levels)})
    if decision.action.stops:
        asked, planned = journal.count(model=model), planned_samples(plan, questions)
        journal.record(
            "stopped_early", {"model": model, "look": stage.look, "asked": asked, "planned": planned}
        )
    return decision


def evidence_at_stop(
    plan: Plan, questions: Sequence[Question], data: ModelSamples, stop: EarlyStop, stage: Stage
) -> tuple[SuiteEvidence, ModelSamples]:
    """What the look saw, from all samples of the model.

    Raises
    ------
    JournalError
        The answers do not lead to the decision that the journal has.
    """
    levels = _levels(plan, questions)
    assert levels is not None, "a model that a look stopped belongs to a plan with looks"
    seen = at_items(data, stage.seen)
    evidence = evidence_of(plan, stage.seen, seen, nogo_alpha=levels.nogo_alpha(stop.look))
    again = _decide(plan, questions, evidence, levels, stop.look)
    if again.action is not stop.action:
        raise JournalError(
            f"look {stop.look} of model {stop.model!r} was recorded as {stop.action.value!r}, but its "
            f"answers lead to {again.action.value!r}: the journal was changed, or another version wrote it; "
            "restore it from a copy, or use that version"
        )
    return evidence, seen


def final_nogo_alpha(plan: Plan, questions: Sequence[Question]) -> float | None:
    """What the looks have left of alpha for "degraded" at the end; None without looks."""
    levels = _levels(plan, questions)
    return None if levels is None else levels.nogo_alpha(levels.end)


def looks_in_words(plan: Plan) -> str:
    """What the plan's looks may do and at which levels; empty without looks."""
    levels = levels_of(plan, {t.name: t.items for t in plan.tasks})
    if plan.looks is None or levels is None:
        return ""
    *looks, end = (f"{x:.4f}" for x in levels.levels)
    at = ", ".join(f"{f:.0%} ({x})" for f, x in zip(plan.looks.fractions, looks, strict=True))
    futility = (
        f"or as futile once sign-off has a probability below {plan.looks.gamma:g} left"
        if plan.looks.futility
        else "and not as futile"
    )
    return (
        f'looks at {at} of the items, at the end ({end}): in brackets the level of "degraded", '
        f"{levels.alpha:g} in all ({levels.spending}); a look may stop the run as degraded, {futility}; "
        "it signs nothing off"
    )


def _levels(plan: Plan, questions: Sequence[Question]) -> LookLevels | None:
    return levels_of(plan, _items(questions))


def _items(questions: Sequence[Question]) -> dict[str, int]:
    return {q.spec.name: len(q.items) for q in questions}


def _decide(
    plan: Plan, questions: Sequence[Question], evidence: SuiteEvidence, levels: LookLevels, look: int
) -> LookDecision:
    return decide_at_look(plan, evidence, policy_of(plan), look=look, levels=levels, items=_items(questions))


def _recorded(decision: LookDecision, evidence: SuiteEvidence, levels: LookLevels) -> dict[str, Any]:
    """As the journal keeps it: what was seen, tested and decided."""
    pooled = evidence.pooled.get(ArmRole.CANDIDATE)
    return {
        **dataclasses.asdict(decision),
        "alpha_spent": levels.spent[decision.look - 1],
        "spending": levels.spending,
        "tasks": {
            t.task: {
                "items": t.n_planned,
                "n": c.n,
                "lost": c.lost,
                "gained": c.gained,
                "delta": c.estimate.delta,
                "upper": c.nogo_upper if isfinite(c.nogo_upper) else None,
            }
            for t in evidence.tasks
            if (c := t.primary) is not None
        },
        "pooled": {"delta": pooled.mover.delta, "upper": pooled.nogo_upper} if pooled else None,
    }
