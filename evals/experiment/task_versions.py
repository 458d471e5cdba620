"""Versions of the tasks' prompts and graders: registered with the plan, and held against today's."""

from collections.abc import Mapping, Sequence

from equipoise.evals.experiment.questions import Question
from equipoise.evals.journal import Journal

__all__ = ["TASK_VERSIONS", "changed_versions", "versions_of"]

TASK_VERSIONS = "task_versions"  # in a journal's provenance


def versions_of(questions: Sequence[Question]) -> Mapping[str, str]:
    """By task."""
    return {q.spec.name: q.task.version for q in questions}


def changed_versions(journal: Journal, questions: Sequence[Question]) -> tuple[str, ...]:
    """Tasks whose version is no longer the registered one, in words; none of a run that registered none."""
    registered = journal.metadata.provenance.get(TASK_VERSIONS, {})
    return tuple(
        f"task {name} was registered at version {registered[name]} and is graded at version {version}"
        for name, version in versions_of(questions).items()
        if registered.get(name, version) != version
    )
