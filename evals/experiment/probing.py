"""What a plan's tasks have the arms asked about themselves, before the run and at its end."""

from collections.abc import Mapping, Sequence

from equipoise.evals.errors import ParityError
from equipoise.evals.experiment.questions import Question
from equipoise.evals.generation import Generation
from equipoise.evals.parity import facts_changed
from equipoise.evals.parity_probes import ArmFacts, Described, Probes
from equipoise.evals.provenance import without_secrets
from equipoise.evals.types import Backend, Request

__all__ = ["probes_of", "recheck"]

ITEMS_EACH = 2
MAX_PROMPT_CHARS = 400_000  # longer ones say nothing more, and take long to send


def probes_of(questions: Sequence[Question]) -> Probes:
    """The first items' prompts of every task, and every way in which conversations are rendered."""
    prompts: dict[str, Request] = {}
    generations: list[Generation] = []
    for question in questions:
        for work in question.work[: ITEMS_EACH * question.spec.repeats : question.spec.repeats]:
            request = work.next_request(())
            if request is not None and _size(request) <= MAX_PROMPT_CHARS:
                prompts[f"task {question.spec.name} item {work.item.id}"] = request
        if question.task.needs_chat_template and question.generation not in generations:
            generations.append(question.generation)
    return Probes(
        needs_chat=any(q.task.needs_chat_template for q in questions),
        needs_text=not all(q.task.needs_chat_template for q in questions),
        prompts=prompts,
        generations=generations,
    )


def _size(request: Request) -> int:
    messages = sum(len(m.content or "") for m in request.messages or ())
    return messages + len(request.text or "")


async def recheck(backends: Mapping[str, Backend], described: Mapping[str, ArmFacts]) -> None:
    """The servers at the end of the run are those of its beginning.

    Raises
    ------
    ParityError
        An arm's server says something else of itself.
    RequestError
        It does not answer.
    """
    for name, backend in backends.items():
        before = described.get(name)
        if before is None or not isinstance(backend, Described):
            continue
        changed = facts_changed(before, without_secrets(dict(await backend.describe())))
        if changed:
            raise ParityError(
                f"arm {name!r} at {backend.label} changed during the run: {'; '.join(changed)}; its "
                "answers are from two servers: start a new run, and keep the servers as they are"
            )
