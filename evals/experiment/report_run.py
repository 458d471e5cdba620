"""The report's head and provenance: what was decided for the whole run, and how to repeat it."""

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.evals.attempts import Attempts, is_withheld
from equipoise.evals.evidence import SuiteEvidence
from equipoise.evals.experiment.arm_checkpoint import CHECKPOINT_FACTS
from equipoise.evals.experiment.questions import Question
from equipoise.evals.experiment.report_attempts import attempt_rows, utc
from equipoise.evals.experiment.scored import ModelSamples
from equipoise.evals.experiment.staging import EarlyStop, Stage
from equipoise.evals.journal import Journal
from equipoise.evals.looks import LookAction
from equipoise.evals.parity import ALWAYS_ALLOWED
from equipoise.evals.parity_watch import ONE_IN
from equipoise.evals.plan import Plan
from equipoise.evals.types import ArmRole, Sample
from equipoise.evals.verdict import Outcome, RunVerdict
from equipoise.quant.sglang.dense_mla import DENSE_FACT
from equipoise.reports.model import Arm, Exclusion, ModelReport, ParityDifference, Provenance, Run

__all__ = ["not_asked", "provenance", "run_section", "unfinished_section"]

_HEADLINES = {
    Outcome.SIGNED_OFF: "the candidate is not worse than the baseline by more than the margins",
    Outcome.DEGRADED: "the candidate is worse than the baseline by more than a margin",
    Outcome.INCONCLUSIVE: "this run cannot tell whether the candidate is within the margins",
    Outcome.INVALID: "this run cannot be read: a condition that it rests on is broken",
}


def run_section(
    plan: Plan,
    run_id: str,
    journal: Journal,
    *,
    verdict: RunVerdict,
    evidence: Sequence[SuiteEvidence],
    models: Sequence[ModelReport],
    facts: Mapping[str, Mapping[str, Any]],
    stops: Sequence[EarlyStop] = (),
    attempts: Mapping[str, Attempts] | None = None,
) -> Run:
    """The decision in a sentence, with what it rests on and what it does not claim.

    ``facts`` are those of each model's servers; ``stops`` are the models that a registered look stopped;
    ``attempts`` are what the ledger knew.
    """
    detectable = [
        e.pooled[ArmRole.CANDIDATE].detectable.loss for e in evidence if ArmRole.CANDIDATE in e.pooled
    ]
    headline = _HEADLINES[verdict.outcome]
    if verdict.indistinguishable:
        headline = "the candidate is statistically indistinguishable from the baseline within the margins"
    attempts = attempts or {}
    withheld = {m.model for m in verdict.models if is_withheld(m, attempts.get(m.model))}
    if withheld and all(m.outcome is Outcome.SIGNED_OFF or m.model in withheld for m in verdict.models):
        headline = "the margins are met, but this candidate was tried too often to be signed off by this run"
    return Run(
        plan_name=plan.name,
        plan_hash=journal.metadata.plan_hash,
        run_id=run_id,
        created=utc(journal.metadata.created_unix_s),
        state="final",
        verdict=verdict.outcome.value,
        exit_code=verdict.exit_code,
        headline=headline,
        pairs=sum(c.n for e in evidence for t in e.tasks if (c := t.primary) is not None),
        alpha=plan.decision.effective_alpha,
        suite_margin=plan.decision.suite_margin,
        smallest_detectable_loss=max(detectable) if detectable else None,
        indistinguishable=verdict.indistinguishable,
        reasons=(
            *(f"{m.model}: {r}" for m in verdict.models for r in m.reasons),
            *(
                f"{s.model}: at look {s.look}: {r}"
                for s in stops
                if s.action is LookAction.FUTILE
                for r in s.reasons
            ),
        ),
        would_decide=(
            *_would_decide(models),
            *(f"{name}: {attempts[name].remedy(asked=True)}" for name in sorted(withheld)),
        ),
        limits=(*_limits(plan, evidence, facts), *_limits_of_looks(stops), *_limits_of_attempts(attempts)),
        attempts=attempt_rows(verdict, attempts, run_id=run_id, plan_hash=journal.metadata.plan_hash),
        max_attempts=plan.decision.max_attempts,
        attempts_bound=max((a.bound for a in attempts.values()), default=None),
        early_stop="; ".join(f"{s.model}: {s.said}" for s in stops),
    )


