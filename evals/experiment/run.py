"""``equipoise run``: serve a plan's arms, ask everything, decide, and leave a run directory behind.

A run directory holds the journal (with plan, provenance and server facts), the servers' logs, and
the report as JSON, markdown and HTML. Everything in the report can be computed again from the journal.
"""

import asyncio
import dataclasses
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from equipoise.evals.backends.sglang_server import servers_that_fit
from equipoise.evals.errors import UsageError
from equipoise.evals.experiment.arms_up import Session, arms_up
from equipoise.evals.experiment.attempt_register import AttemptRegister, ledger_beside
from equipoise.evals.experiment.checkpoints import has_chat_template, resolve_device, resolve_model
from equipoise.evals.experiment.explained import explain_servers
from equipoise.evals.experiment.questions import Question, questions_of
from equipoise.evals.experiment.registration import registered_journal
from equipoise.evals.experiment.report_files import write_page, write_text
from equipoise.evals.experiment.results import JOURNAL_NAME, report_with_flips
from equipoise.evals.experiment.serving import ServerSpec, servers_of
from equipoise.evals.experiment.staging import Stage, early_stop, look_taken, stages_of, take_look
from equipoise.evals.ledger import Ledger
from equipoise.evals.parity_watch import ParityWatch
from equipoise.evals.plan import ArmSpec, ModelSpec, Plan
from equipoise.evals.progress import show_progress
from equipoise.evals.run_types import Arm, WorkItem
from equipoise.evals.run_types import RunOptions as SendOptions
from equipoise.evals.runner import run
from equipoise.evals.types import ArmRole, SampleKey
from equipoise.quant.variants import Device
from equipoise.reports import json as json_report
from equipoise.reports import markdown
from equipoise.reports.model import Report

__all__ = ["RunOptions", "RunResult", "run_plan"]

LATEST = "latest"  # a link in runs/ to the newest run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line says beside the plan."""

    out: Path | None = None
    resume: bool = False
    device: str = "auto"
    servers: str = "auto"  # together, one-by-one
    command: str = ""
    ledger: Path | None = None  # of attempts; by default beside the run directory


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    directory: Path
    report: Report
    page: Path  # the HTML report


async def run_plan(plan: Plan, options: RunOptions, console: Console) -> RunResult:
    """Run a plan from nothing, or go on with an interrupted run.

    Raises
    ------
    UsageError
        Something in the plan or the options cannot be; nothing was started or written.
    ServerError, ParityError, JournalError, LedgerError, InterruptedRunError
        The run stopped; what was answered is in the journal.
    """
    questions = questions_of(plan)
    device = resolve_device(options.device)
    paths = {m.name: _model_path(plan, m) for m in plan.models}
    specs = {m.name: servers_of(plan, m.name, paths[m.name], device) for m in plan.models}
    if any(a.variant for a in plan.arms):
        _check_chat(questions, paths)
    explained = {name: explain_servers(servers, device) for name, servers in specs.items()}
    directory = _directory(plan, options)
    journal_path = directory / JOURNAL_NAME
    ledger = Ledger(options.ledger or ledger_beside(directory))
    journal = registered_journal(
        journal_path, plan, questions, resume=options.resume, command=options.command, ledger=ledger
    )
    with journal:
        _link_latest(directory)
        console.print(f"plan {plan.name} {plan.content_hash[:12]} registered in {directory}", highlight=False)
        attempts = AttemptRegister(ledger, plan, journal, specs, console)
        session = Session(
            plan=plan,
            questions=questions,
            journal=journal,
            console=console,
            device=device,
            attempts=attempts,
            explained={label: answer for servers in explained.values() for label, answer in servers.items()},
        )
        try:
            attempts.foresee()
            asked = [
                await _run_model(session, model, specs[model.name], servers=options.servers)
                for model in plan.models
            ]
        except BaseException:
            attempts.withdraw_if_unanswered()
            raise
        if any(asked):
            journal.record("finished", {"unix_s": time.time()})
        attempts.settle()
        report, flips = report_with_flips(journal, plan, questions, run_id=directory.resolve().name)
        attempts.close({m.name: m.verdict for m in report.models if m.verdict is not None})
    write_text(directory / "report.json", json_report.render(report))
    write_text(directory / "report.md", markdown.render(report))
    page = write_page(directory / "report.html", report, flips)
    return RunResult(directory=directory, report=report, page=page)


def _model_path(plan: Plan, model: ModelSpec) -> str:
    """Only arms that we serve need a checkpoint here."""
    return resolve_model(model.path) if any(a.variant for a in plan.arms) else model.path


def _check_chat(questions: Sequence[Question], paths: dict[str, str]) -> None:
    chatty = [q.spec.name for q in questions if q.task.needs_chat_template]
    for name, path in paths.items():
        if chatty and has_chat_template(path) is False:
            raise UsageError(
                f"model {name!r} ({path}) has no chat template, which task {chatty[0]!r} needs; "
                "add chat_template.jinja to the checkpoint, or leave out the tasks that need chat"
            )


def _directory(plan: Plan, options: RunOptions) -> Path:
    if options.out is not None:
        return options.out
    if options.resume:
        latest = Path("runs") / LATEST
        if not latest.is_dir():
            raise UsageError("there is no latest run to resume (runs/latest); name one with --out")
        return latest.resolve()
    return Path("runs") / f"{plan.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"


