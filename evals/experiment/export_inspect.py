"""A run's arms as inspect would have logged them: one log a task, in a folder for each arm."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from equipoise.evals.answers import answer_facts
from equipoise.evals.chat import Message, ToolCall
from equipoise.evals.errors import UsageError
from equipoise.evals.experiment.export_lm_eval import exchanged, score_name
from equipoise.evals.experiment.export_samples import Answer, answers_of
from equipoise.evals.experiment.questions import Question, questions_of
from equipoise.evals.experiment.results import JOURNAL_NAME, plan_of
from equipoise.evals.export import Progress, chunks
from equipoise.evals.interop.inspect_export import InspectLog, log_name, write_inspect
from equipoise.evals.interop.inspect_form import InspectSample, Usage
from equipoise.evals.journal import Journal
from equipoise.evals.plan import ArmSpec, Plan
from equipoise.evals.types import Output, Request, SamplingParams, ScoreStatus

__all__ = ["chosen_arms", "export_inspect", "folder_name", "message_form"]

MAX_TURNS = 4096
MAX_BRACKETS = 200  # in the arguments of a call


def export_inspect(
    directory: Path,
    out: Path,
    *,
    arms: Sequence[str] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Write every arm of a run (or those named) into a folder ``MODEL__ARM`` of ``out``, one log a task.

    Memory is bounded: samples are read, scored and written a few at a time. Teacher-forced tasks have no
    scores of items and are left out.

    Returns
    -------
    list of Path
        The logs.

    Raises
    ------
    UsageError
        An arm that the run does not have, no task with scores, a log that exists (without ``force``), or a
        folder that cannot be written.
    JournalError
        The journal is missing or damaged.
    """
    written = []
    with Journal.read(directory / JOURNAL_NAME) as journal:
        plan = plan_of(journal)
        wanted = chosen_arms(plan, arms, directory)
        questions = [q for q in questions_of(plan) if q.task.kind == "accuracy"]
        if not questions:
            raise UsageError(f"{directory}: no task of this run has scores that a log could hold")
        for model in plan.models:
            for arm in wanted:
                for question in questions:
                    samples = _samples(journal, question, model.name, arm.name, progress)
                    first = next(samples, None)
                    log = _log(
                        journal, plan, question, model.name, arm, likelihood=bool(first and first.choices)
                    )
                    path = out / folder_name(model.name, arm.name) / log_name(log)
                    write_inspect(
                        path, log, samples if first is None else chain([first], samples), force=force
                    )
                    written.append(path)
    return written


def chosen_arms(plan: Plan, names: Sequence[str], directory: Path) -> list[ArmSpec]:
    """The arms of these names, all if there are none; a UsageError for one that the plan does not have."""
    unknown = sorted(set(names) - {a.name for a in plan.arms})
    if unknown:
        there = ", ".join(a.name for a in plan.arms)
        raise UsageError(f"{directory} has no arm {unknown[0]!r}; there are {there} (--arm)")
    return [a for a in plan.arms if not names or a.name in names]


def folder_name(model: str, arm: str) -> str:
    """``MODEL__ARM``, in letters that every file system takes."""
    return re.sub(r'["<>:/|\\?*\[\]]+', "__", f"{model}:{arm}")


def _log(
    journal: Journal, plan: Plan, question: Question, model: str, arm: ArmSpec, *, likelihood: bool
) -> InspectLog:
    request = question.generation.next_request(question.task, question.items[0], ())
    packages: Mapping[str, str] = journal.metadata.provenance.get("packages", {})
    about = {"model": model, "arm": arm.name, "role": arm.role.value, "variant": arm.variant or ""}
    return InspectLog(
        task=question.spec.name,
        version=question.task.version,
        model=f"{model}:{arm.name}",
        scorer=score_name(question.task, likelihood=likelihood),
        planned_ids=[item.id for item in question.items],
        epochs=question.spec.repeats,
        created_unix_s=journal.metadata.created_unix_s,
        generation={} if request is None or likelihood else _generation(request.sampling),
        about=about | {"plan": plan.name, "plan_hash": journal.metadata.plan_hash},
        packages=packages,
    )


