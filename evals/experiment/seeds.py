"""``equipoise seeds``: does a plan pass as often as its predicted power says?

The plan is repeated over item seeds on servers that stay up. Only the arms of the decision are
asked (baseline and candidate): the controls and the noise floor have their own test in every run.
Each seed has a journal of its own, so an interrupted call continues where it was.
"""

import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from scipy.stats import binomtest

from equipoise.evals.errors import UsageError
from equipoise.evals.evidence import SuiteEvidence
from equipoise.evals.experiment.arms_up import Session, arms_up
from equipoise.evals.experiment.checkpoints import resolve_device, resolve_model
from equipoise.evals.experiment.explained import explain_servers
from equipoise.evals.experiment.plan_check import pass_probability, predicted_power, task_designs
from equipoise.evals.experiment.questions import questions_of
from equipoise.evals.experiment.scored import evidence_of, read_model
from equipoise.evals.experiment.serving import ServerSpec, servers_of
from equipoise.evals.journal import Journal
from equipoise.evals.plan import ModelSpec, Plan
from equipoise.evals.policy import decide_model, policy_of
from equipoise.evals.progress import show_progress
from equipoise.evals.provenance import collect_provenance
from equipoise.evals.run_types import Arm, RunOptions
from equipoise.evals.runner import run
from equipoise.evals.statistics.plan_power import PlanPower, plan_power
from equipoise.evals.types import ArmRole
from equipoise.evals.verdict import Outcome, SuiteVerdict
from equipoise.quant.variants import Device

__all__ = ["SeedRow", "SeedTable", "primary_plan", "render", "run_seeds", "summarise"]

AGREEMENT_ALPHA = 0.05  # two-sided exact binomial test of the pass fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRow:
    """One model with one item seed."""

    model: str
    seed: int
    outcome: str
    delta: float
    lower: float
    p_d: float  # discordant share over all tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """The servers of one model, and what SGLang will do in each, by label."""

    device: Device
    specs: Sequence[ServerSpec]
    explained: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTable:
    """All seeds of one model, beside the prediction.

    ``predicted`` is the plan's own (assumed loss and discordance); ``predicted_as_seen`` uses each
    task's mean loss and discordance over the seeds. ``p_value`` tests the pass fraction against
    ``predicted``.
    """

    model: str
    rows: tuple[SeedRow, ...]
    passed: int
    predicted: float
    predicted_as_seen: float
    p_value: float
    p_value_as_seen: float

    @property
    def agrees(self) -> bool:
        """Whether the fraction is within binomial error of the plan's prediction, or above it.

        More passes than predicted are no fault when the true loss is below the assumed one; then
        the prediction for what was seen has to agree.
        """
        above = self.passed >= self.predicted * len(self.rows)
        return self.p_value >= AGREEMENT_ALPHA or (above and self.p_value_as_seen >= AGREEMENT_ALPHA)


def primary_plan(plan: Plan, seed: int) -> Plan:
    """The plan with another item seed, reduced to the arms of the decision."""
    data = plan.with_changes(item_seed=seed).model_dump(mode="json")
    roles = (ArmRole.BASELINE.value, ArmRole.CANDIDATE.value)
    data["arms"] = [a for a in data["arms"] if a["role"] in roles]
    names = {a["name"] for a in data["arms"]}
    for model in data["models"]:
        model["checkpoints"] = {arm: path for arm, path in model["checkpoints"].items() if arm in names}
    data["tasks"] = [t for t in data["tasks"] if t["margin"] is not None]
    data["decision"] |= {"require_control": False, "require_noise_floor": False}
    return Plan.model_validate(data)


async def run_seeds(plan: Plan, seeds: Sequence[int], out: Path, console: Console) -> bool:
    """Run every seed of every model, print and write the table; True if all models agree.

    Raises
    ------
    UsageError, ServerError, JournalError, InterruptedRunError
        As for a run; a later call goes on where this one stopped.
    """
    primary = primary_plan(plan, seeds[0])
    foreign = [a.name for a in primary.arms if a.variant is None]
    if foreign:
        raise UsageError(
            f"plan {plan.name!r}: seeds serves the arms itself, and arm {foreign[0]!r} is an endpoint or "
            "a replay; give it a variant"
        )
    device = resolve_device("auto")
    specs = {m.name: servers_of(primary, m.name, resolve_model(m.path), device) for m in plan.models}
    explained = {name: explain_servers(servers, device) for name, servers in specs.items()}
    out.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240  once, before anything runs
    tables = []
    for model in plan.models:
        served = _Served(device=device, specs=specs[model.name], explained=explained[model.name])
        tables.append(await _run_model(plan, model, seeds, served, out, console))
    text = render(plan, tables)
    (out / "seeds.md").write_text(text, encoding="utf-8")
    (out / "seeds.json").write_text(
        json.dumps([dataclasses.asdict(t) | {"agrees": t.agrees} for t in tables], indent=1), encoding="utf-8"
    )
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    return all(t.agrees for t in tables)


