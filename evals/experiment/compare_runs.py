"""An arm of one of our run directories as a result set; its answers are scored anew from the journal."""

from collections.abc import Sequence
from pathlib import Path

from equipoise.evals.errors import UsageError
from equipoise.evals.experiment.questions import Question, questions_of
from equipoise.evals.experiment.report_flips import prompt_text
from equipoise.evals.experiment.results import JOURNAL_NAME, plan_of
from equipoise.evals.experiment.scored import ModelSamples, read_model
from equipoise.evals.interop.result_set import ItemResult, ResultSet, TaskResults, choose_tasks, excerpt
from equipoise.evals.journal import Journal
from equipoise.evals.plan import ArmSpec, Plan
from equipoise.evals.types import ArmRole, Sample, Score, ScoreStatus

__all__ = ["read_run"]


def read_run(path: Path, arm_name: str = "", tasks: Sequence[str] = ()) -> tuple[ResultSet, ...]:
    """One result set for each model of the run.

    Parameters
    ----------
    path
        The run directory, or its journal.
    arm_name
        The arm; by default the candidate.
    tasks
        Names or patterns of the tasks to read; empty for all.

    Raises
    ------
    UsageError
        The run has no such arm, or no task with scores.
    JournalError
        The journal is missing or damaged.
    """
    directory = path.parent if path.name == JOURNAL_NAME else path
    with Journal.read(directory / JOURNAL_NAME) as journal:
        plan = plan_of(journal)
        arm = _arm(plan, directory, arm_name)
        scored = {q.spec.name: q for q in questions_of(plan) if q.task.kind == "accuracy"}
        questions = [scored[name] for name in choose_tasks(scored, tasks, str(directory))]
        if not questions:
            raise UsageError(f"{directory}: no task of this run has scores to compare")
        left_out = [t.name for t in plan.tasks if t.name not in scored]
        return tuple(
            ResultSet(
                source=f"{directory}:{arm.name}",
                format="run",
                model=model.name,
                tasks={
                    q.spec.name: _task(q, arm, data)
                    for data in (read_model(journal, plan, questions, model.name),)
                    for q in questions
                },
                unknown=tuple(f"task {name} has logprobs, no scores: not compared" for name in left_out),
            )
            for model in plan.models
        )


def _arm(plan: Plan, directory: Path, name: str) -> ArmSpec:
    arm = next((a for a in plan.arms if a.name == name), None) if name else plan.arm(ArmRole.CANDIDATE)
    if arm is None:
        names = ", ".join(f"{directory}:{a.name} ({a.role.value})" for a in plan.arms)
        raise UsageError(f"{directory} has no arm {name!r}; there are {names}")
    return arm


def _task(question: Question, arm: ArmSpec, data: ModelSamples) -> TaskResults:
    name = question.spec.name
    samples = {(s.key.item_id, s.key.repeat): s for s in data.samples[arm.name, name]}
    items = {item.id: item for item in question.items}
    found = []
    for scored in data.scored[arm.name, name]:
        item = items[scored.key.item_id]
        sample = samples[scored.key.item_id, scored.key.repeat]
        found.append(
            _item(
                sample,
                scored.score,
                cluster_id=item.cluster_id,
                prompt=prompt_text(item),
                target=item.target,
            )
        )
    return TaskResults(
        task=name,
        metric=f"{question.task.name} {question.task.version}",
        items=tuple(found),
        planned_ids=tuple(items),
        planned_repeats=question.spec.repeats,
        hash_kind="run",
        truncation_known=True,
        settings={
            "temperature": str(question.spec.temperature),
            "top_p": str(question.spec.top_p),
            "plan's repeats": str(question.spec.repeats),
        },
    )


def _item(sample: Sample, score: Score, *, cluster_id: str, prompt: str, target: str) -> ItemResult:
    reply = sample.outputs[-1] if sample.outputs else None
    usable = score.status in (ScoreStatus.SCORED, ScoreStatus.TRUNCATED)
    return ItemResult(
        item_id=sample.key.item_id,
        repeat=sample.key.repeat,
        score=score.value if usable else None,
        status=ScoreStatus.ERRORED
        if score.status is ScoreStatus.SCORED and score.value is None
        else score.status,
        content_hash=sample.content_hash,
        cluster_id=cluster_id,
        prompt=excerpt(prompt),
        target=excerpt(target),
        answer=excerpt(score.extracted if score.extracted is not None else (reply.text if reply else None)),
        finish_reason=reply.finish_reason if reply else "",
        completion_tokens=sum(o.completion_tokens for o in sample.outputs) if sample.outputs else None,
    )