def _generation(sampling: SamplingParams) -> dict[str, Any]:
    """In inspect's names; what is not set is left out."""
    said = {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "stop_seqs": list(sampling.stop) or None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _samples(
    journal: Journal, question: Question, model: str, arm: str, progress: Progress | None
) -> Iterator[InspectSample]:
    items = {item.id: item for item in question.items}
    for chunk in chunks(journal.samples(model=model, arm=arm, task=question.spec.name)):
        for answer in answers_of(question, items, [sample for sample, _ in chunk]):
            if answer is not None:
                yield _sample(question, answer)
        if progress is not None:
            progress(len(chunk))


def _sample(question: Question, answer: Answer) -> InspectSample:
    sample, score = answer.sample, answer.score
    arguments, resps = exchanged(question, answer.item, sample)
    likelihood = bool(arguments) and isinstance(arguments[0][1], str)
    requests = [] if likelihood else _requests(question, answer)
    last = answer.outputs[-1] if answer.outputs else None
    if likelihood:
        asked: str | list[dict[str, Any]] = arguments[0][0]
        reply = {"role": "assistant", "content": score.extracted or ""}
        messages = [{"role": "user", "content": asked}]
    else:
        asked = _asked(requests[0]) if requests else ""
        messages = (
            _conversation(requests[len(answer.outputs) - 1 if answer.outputs else 0]) if requests else []
        )
        reply = _reply(last)
    facts = answer_facts(answer.item, sample)
    extras: dict[str, Any] = {
        "reason": score.reason,
        "content_hash": sample.content_hash,
        "cluster_id": answer.item.cluster_id,
        "finish_reason": last.finish_reason if last else "",
        "completion_tokens": facts.completion_tokens,
        "attempts": sample.attempts,
        "strata": dict(answer.item.strata),
    }
    if likelihood:
        extras["logprobs"] = resps
    elif len(answer.outputs) > 1:
        extras["replies"] = [o.text for o in answer.outputs]
    refused = score.status is ScoreStatus.REFUSED
    failed = sample.error or score.reason or "no answer" if score.status is ScoreStatus.ERRORED else None
    return InspectSample(
        item_id=answer.item.id,
        repeat=sample.key.repeat,
        input=asked,
        choices=[str(a[1]) for a in arguments] if likelihood else (),
        target=answer.item.target,
        messages=[*messages, reply],
        completion=(score.extracted if likelihood else last.text if last else None) or "",
        finish_reason=last.finish_reason if last else "",
        status=score.status,
        score=score.value,
        extracted=score.extracted,
        error=failed,
        refusal=(sample.error or score.reason) if refused else None,
        usage=_usage(sample.outputs),
        started_unix_s=sample.started_unix_s,
        latency_s=sample.latency_s,
        extras=extras,
    )


def _requests(question: Question, answer: Answer) -> list[Request]:
    """Every request that was answered, and the one that was not, if any."""
    found: list[Request] = []
    outputs = answer.sample.outputs
    for turn in range(min(len(outputs), MAX_TURNS) + 1):
        request = question.generation.next_request(question.task, answer.item, outputs[:turn])
        if request is None:
            break
        found.append(request)
    return found


def _usage(outputs: Sequence[Output]) -> Usage | None:
    if not outputs:
        return None
    cached = [o.cached_tokens for o in outputs if o.cached_tokens is not None]
    return Usage(
        prompt=sum(o.prompt_tokens for o in outputs),
        completion=sum(o.completion_tokens for o in outputs),
        cached=sum(cached) if len(cached) == len(outputs) else None,
    )


# ---- messages in inspect's form


def _asked(request: Request) -> str | list[dict[str, Any]]:
    if request.messages is not None:
        return [message_form(m) for m in request.messages]
    return request.text if request.text is not None else json.dumps(request.input_ids)


def _conversation(request: Request) -> list[dict[str, Any]]:
    asked = _asked(request)
    return [{"role": "user", "content": asked}] if isinstance(asked, str) else asked


def _reply(output: Output | None) -> dict[str, Any]:
    if output is None:
        return {"role": "assistant", "content": ""}
    reply = Message(
        role="assistant",
        content=output.text,
        reasoning=output.reasoning,
        tool_calls=output.tool_calls or (),
    )
    return message_form(reply) | {"source": "generate"}


def message_form(message: Message) -> dict[str, Any]:
    """A message as inspect writes it; thinking and answer are two parts of its content."""
    content: str | list[dict[str, str]] = message.content or ""
    if message.reasoning:
        content = [
            {"type": "reasoning", "reasoning": message.reasoning},
            {"type": "text", "text": message.content or ""},
        ]
    found: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        found["tool_calls"] = [_call(i, call) for i, call in enumerate(message.tool_calls)]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    return found


def _call(i: int, call: ToolCall) -> dict[str, Any]:
    """Arguments that are no JSON object are told as they were sent, as inspect does."""
    found = {"id": call.id or f"call_{i}", "function": call.name, "type": "function"}
    try:
        if sum(map(call.arguments.count, "[{")) > MAX_BRACKETS:
            raise ValueError("nested too deeply to be told as values")
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError) as e:
        return found | {"arguments": {}, "parse_error": f"{e}: {call.arguments}"}
    if not isinstance(arguments, dict):
        return found | {"arguments": {}, "parse_error": f"not a JSON object: {call.arguments}"}
    return found | {"arguments": arguments}