def unfinished_section(plan: Plan, run_id: str, journal: Journal, missing: Mapping[str, int]) -> Run:
    """The head of a run that was cut short: no verdict, and how to go on."""
    rest = ", ".join(f"{count:,} of {model}" for model, count in missing.items())
    return Run(
        plan_name=plan.name,
        plan_hash=journal.metadata.plan_hash,
        run_id=run_id,
        created=utc(journal.metadata.created_unix_s),
        state="incomplete",
        verdict=None,
        exit_code=4,
        headline=f"the run is not finished: answers still to come: {rest}",
        pairs=0,
        alpha=plan.decision.effective_alpha,
        suite_margin=plan.decision.suite_margin,
        reasons=(f"missing answers: {rest}",),
        would_decide=(
            f"equipoise run PLAN --out {journal.path.parent} --resume asks what is missing and decides",
        ),
    )


def _limits_of_looks(stops: Sequence[EarlyStop]) -> list[str]:
    return [
        f"{s.model} was stopped {s.where}: its estimates rest on these items alone, and what is not degraded "
        "there is undecided, not shown to be the same"
        for s in stops
    ]


def not_asked(
    plan: Plan, questions: Sequence[Question], data: ModelSamples, stage: Stage
) -> tuple[Exclusion, ...]:
    """Of a model that was stopped early: what was not asked, and what was but the look did not see."""
    seen = {q.spec.name: len(q.items) * q.spec.repeats for q in stage.seen}
    found = []
    for question in questions:
        name = question.spec.name
        for arm in plan.arms:
            asked = len(data.samples[arm.name, name])
            rest, unused = len(question.items) * question.spec.repeats - asked, asked - seen[name]
            for count, reason in ((rest, "not asked"), (unused, "asked before, not used")):
                if count > 0:
                    text = f"{reason} (stopped early)"
                    found.append(Exclusion(task=name, arm=arm.name, reason=text, count=count))
    return tuple(found)


def _would_decide(models: Sequence[ModelReport]) -> tuple[str, ...]:
    found = []
    for model in models:
        rows = [(row.task, row) for row in model.tasks if row.critical]
        if model.pooled is not None:
            rows.append(("the pooled mean", model.pooled))  # type: ignore[arg-type]  # same fields
        found += [f"{model.name}, {name}: {row.would_decide}" for name, row in rows if row.would_decide]
    return tuple(found)


def _limits_of_attempts(attempts: Mapping[str, Attempts]) -> list[str]:
    if attempts:
        return []
    return ["no ledger was kept: how often this candidate was tried before is not known"]


