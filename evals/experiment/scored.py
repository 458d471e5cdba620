"""A run's samples, read from its journal and scored: what analysis and report are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from equipoise.evals.analysis import LogprobTables, TaskTables, analyse
from equipoise.evals.answers import answer_facts
from equipoise.evals.evidence import SuiteEvidence
from equipoise.evals.experiment.questions import Question
from equipoise.evals.journal import Journal
from equipoise.evals.pairing import ScoredSample, pair, pair_logprobs
from equipoise.evals.parity import compare_prompt_tokens
from equipoise.evals.plan import ArmSpec, Plan
from equipoise.evals.types import ArmRole, Sample, TaskItem
from equipoise.tasks.code_task import CodeTask

__all__ = ["ModelSamples", "at_items", "evidence_of", "planned_samples", "read_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSamples:
    """All samples of one model, by arm and task; the scores in the same order."""

    model: str
    samples: Mapping[tuple[str, str], Sequence[Sample]]
    scored: Mapping[tuple[str, str], Sequence[ScoredSample]]

    @property
    def count(self) -> int:
        return sum(len(s) for s in self.samples.values())


def planned_samples(plan: Plan, questions: Sequence[Question]) -> int:
    """How many samples one model's share of the run has when it is complete."""
    return len(plan.arms) * sum(len(q.items) * q.spec.repeats for q in questions)


def read_model(journal: Journal, plan: Plan, questions: Sequence[Question], model: str) -> ModelSamples:
    """Read and score every sample of one model."""
    samples: dict[tuple[str, str], Sequence[Sample]] = {}
    scored: dict[tuple[str, str], Sequence[ScoredSample]] = {}
    for question in questions:
        items = {item.id: item for item in question.items}
        for arm in plan.arms:
            found = list(journal.samples(model=model, arm=arm.name, task=question.spec.name))
            samples[arm.name, question.spec.name] = found
            if isinstance(question.task, CodeTask):
                _run_code(question.task, question, items, found)
            scored[arm.name, question.spec.name] = [
                ScoredSample(
                    key=s.key,
                    content_hash=s.content_hash,
                    score=question.generation.score(question.task, items[s.key.item_id], s),
                    facts=answer_facts(items[s.key.item_id], s),
                )
                for s in found
                if s.key.item_id in items
            ]
    return ModelSamples(model=model, samples=samples, scored=scored)


def _run_code(
    task: CodeTask, question: Question, items: Mapping[str, TaskItem], samples: Sequence[Sample]
) -> None:
    """Run all programs of these samples at once: scoring them one by one then finds the results."""
    pairs = [(items[s.key.item_id], s) for s in samples if s.key.item_id in items]
    settled = [replace(s, outputs=question.generation.settled(task, item, s.outputs)) for item, s in pairs]
    task.prepare([(item, s) for (item, _), s in zip(pairs, settled, strict=True)])


def at_items(data: ModelSamples, questions: Sequence[Question]) -> ModelSamples:
    """The samples of these questions' items alone: what a look sees."""
    items = {q.spec.name: {item.id for item in q.items} for q in questions}
    return ModelSamples(
        model=data.model,
        samples={k: [s for s in v if s.key.item_id in items[k[1]]] for k, v in data.samples.items()},
        scored={k: [s for s in v if s.key.item_id in items[k[1]]] for k, v in data.scored.items()},
    )


def evidence_of(
    plan: Plan, questions: Sequence[Question], data: ModelSamples, *, nogo_alpha: float | None = None
) -> SuiteEvidence:
    """Pair every arm with the baseline and analyse; deterministic given plan and samples.

    ``nogo_alpha`` is what looks have left for "degraded"; None if the plan registered none.
    """
    baseline = plan.arm(ArmRole.BASELINE)
    assert baseline is not None, "a plan has a baseline"
    others = [a for a in plan.arms if a.role is not ArmRole.BASELINE]
    tasks, logprobs = [], []
    for question in questions:
        name, spec = question.spec.name, question.spec
        by_role = {a.role: (data.scored[a.name, name], a.name) for a in others}
        ours = data.scored[baseline.name, name]
        if question.task.kind == "logprob":
            assert spec.margin_nats is not None, "checked by questions_of"
            tokens = {
                role: pair_logprobs(
                    question.items, ours, theirs, baseline_arm=baseline.name, candidate_arm=arm
                )
                for role, (theirs, arm) in by_role.items()
            }
            logprobs.append(
                LogprobTables(
                    task=name,
                    margin_nats=spec.margin_nats,
                    tables=tokens,
                    max_kl_nats=spec.max_kl_nats,
                    max_drop_nats=spec.max_drop_nats,
                )
            )
        else:
            assert spec.margin is not None, "checked by questions_of"
            scores = {
                role: pair(
                    question.items,
                    ours,
                    theirs,
                    baseline_arm=baseline.name,
                    candidate_arm=arm,
                    repeats=spec.repeats,
                )
                for role, (theirs, arm) in by_role.items()
            }
            tasks.append(TaskTables(task=name, margin=spec.margin, tables=scores))
    return analyse(
        data.model,
        tasks,
        suite_margin=plan.decision.suite_margin,
        alpha=plan.decision.effective_alpha,
        rng=np.random.default_rng(plan.seeds.bootstrap),
        nogo_alpha=nogo_alpha,
        control_size=plan.decision.control_size,
        logprobs=logprobs,
        parity_violations=_prompt_violations(questions, data, baseline, others),
    )


def _prompt_violations(
    questions: Sequence[Question], data: ModelSamples, baseline: ArmSpec, others: Sequence[ArmSpec]
) -> list[str]:
    """Arms whose servers made another number of tokens of the same prompt."""
    found = []
    for arm in others:
        for question in questions:
            name = question.spec.name
            parity = compare_prompt_tokens(data.samples[baseline.name, name], data.samples[arm.name, name])
            if parity.mismatched:
                _, item, a, b = parity.examples[0]
                found.append(
                    f"arm {arm.name} had {parity.mismatched} of {parity.compared} prompts of task {name} "
                    f"with another number of tokens than {baseline.name} (item {item}: {b}, not {a})"
                )
    return found