def _link_latest(directory: Path) -> None:
    if directory.resolve().parent.name != "runs":
        return
    link = directory.parent / LATEST
    fresh = link.with_name(f".{LATEST}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(directory.resolve().name)
    fresh.replace(link)


async def _run_model(
    session: Session, model: ModelSpec, specs: Sequence[ServerSpec], *, servers: str
) -> bool:
    """Ask one model's arms what is missing, look by look; False if nothing was."""
    plan, journal, console = session.plan, session.journal, session.console
    stopped = early_stop(journal, plan, session.questions, model.name)
    if stopped is not None:
        console.print(f"{model.name}: {stopped[0].said}", highlight=False)
        return False
    stages = stages_of(plan, session.questions)
    settled = journal.final_keys()
    unfinished = {a.name for a in plan.arms if _open(model, a, stages[-1].seen, settled)}
    if not unfinished:
        console.print(f"{model.name}: every answer is in the journal already", highlight=False)
        return False
    for planned in _groups(plan, specs, servers, session.device):
        group = [arm for arm in planned if arm.name in unfinished]
        if not group:  # a resumed run starts no server that has nothing left to answer
            continue
        started = time.monotonic()
        async with arms_up(session, model, group, specs) as arms:
            took_s = time.monotonic() - started
            console.print(f"{model.name}: {len(group)} arms up after {took_s:.0f} s", highlight=False)
            if session.attempts is not None:
                session.attempts.register(model.name)
            looked_at = any(arm.role is ArmRole.CANDIDATE for arm in group)
            for stage in stages if looked_at else stages[-1:]:
                questions = stage.new if looked_at else stage.seen
                if any(_open(model, arm, questions, settled) for arm in group):
                    await _ask(session, model, arms, questions)
                if stage.look is not None and _look_stops(session, model, stage):
                    break
    return True


async def _ask(
    session: Session, model: ModelSpec, arms: Sequence[Arm], questions: Sequence[Question]
) -> None:
    """Ask these questions in these arms, and keep a record of it."""
    plan = session.plan
    watch = ParityWatch()
    with show_progress() as progress:
        summary = await run(
            arms,
            [w for q in questions for w in q.work],
            session.journal,
            options=SendOptions(
                seed=plan.seeds.schedule,
                concurrency=plan.runner.concurrency,
                block_items=plan.runner.block_items,
                timeout_s=plan.runner.timeout_s,
                max_attempts=plan.runner.max_attempts,
            ),
            progress=progress,
            watch=watch,
        )
    session.journal.record(
        "asked", {"model": model.name, **dataclasses.asdict(summary), "parity": watch.summary}
    )


def _look_stops(session: Session, model: ModelSpec, stage: Stage) -> bool:
    """Take the look that follows a stage, unless an earlier session did, and say what it decided."""
    plan, journal, console = session.plan, session.journal, session.console
    assert stage.look is not None, "called after a stage that a look follows"
    if look_taken(journal, model.name, stage.look):
        return False
    decision = take_look(journal, plan, session.questions, model.name, stage)
    console.print(
        f"{model.name}: look {stage.look} at {stage.fraction:.0%} of the items: {decision.action.value}",
        highlight=False,
    )
    for reason in decision.reasons:
        console.print(f"  {reason}", highlight=False, markup=False)
    stopped = early_stop(journal, plan, session.questions, model.name)
    if stopped is not None:
        console.print(f"{model.name}: {stopped[0].said}", highlight=False)
    return stopped is not None


def _open(
    model: ModelSpec, arm: ArmSpec, questions: Sequence[Question], settled: Collection[SampleKey]
) -> bool:
    """Whether some of these questions has no settled answer in this arm."""
    return any(_key(model, arm, w) not in settled for q in questions for w in q.work)


def _key(model: ModelSpec, arm: ArmSpec, work: WorkItem) -> SampleKey:
    return SampleKey(
        model=model.name, arm=arm.name, task=work.task.name, item_id=work.item.id, repeat=work.repeat
    )


def _groups(
    plan: Plan, specs: Sequence[ServerSpec], servers: str, device: Device
) -> list[tuple[ArmSpec, ...]]:
    """Arms that are asked at the same time: all of them, or those of one server after the other."""
    together = servers != "one-by-one"
    if servers == "auto" and device == "cpu" and specs:
        together = servers_that_fit(len(specs)) == len(specs)
    if servers == "auto" and device == "cuda" and len(specs) > 1:
        together = False  # a large model fills its GPUs
    if together:
        return [plan.arms]
    alone = [a for a in plan.arms if a.variant is None]
    groups = [*([tuple(alone)] if alone else []), *(spec.arms for spec in specs)]
    if plan.looks is not None:  # looks compare the candidate with arms that have answered already
        groups.sort(key=lambda group: any(arm.role is ArmRole.CANDIDATE for arm in group))
    return groups


def run_sync(plan: Plan, options: RunOptions, console: Console) -> RunResult:
    """`run_plan` on an event loop of its own (uvloop where there is one)."""
    try:
        import uvloop

        return uvloop.run(run_plan(plan, options, console))
    except ImportError:  # Windows
        return asyncio.run(run_plan(plan, options, console))