def _limits(
    plan: Plan, evidence: Sequence[SuiteEvidence], facts: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """What the verdict does not claim, in plain words."""
    device = next((str(f["device"]) for f in facts.values() if f.get("device")), "")
    margins = sorted({t.margin for t in plan.tasks if t.margin is not None})
    critical = [t.name for t in plan.tasks if t.critical]
    limits = [
        f"it speaks of these tasks, items and margins only: {', '.join(critical) or 'no task'} critical, "
        f"task margins {', '.join(f'{m:g}' for m in margins)}, suite margin {plan.decision.suite_margin:g}",
    ]
    if device == "cpu":
        limits.append(
            "on a CPU the error of storing the KV cache is measured (prefill reads the stored cache too), "
            "not the arithmetic of a GPU's attention kernel"
        )
    limits += _limits_of_servers(facts)
    if any(m.path.startswith("embedded:") for m in plan.models):
        limits.append(
            "the embedded models have the cache geometry of Kimi and GLM but are tiny: a verdict here proves "
            "the method and the serving path, not the quality of a large model"
        )
    longest = plan.runner.context_tokens
    limits.append(
        f"contexts longer than {longest:,} tokens were not asked; cache errors can grow with length"
    )
    if not any(ArmRole.GROSS_CONTROL in e.roles_run for e in evidence):
        limits.append("no fault was planted: that this run would have noticed one is not shown")
    if not any(ArmRole.BASELINE_REPEAT in e.roles_run for e in evidence):
        limits.append("the baseline was asked once: its own noise is not known")
    return tuple(limits)


def _limits_of_servers(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a server does otherwise than the release that it stands for, each said once."""
    arms = [
        (f"{model}, {name}", arm)
        for model, recorded in facts.items()
        for name, arm in recorded["arms"].items()
    ]
    found: dict[str, list[str]] = {}
    for where, arm in arms:
        for said in (arm.get("checkpoint_note"), arm.get("server", {}).get(DENSE_FACT)):
            if said:
                found.setdefault(str(said), []).append(where)
    return [f"{said} ({'; '.join(where)})" for said, where in found.items()]


def provenance(
    journal: Journal, plan: Plan, facts: Mapping[str, Mapping[str, Any]], data: Sequence[ModelSamples]
) -> Provenance:
    """How to get the same numbers again."""
    origin = journal.metadata.provenance
    finished = [value["unix_s"] for _, _, value in journal.records("finished")]
    started = journal.metadata.created_unix_s
    samples = [s for d in data for group in d.samples.values() for s in group]
    requests = sum(s.attempts for s in samples)
    answered = sum(len(s.outputs) for s in samples)
    source = origin.get("source", {})
    return Provenance(
        plan_path=plan.name,
        models={m.name: m.path for m in plan.models},
        arms=tuple(
            _arm(model, arm.name, recorded["arms"].get(arm.name, {}), arm.role.value)
            for model, recorded in facts.items()
            for arm in plan.arms
        ),
        parity_differences=_differences(facts),
        prompts_compared=_prompts_compared(journal, samples),
        generation=_generation(plan),
        # Sorted, as the journal gives them back: a report is the same whoever computes it.
        versions={str(k): str(v) for k, v in sorted(origin.get("packages", {}).items())}
        | {"python": str(origin.get("python", "")), **_server_versions(facts)},
        hardware={str(k): str(v) for k, v in sorted(origin.get("hardware", {}).items())},
        seeds=plan.seeds.model_dump(),
        git_commit=str(source.get("commit", "")),
        git_dirty=source.get("dirty"),
        started=utc(started),
        finished=utc(finished[-1]) if finished else "",
        duration_s=finished[-1] - started if finished else None,
        requests=requests,
        retries=max(requests - answered, 0),
        command=str(origin.get("command", "")),
    )


def _generation(plan: Plan) -> dict[str, str]:
    """What the plan set for answers, by the tasks that share it; tasks left to their own are not named."""
    found: dict[str, list[str]] = {}
    for task in plan.tasks:
        given = {k: v for k, v in plan.generation_of(task).model_dump().items() if v not in (None, {})}
        said = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in given.items())
        if said and task.margin is not None:
            found.setdefault(said, []).append(task.name)
    return {", ".join(names): said for said, names in found.items()}


def _prompts_compared(journal: Journal, samples: Sequence[Sample]) -> str:
    """From the answers, which every session leaves; empty where no server was watched."""
    if not any("parity" in value for _, _, value in journal.records("asked")):
        return ""
    counted = sum(bool(s.outputs) for s in samples)
    return f"{counted:,} by their number of tokens, one item in {ONE_IN} before that by its token ids"


def _arm(model: str, name: str, recorded: Mapping[str, Any], role: str) -> Arm:
    server = recorded.get("server", {})
    tokens = server.get("max_total_num_tokens") or server.get("max_total_tokens")
    return Arm(
        model=model,
        name=name,
        role=role,
        variant=recorded.get("variant", "") or recorded.get("replay", ""),
        url=recorded.get("url", ""),
        server_command=tuple(recorded.get("command", ())),
        kv_cache_dtype=" ".join(str(server[k]) for k in ("kv_cache_dtype", "kv_layout") if k in server),
        attention_backend=str(server.get("attention_backend", "")),
        max_total_tokens=tokens if isinstance(tokens, int) else None,
        control=recorded.get("control", ""),
        explained=tuple((recorded.get("explained") or {}).get("lines", ())),
    )


def _differences(facts: Mapping[str, Mapping[str, Any]]) -> tuple[ParityDifference, ...]:
    return tuple(
        ParityDifference(
            model=model,
            fact=f"{d['name']} of {d['arm']}",
            baseline=d["baseline"],
            candidate=d["value"],
            allowed_by=_allowed_by(d["name"], recorded["arms"].get(d["arm"], {})),
        )
        for model, recorded in facts.items()
        for d in recorded["differences"]
    )


def _allowed_by(fact: str, arm: Mapping[str, Any]) -> str:
    if fact in ALWAYS_ALLOWED:
        return "what is tested"
    if fact in CHECKPOINT_FACTS and arm.get("own_checkpoint"):
        return f"the plan's checkpoint of this arm ({arm.get('variant', '')})"
    return "the plan's allowed_differences"


def _server_versions(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    found = {
        str(arm["server"]["version"])
        for recorded in facts.values()
        for arm in recorded["arms"].values()
        if "version" in arm.get("server", {})
    }
    return {"sglang server": ", ".join(sorted(found))} if found else {}
