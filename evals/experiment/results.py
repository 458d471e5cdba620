"""From a run directory to its Report: read, score, pair, analyse, decide. Nothing is asked again."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.evals.attempts import apply_attempts
from equipoise.evals.errors import JournalError
from equipoise.evals.experiment.attempt_register import recorded_attempts
from equipoise.evals.experiment.questions import Question, questions_of
from equipoise.evals.experiment.report_flips import all_flips
from equipoise.evals.experiment.report_model import model_report
from equipoise.evals.experiment.report_run import not_asked, provenance, run_section, unfinished_section
from equipoise.evals.experiment.scored import evidence_of, planned_samples, read_model
from equipoise.evals.experiment.staging import early_stop, evidence_at_stop, final_nogo_alpha
from equipoise.evals.experiment.task_versions import changed_versions
from equipoise.evals.journal import Journal
from equipoise.evals.looks import with_fixed_veto, without_passes
from equipoise.evals.plan import Plan, hash_of
from equipoise.evals.policy import decide, policy_of
from equipoise.reports.model import Flip, Report

__all__ = [
    "JOURNAL_NAME",
    "AllFlips",
    "analyse_run",
    "analyse_with_flips",
    "plan_of",
    "report_of",
    "report_with_flips",
]

JOURNAL_NAME = "journal.sqlite"

#: Every flip of each model; made when read, once.
AllFlips = Mapping[str, Iterable[Flip]]


def analyse_run(directory: Path) -> Report:
    """The report of a run directory, recomputed from its journal.

    Raises
    ------
    JournalError
        There is no journal, or it is damaged.
    """
    return analyse_with_flips(directory)[0]


def analyse_with_flips(directory: Path) -> tuple[Report, AllFlips]:
    """`analyse_run`, with every flip beside those that the report carries."""
    with Journal.read(directory / JOURNAL_NAME) as journal:
        plan = plan_of(journal)
        return report_with_flips(journal, plan, questions_of(plan), run_id=directory.resolve().name)


def plan_of(journal: Journal) -> Plan:
    """The plan that the journal registered before the first request.

    Raises
    ------
    JournalError
        Its text is no plan, or does not match its hash.
    """
    changed = (
        "the journal was changed after the run; restore it from a copy, or run again in another directory"
    )
    try:
        stored = json.loads(journal.metadata.plan_text)
        plan = Plan.model_validate(stored)
    except ValueError as e:  # pydantic's error is one too, and has many lines
        raise JournalError(f"{journal.path}: the stored plan cannot be read; {changed}") from e
    # The text as registered: a plan read by a later version has that version's new keys too.
    found = hash_of(stored)
    if found != journal.metadata.plan_hash:
        raise JournalError(
            f"{journal.path}: the stored plan has hash {found[:12]}, registered was "
            f"{journal.metadata.plan_hash[:12]}; {changed}"
        )
    return plan


def report_of(journal: Journal, plan: Plan, questions: Sequence[Question], *, run_id: str) -> Report:
    """Decide and describe what the journal holds; an unfinished run gets no verdict."""
    return report_with_flips(journal, plan, questions, run_id=run_id)[0]


def report_with_flips(
    journal: Journal, plan: Plan, questions: Sequence[Question], *, run_id: str
) -> tuple[Report, AllFlips]:
    """`report_of`, with every flip; an unfinished run has none."""
    facts = facts_by_model(journal)
    data = [read_model(journal, plan, questions, m.name) for m in plan.models]
    origin = provenance(journal, plan, facts, data)
    planned = planned_samples(plan, questions)
    found = {m.name: early_stop(journal, plan, questions, m.name) for m in plan.models}
    stops = {model: stop for model, stop in found.items() if stop is not None}
    missing = {d.model: planned - d.count for d in data if d.count < planned and d.model not in stops}
    if missing:
        return Report(run=unfinished_section(plan, run_id, journal, missing), provenance=origin), {}
    nogo_alpha = final_nogo_alpha(plan, questions)
    evidence, used = [], []
    for d in data:
        if d.model in stops:
            at_look, seen = evidence_at_stop(plan, questions, d, *stops[d.model])
        else:
            at_look, seen = evidence_of(plan, questions, d, nogo_alpha=nogo_alpha), d
        evidence.append(at_look)
        used.append(seen)
    attempts = recorded_attempts(journal)
    verdict = apply_attempts(decide(evidence, policy_of(plan)), attempts)
    if plan.looks is not None:
        verdict = with_fixed_veto(verdict, evidence)
    verdict = without_passes(verdict, {model: stop.where for model, (stop, _) in stops.items()})
    asked = {d.model: stops[d.model][1].seen if d.model in stops else questions for d in used}
    models = tuple(
        model_report(plan, asked[d.model], e, v, d, _own_checkpoints(facts.get(d.model, {})))
        for e, v, d in zip(evidence, verdict.models, used, strict=True)
    )
    models = tuple(
        replace(m, exclusions=(*m.exclusions, *not_asked(plan, questions, d, stops[m.name][1])))
        if m.name in stops
        else m
        for m, d in zip(models, data, strict=True)
    )
    run = run_section(
        plan,
        run_id,
        journal,
        verdict=verdict,
        evidence=evidence,
        models=models,
        facts=facts,
        stops=[stop for stop, _ in stops.values()],
        attempts=attempts,
    )
    if changed := changed_versions(journal, questions):
        run = replace(run, limits=(*run.limits, *changed))
    flips = {d.model: all_flips(plan, asked[d.model], d) for d in used}
    return Report(run=run, models=models, provenance=origin), flips


def _own_checkpoints(facts: Mapping[str, Any]) -> dict[str, str]:
    arms: Mapping[str, Mapping[str, Any]] = facts.get("arms", {})
    return {name: str(arm["variant"]) for name, arm in arms.items() if arm.get("own_checkpoint")}


def facts_by_model(journal: Journal) -> Mapping[str, Mapping[str, Any]]:
    """What was recorded about each model's servers; of several starts (resumptions) the last."""
    return {str(value["model"]): value for _, _, value in journal.records("servers")}
