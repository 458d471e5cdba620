"""A plan is registered: its hash is in the run's journal before anything is asked, and stays as it is."""

import json
from collections.abc import Sequence
from pathlib import Path

from equipoise.evals.errors import JournalError, PlanError
from equipoise.evals.experiment.attempt_register import withdraw
from equipoise.evals.experiment.questions import Question
from equipoise.evals.experiment.task_versions import TASK_VERSIONS, changed_versions, versions_of
from equipoise.evals.journal import Journal
from equipoise.evals.ledger import Ledger
from equipoise.evals.plan import Plan
from equipoise.evals.plan_diff import require_registered, same_plan
from equipoise.evals.provenance import collect_provenance, without_secrets

__all__ = ["registered_journal"]


def registered_journal(
    path: Path, plan: Plan, questions: Sequence[Question], *, resume: bool, command: str, ledger: Ledger
) -> Journal:
    """The journal of a new run, with its plan registered; or that of a run to go on with.

    The versions of the tasks' prompts and graders are registered too.

    Raises
    ------
    PlanError
        The journal has another plan; every key that changed is named.
    JournalError
        There is none to resume, there is one already, it was changed, a live run holds it, or a task is of
        another version now.
    """
    if resume:
        return _resumed(path, plan, questions)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _discard_if_empty(path, plan, ledger)
    return Journal.create(
        path,
        plan_hash=plan.content_hash,
        plan_text=json.dumps(plan.model_dump(mode="json")),
        provenance=collect_provenance(plan_hash=plan.content_hash)
        | {"command": without_secrets(command), TASK_VERSIONS: versions_of(questions)},
    )


def _resumed(path: Path, plan: Plan, questions: Sequence[Question]) -> Journal:
    try:
        journal = Journal.resume(path, plan_hash=_registered_hash(path, plan))
    except PlanError:
        with Journal.read(path) as found:
            require_registered(path, found.metadata, plan)  # the same refusal, with what changed
        raise
    try:
        require_registered(path, journal.metadata, plan)
        if changed := changed_versions(journal, questions):
            raise JournalError(
                f"{path}: {'; '.join(changed)}: what is asked, or how it is graded, has changed; resume with "
                "the version of equipoise that began the run, or start a new run"
            )
    except BaseException:
        journal.close()
        raise
    return journal


def _registered_hash(path: Path, plan: Plan) -> str:
    """The journal's own hash if it registered this very plan, be it before plans had some of today's keys."""
    with Journal.read(path) as journal:
        metadata = journal.metadata
    return metadata.plan_hash if same_plan(metadata, plan) else plan.content_hash


def _discard_if_empty(path: Path, plan: Plan, ledger: Ledger) -> None:
    """A registration that no answer followed (a wrong URL, say) may be replaced by a corrected plan."""
    with Journal.read(path) as journal:
        if journal.count() > 0:
            require_registered(path, journal.metadata, plan)
            return  # the same plan: `Journal.create` says how to go on with it
        registered = journal.metadata.plan_hash
    with Journal.resume(path, plan_hash=registered) as journal:  # raises if a live run holds it
        withdraw(journal, ledger)
    path.unlink()
