"""A decided run's accuracies for the model repositories of both arms, the comparison in their notes."""

from collections.abc import Mapping
from pathlib import Path

from equipoise.evals.errors import UsageError
from equipoise.evals.experiment.export_inspect import folder_name
from equipoise.evals.experiment.questions import questions_of
from equipoise.evals.experiment.results import JOURNAL_NAME, plan_of, report_of
from equipoise.evals.interop.hub_export import HubDataset, HubResult, write_hub_results
from equipoise.evals.journal import Journal
from equipoise.evals.plan import Plan
from equipoise.evals.types import ArmRole, Task
from equipoise.reports.escape import one_line
from equipoise.reports.evidence import TaskRow
from equipoise.reports.format import count, interval, percent, points, size
from equipoise.reports.model import ModelReport, Report

__all__ = ["export_hub", "own_dataset"]

MAX_NOTE_CHARS = 1_000


def export_hub(
    directory: Path, out: Path, *, datasets: Mapping[str, HubDataset], force: bool = False
) -> tuple[list[Path], list[str]]:
    """Write ``MODEL__ARM/.eval_results/TASK.yaml`` for the baseline and the candidate.

    Parameters
    ----------
    datasets : mapping
        By task, the data set of the hub that its scores are of, for tasks that have none or another one.

    Returns
    -------
    tuple
        The files, and of each task that is left out why.

    Raises
    ------
    UsageError
        The run is not decided or INVALID, a task is not in it, no task has a data set on the hub, a file
        exists (without ``force``) or cannot be written.
    JournalError
        The journal is missing or damaged.
    """
    with Journal.read(directory / JOURNAL_NAME) as journal:
        plan = plan_of(journal)
        questions = questions_of(plan)
        if unknown := sorted(set(datasets) - {q.spec.name for q in questions}):
            names = ", ".join(q.spec.name for q in questions)
            raise UsageError(f"{directory} has no task {unknown[0]!r}; there are {names} (--dataset)")
        report = report_of(journal, plan, questions, run_id=directory.resolve().name)
    if report.run.state != "final" or report.run.verdict == "INVALID":
        why = report.run.verdict or "not finished"
        raise UsageError(f"{directory}: the run is {why}: it has no results to publish")
    found: dict[str, HubDataset] = {}
    left_out = []
    for question in questions:
        dataset = datasets.get(question.spec.name) or own_dataset(question.task)
        if question.task.kind != "accuracy":
            left_out.append(f"{question.spec.name}: it has no accuracy")
        elif isinstance(dataset, str):
            left_out.append(
                f"{question.spec.name}: {dataset}; name one with --dataset TASK=OWNER/NAME:TASK_ID"
            )
        else:
            found[question.spec.name] = dataset
    written = []
    for model in report.models:
        for role in (ArmRole.BASELINE, ArmRole.CANDIDATE):
            arm = plan.arm(role)
            assert arm is not None, "a plan has a baseline and a candidate"
            results = [
                _result(report, plan, model, row, role, found[row.task])
                for row in model.tasks
                if row.task in found and row.n
            ]
            written += write_hub_results(out / folder_name(model.name, arm.name), results, force=force)
    if not written:
        raise UsageError(f"{directory}: no scores of a data set of the hub; left out: {'. '.join(left_out)}")
    return written, left_out


def own_dataset(task: Task) -> HubDataset | str:
    """The data set that a task names itself; why there is none."""
    sources = getattr(task, "sources", None) or ([task.source] if hasattr(task, "source") else [])
    pinned = {(s.hub, s.revision) for s in sources if s.hub}
    if not pinned:
        return "it has no data set on the hub"
    if len({hub for hub, _ in pinned}) > 1:
        return "its items are of several data sets"
    hub, revision = next(iter(pinned)) if len(pinned) == 1 else (next(iter(pinned))[0], "")
    configs = {s.config for s in sources}
    config = configs.pop() if len(configs) == 1 else ""
    return HubDataset(id=hub, task_id=config or "default", revision=revision)


def _result(  # noqa: PLR0917
    report: Report, plan: Plan, model: ModelReport, row: TaskRow, role: ArmRole, dataset: HubDataset
) -> HubResult:
    value = row.accuracy_candidate if role is ArmRole.CANDIDATE else row.accuracy_baseline
    return HubResult(
        task=row.task,
        dataset=dataset,
        value=float(percent(value)),
        date=report.provenance.finished or report.run.created,
        notes=one_line(_notes(report, plan, model, row, role), MAX_NOTE_CHARS, ascii_only=True),
    )


def _notes(report: Report, plan: Plan, model: ModelReport, row: TaskRow, role: ArmRole) -> str:
    """What was compared and what came out, so that the score can be read without the report."""
    arms = {r: a for r in (ArmRole.BASELINE, ArmRole.CANDIDATE) if (a := plan.arm(r)) is not None}
    served = {a.role: a for a in report.provenance.arms if a.model == model.name}

    def named(one: ArmRole) -> str:
        arm, facts = arms[one], served.get(one.value)
        what = [
            arm.variant or "",
            f"{facts.kv_cache_dtype} KV cache" if facts and facts.kv_cache_dtype else "",
        ]
        return f"{one.value} ({', '.join(w for w in what if w) or arm.name})"

    repeats = f", {row.repeats} answers each" if row.repeats > 1 else ""
    parts = [
        f"Accuracy in percent of the {named(role)}, {count(row.n)} items{repeats}",
        f"{named(ArmRole.CANDIDATE)} {percent(row.accuracy_candidate)} against "
        f"{named(ArmRole.BASELINE)} {percent(row.accuracy_baseline)}, paired item by item",
        f"delta {points(row.delta)} points, 90% interval {interval(row.interval, margin=row.margin)}, "
        f"margin {size(row.margin)}: {row.verdict}",
        f"verdict of the model {model.verdict}, of the run {report.run.verdict} (equipoise, plan "
        f"{report.run.plan_name} {report.run.plan_hash[:12]})",
    ]
    return "; ".join(parts)