async def _run_model(  # noqa: PLR0917
    plan: Plan, model: ModelSpec, seeds: Sequence[int], served: _Served, out: Path, console: Console
) -> SeedTable:
    evidence: list[SuiteEvidence] = []
    rows: list[SeedRow] = []
    async with AsyncExitStack() as stack:
        arms: Sequence[Arm] | None = None
        for seed in seeds:
            seeded = primary_plan(plan, seed)
            questions = questions_of(seeded)
            with _journal(out / f"{model.name}-seed{seed:03d}.sqlite", seeded) as journal:
                work = [w for q in questions for w in q.work]
                if len(journal.final_keys()) < len(work) * len(seeded.arms):
                    if arms is None:
                        session = Session(
                            plan=seeded,
                            questions=questions,
                            journal=journal,
                            console=console,
                            device=served.device,
                            explained=served.explained,
                        )
                        arms = await stack.enter_async_context(
                            arms_up(session, model, seeded.arms, served.specs)
                        )
                    with show_progress() as progress:
                        await run(arms, work, journal, options=_sending(seeded), progress=progress)
                evidence.append(
                    evidence_of(seeded, questions, read_model(journal, seeded, questions, model.name))
                )
            rows.append(_row(model, seed, evidence[-1], decide_model(evidence[-1], policy_of(seeded))))
            r = rows[-1]
            console.print(
                f"{r.model} seed {r.seed}: {r.outcome}, delta {r.delta:+.4f}, at least {r.lower:+.4f}, "
                f"discordant {r.p_d:.3f}",
                highlight=False,
            )
    return summarise(plan, model.name, rows, evidence)


def _journal(path: Path, plan: Plan) -> Journal:
    if path.exists():
        return Journal.resume(path, plan_hash=plan.content_hash)
    return Journal.create(
        path,
        plan_hash=plan.content_hash,
        plan_text=json.dumps(plan.model_dump(mode="json")),
        provenance=collect_provenance(plan_hash=plan.content_hash),
    )


def _sending(plan: Plan) -> RunOptions:
    return RunOptions(
        seed=plan.seeds.schedule,
        concurrency=plan.runner.concurrency,
        block_items=plan.runner.block_items,
        timeout_s=plan.runner.timeout_s,
        max_attempts=plan.runner.max_attempts,
    )


def _row(model: ModelSpec, seed: int, evidence: SuiteEvidence, verdict: SuiteVerdict) -> SeedRow:
    pooled = evidence.pooled[ArmRole.CANDIDATE]
    pairs = sum(c.n for t in evidence.tasks if (c := t.primary) is not None)
    return SeedRow(
        model=model.name,
        seed=seed,
        outcome=verdict.outcome.value,
        delta=pooled.mover.delta,
        lower=pooled.mover.lower,
        p_d=(pooled.lost + pooled.gained) / pairs,
    )


def summarise(
    plan: Plan, model: str, rows: Sequence[SeedRow], evidence: Sequence[SuiteEvidence]
) -> SeedTable:
    """Compare the pass fraction with the plan's prediction, and with that for what was seen."""
    passed = sum(r.outcome == Outcome.SIGNED_OFF.value for r in rows)
    predicted = pass_probability(plan, predicted_power(plan))
    seen = pass_probability(plan, _power_as_seen(plan, evidence))
    return SeedTable(
        model=model,
        rows=tuple(rows),
        passed=passed,
        predicted=predicted,
        predicted_as_seen=seen,
        p_value=float(binomtest(passed, len(rows), predicted).pvalue),
        p_value_as_seen=float(binomtest(passed, len(rows), seen).pvalue),
    )


def _power_as_seen(plan: Plan, evidence: Sequence[SuiteEvidence]) -> PlanPower:
    """The plan's power at each task's mean loss and, of single answers, discordance.

    Repeats average the discordance away: there the plan's own is kept.
    """
    designs = []
    for design in task_designs(plan):
        tasks = [t for e in evidence for t in e.tasks if t.task == design.name]
        seen = [c for t in tasks if (c := t.primary) is not None]
        pairs = sum(c.n for c in seen)
        lost, gained = sum(c.lost for c in seen) / pairs, sum(c.gained for c in seen) / pairs
        loss = lost - gained
        p_d = lost + gained if design.repeats == 1 else max(design.p_d, abs(loss))
        designs.append(dataclasses.replace(design, p_d=p_d, loss=loss))
    d = plan.decision
    rng = np.random.default_rng(plan.seeds.bootstrap)
    return plan_power(designs, d.suite_margin, rng=rng, alpha=d.effective_alpha)


def render(plan: Plan, tables: Sequence[SeedTable]) -> str:
    """The table as markdown."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [
        f"# Plan `{plan.name}` over {len(tables[0].rows)} item seeds ({today})",
        "",
        f"Plan hash `{plan.content_hash}`. Only baseline and candidate are asked; a seed passes when every "
        "critical task and the pooled mean are non-inferior at their margins.",
        "",
        "| model | seeds | passed | predicted (plan) | p | predicted (as seen) | p | delta | discordant |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for t in tables:
        n = len(t.rows)
        delta, p_d = sum(r.delta for r in t.rows) / n, sum(r.p_d for r in t.rows) / n
        lines.append(
            f"| {t.model} | {n} | {t.passed} ({t.passed / n:.2f}) | {t.predicted:.3f} | {t.p_value:.3f} "
            f"| {t.predicted_as_seen:.3f} | {t.p_value_as_seen:.3f} | {delta:+.4f} | {p_d:.4f} |"
        )
    lines += [
        "",
        "| model | seed | outcome | pooled delta | lower bound | discordant |",
        "|---|--:|---|--:|--:|--:|",
    ]
    lines += [
        f"| {r.model} | {r.seed} | {r.outcome} | {r.delta:+.4f} | {r.lower:+.4f} | {r.p_d:.4f} |"
        for t in tables
        for r in t.rows
    ]
    return "\n".join(lines) + "\n"
