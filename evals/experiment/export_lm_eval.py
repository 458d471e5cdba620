"""A run's arms as lm-eval would have logged them: answers scored anew, requests as they were sent."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.experiment.questions import Question, questions_of
from equipoise.evals.experiment.results import JOURNAL_NAME, plan_of
from equipoise.evals.experiment.scored import ModelSamples, read_model
from equipoise.evals.interop.lm_eval_export import (
    ExportedSample,
    ExportedTask,
    OutputType,
    hash_text,
    write_lm_eval,
)
from equipoise.evals.journal import Journal
from equipoise.evals.plan import ArmSpec
from equipoise.evals.types import Output, Request, Sample, SamplingParams, Score, Task, TaskItem
from equipoise.tasks.lm_eval_task import LmEvalTask
from equipoise.tasks.loglikelihood import Continuation, continuation_logprob

__all__ = ["exchanged", "export_lm_eval", "score_name"]

MAX_REQUESTS = 4096  # of one item
_NO_REPLY = Output(text="", finish_reason="", prompt_tokens=1, completion_tokens=0, latency_s=0.0)


def export_lm_eval(
    directory: Path, out: Path, *, arms: Sequence[str] = (), force: bool = False
) -> list[Path]:
    """Write every arm of a run (or those named) into a folder ``MODEL__ARM`` of ``out``.

    Teacher-forced tasks have no scores of items and are left out.

    Returns
    -------
    list of Path
        The results files.

    Raises
    ------
    UsageError
        An arm that the run does not have, no task with scores, files that exist (without ``force``), or a
        folder that cannot be written.
    JournalError
        The journal is missing or damaged.
    """
    written = []
    with Journal.read(directory / JOURNAL_NAME) as journal:
        plan = plan_of(journal)
        unknown = sorted(set(arms) - {a.name for a in plan.arms})
        if unknown:
            names = ", ".join(a.name for a in plan.arms)
            raise UsageError(f"{directory} has no arm {unknown[0]!r}; there are {names} (--arm)")
        questions = [q for q in questions_of(plan) if q.task.kind == "accuracy"]
        if not questions:
            raise UsageError(f"{directory}: no task of this run has scores that lm-eval's files could hold")
        for model in plan.models:
            data = read_model(journal, plan, questions, model.name)
            for arm in plan.arms:
                if arms and arm.name not in arms:
                    continue
                written.append(
                    write_lm_eval(
                        out,
                        model=f"{model.name}:{arm.name}",
                        tasks=[_task(q, arm, data) for q in questions],
                        unix_s=journal.metadata.created_unix_s,
                        about={"model": model.name, "arm": arm.name, "role": arm.role.value}
                        | ({"variant": arm.variant} if arm.variant else {}),
                        force=force,
                    )
                )
    return written


def _task(question: Question, arm: ArmSpec, data: ModelSamples) -> ExportedTask:
    name, task = question.spec.name, question.task
    items = {item.id: item for item in question.items}
    ids = _doc_ids(question.items)
    by_key = {s.key: s for s in data.samples[arm.name, name]}
    samples = [
        _sample(
            question, items[scored.key.item_id], ids[scored.key.item_id], by_key[scored.key], scored.score
        )
        for scored in data.scored[arm.name, name]
    ]
    output_type = _output_type(samples)
    first = samples[0].arguments[0][1] if samples and samples[0].arguments else None
    return ExportedTask(
        task=name,
        version=task.version,
        metric=score_name(task, likelihood=output_type != "generate_until"),
        filter=task.lm_eval_metric[1] if isinstance(task, LmEvalTask) else "none",
        output_type=output_type,
        num_fewshot=task.shots if isinstance(task, LmEvalTask) else 0,
        samples=samples,
        planned=len(question.items) * question.spec.repeats,
        generation=first if isinstance(first, dict) else {},
    )


def score_name(task: Task, *, likelihood: bool) -> str:
    """What a task's score is called in logs: lm-eval's own metric, that of a likelihood task, or "score"."""
    if isinstance(task, LmEvalTask):
        return task.lm_eval_metric[0]
    return str(getattr(task, "metric", "acc")) if likelihood else "score"


def _doc_ids(items: Sequence[TaskItem]) -> dict[str, int]:
    """Numbers, as lm-eval has them: those that end the ids if they tell the items apart, else the order."""
    found = {}
    for item in items:
        number = re.search(r"(\d{1,9})$", item.id)
        if number:
            found[item.id] = int(number[1])
    if len(set(found.values())) == len(items):
        return found
    return {item.id: i for i, item in enumerate(items)}


def _sample(question: Question, item: TaskItem, doc_id: int, sample: Sample, score: Score) -> ExportedSample:
    arguments, resps = exchanged(question, item, sample)
    task = question.task
    doc = task.document(item) if isinstance(task, LmEvalTask) else {**item.inputs, "target": item.target}
    prompt = arguments[0][0] if arguments else ""
    hashes = {
        "doc_hash": hash_text(json.dumps(doc, sort_keys=True, default=str)),
        "prompt_hash": hash_text(prompt),
        "target_hash": hash_text(item.target),
    }
    if isinstance(task, LmEvalTask):
        hashes = {name: str(item.inputs["lm_eval"][name]) for name in hashes}
    last = sample.outputs[-1] if sample.outputs else None
    filtered = [replies[0] if replies else "" for replies in resps]
    if score.extracted is not None and filtered and isinstance(filtered[-1], str):
        filtered[-1] = score.extracted
    return ExportedSample(
        doc_id=doc_id,
        doc=doc,
        target=item.target,
        arguments=arguments,
        resps=resps,
        filtered=filtered,
        value=score.value,
        hashes=hashes,
        item_id=item.id,
        content_hash=sample.content_hash,
        cluster_id=item.cluster_id,
        repeat=sample.key.repeat,
        status=score.status,
        reason=score.reason,
        finish_reason=last.finish_reason if last else "",
        completion_tokens=sum(o.completion_tokens for o in sample.outputs) if last else None,
    )


def exchanged(
    question: Question, item: TaskItem, sample: Sample
) -> tuple[list[tuple[str, Any]], list[list[Any]]]:
    """What was asked, in lm-eval's terms, and what came back; requests that warm the cache are not told.

    Where replies are missing, what was still to be asked is told only of likelihoods, which do not depend on
    replies. A question that was asked again in the same words (repeats inside an item) has one entry.
    """
    arguments: list[tuple[str, Any]] = []
    resps: list[list[Any]] = []
    outputs: list[Output] = []
    warm: tuple[str, Output] | None = None
    while (request := _next(question, item, outputs)) is not None and len(outputs) < MAX_REQUESTS:
        answered = len(outputs) < len(sample.outputs)
        output = sample.outputs[len(outputs)] if answered else _NO_REPLY
        outputs.append(output)
        text = request.text
        if text is not None and request.prompt_logprobs is not None and warm is not None:
            arguments.append((warm[0], text.removeprefix(warm[0])))
            resps.append([_likelihood(warm[1], output)] if answered else [])
            continue
        if text is not None and request.sampling.max_new_tokens == 1:
            follows = _next(question, item, outputs)
            if follows is not None and follows.prompt_logprobs is not None:
                warm = (text, output)
                continue
        argument = (_prompt(request), _arguments(request.sampling))
        replies = [output.text or ""] if answered else []
        if arguments and arguments[-1] == argument:
            resps[-1] += replies
        else:
            arguments.append(argument)
            resps.append(replies)
        if not answered:
            break
    return arguments, resps


def _next(question: Question, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
    return question.generation.next_request(question.task, item, outputs)


def _likelihood(context: Output, full: Output) -> tuple[float | None, bool]:
    scored = continuation_logprob(context, full)
    return (scored.logprob, scored.is_greedy) if isinstance(scored, Continuation) else (None, False)


def _prompt(request: Request) -> str:
    if request.messages is not None:
        messages = [{k: v for k, v in asdict(m).items() if v not in (None, ())} for m in request.messages]
        return json.dumps(messages, ensure_ascii=False)
    return request.text if request.text is not None else json.dumps(request.input_ids)


def _arguments(sampling: SamplingParams) -> dict[str, Any]:
    said = {
        "until": list(sampling.stop),
        "max_gen_toks": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "do_sample": sampling.temperature > 0,
    }
    more = {"top_p": sampling.top_p, "top_k": sampling.top_k, "min_p": sampling.min_p}
    return said | {k: v for k, v in more.items() if v not in (None, 1.0)}


def _output_type(samples: Sequence[ExportedSample]) -> OutputType:
    asked = next((s.arguments for s in samples if s.arguments), [])
    if not asked or not isinstance(asked[0][1], str):
        return "generate_until"
    return "loglikelihood" if len(asked) == 1 else "multiple_choice"
