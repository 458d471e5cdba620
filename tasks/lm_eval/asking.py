"""What lm-eval asks of a model, as requests of ours.

An item is a list of lm-eval's requests; each is a step or several of a small conversation::

    generate_until       the prompt, ``repeats`` times
    loglikelihood        its context alone once (it warms the prefix cache), then context + continuation

Field names and defaults are those of lm-eval's API models (``local-completions``): 256 new tokens and greedy
decoding where a task says nothing. A context's trailing spaces go over to the continuation, as in lm-eval.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Message, Output, PromptLogprobs, Request, SamplingParams
from equipoise.tasks.lm_eval.loading import Leaf

__all__ = ["Ask", "Rendering", "Step", "asks_of", "request_of", "steps_of"]

MAX_NEW_TOKENS = 256
_ONE_TOKEN = SamplingParams(max_new_tokens=1)
_BUDGETS = ("max_gen_toks", "max_tokens", "max_new_tokens", "max_completion_tokens")
_KNOWN = frozenset({*_BUDGETS, "until", "do_sample", "temperature", "top_p", "top_k", "min_p"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """How prompts are made: ``apply_chat_template`` and its like of lm-eval."""

    chat: bool = False
    multiturn: bool = True
    system: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One of lm-eval's requests; ``second`` is a continuation, or the generation's arguments."""

    kind: Literal["generate_until", "loglikelihood"]
    prompt: str  # of a chat: its messages as JSON
    second: str | Mapping[str, Any]
    chat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request of ours; ``warm`` is the step that sent the context alone, of a scored continuation."""

    ask: int
    warm: int | None = None
    warms: bool = False


def asks_of(leaf: Leaf, wanted: Collection[int], how: Rendering, *, where: str) -> dict[int, tuple[Ask, ...]]:
    """What is asked about the documents ``wanted``, the same whichever they are.

    lm-eval draws few-shot examples document by document from one generator: those of documents that are left
    out are drawn too, so that a document has the examples of lm-eval's run over all of them.

    Raises
    ------
    UsageError
        A prompt cannot be made, or cannot be asked.
    """
    found = {}
    task, last = leaf.task, max(wanted, default=-1)
    task.set_fewshot_seed(seed=1234)
    for index, doc in enumerate(leaf.docs):
        if index > last:
            break
        if index not in wanted and not leaf.shots:
            continue
        try:
            context = _context(leaf, doc, how)
            if index not in wanted:
                continue
            instances = task.construct_requests(
                doc=doc,
                ctx=context,
                metadata=(task.config.task, index, task.config.repeats),
                apply_chat_template=how.chat,
                chat_template=_as_json if how.chat else None,
            )
        except UsageError as e:
            raise UsageError(f"{where}: document {index}: {e}") from e
        except Exception as e:
            raise UsageError(
                f"{where}: lm-eval makes no prompt of document {index}: {type(e).__name__}: {str(e)[:200]}"
            ) from e
        instances = instances if isinstance(instances, list) else [instances]
        found[index] = tuple(
            _ask(r, how, f"{where}: document {index}") for r in sorted(instances, key=lambda r: int(r.idx))
        )
    return found


def _context(leaf: Leaf, doc: Any, how: Rendering) -> Any:
    """The prompt as ``build_all_requests`` makes it."""
    return leaf.task.fewshot_context(
        doc,
        num_fewshot=leaf.shots,
        system_instruction=how.system or None,
        apply_chat_template=how.chat,
        fewshot_as_multiturn=how.chat and how.multiturn,
        chat_template=_as_json if how.chat else None,
        gen_prefix=leaf.task.doc_to_prefix(doc),
    )


def _as_json(messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
    """Stands for the chat template, which the server applies."""
    if not add_generation_prompt:
        raise UsageError("its answers begin with a given text (gen_prefix), which a chat cannot ask for")
    return json.dumps(list(messages), ensure_ascii=False)


def _ask(instance: Any, how: Rendering, where: str) -> Ask:
    kind, arguments = instance.request_type, instance.args
    if kind not in ("generate_until", "loglikelihood") or len(arguments) != 2:
        raise UsageError(f"{where} is a request of kind {kind!r}, which cannot be asked here")
    prompt, second = arguments
    if kind == "loglikelihood":
        if how.chat:
            raise UsageError(
                f"{where} compares likelihoods, and servers score no text inside a chat; set "
                "apply_chat_template = false"
            )
        if not prompt.strip():
            raise UsageError(f"{where} asks for the likelihood of a text without any context before it")
    else:
        sampling_of(second, where=where)
    second = dict(second) if kind == "generate_until" else str(second)
    return Ask(kind=kind, prompt=str(prompt), second=second, chat=how.chat)


def sampling_of(arguments: Mapping[str, Any], *, where: str) -> SamplingParams:
    """The sampling that ``generation_kwargs`` ask for.

    Raises
    ------
    UsageError
        An argument that is not known here, or of the wrong type.
    """
    unknown = sorted(k for k in arguments.keys() - _KNOWN if (k, arguments[k]) != ("num_beams", 1))
    if unknown:
        raise UsageError(
            f"{where}: generation_kwargs {', '.join(unknown)} are not known here; known are "
            f"{', '.join(sorted(_KNOWN))}"
        )
    stops = arguments.get("until") or ()
    stops = (stops,) if isinstance(stops, str) else stops
    given = {name: arguments[name] for name in ("top_p", "top_k", "min_p") if arguments.get(name) is not None}
    if given.get("top_k", 1) < 1:  # -1 and 0 mean all tokens
        del given["top_k"]
    budget = next((arguments[b] for b in _BUDGETS if arguments.get(b) is not None), MAX_NEW_TOKENS)
    # A temperature beside do_sample: false is one that transformers would not use.
    sampled = arguments.get("do_sample", "temperature" in arguments)
    try:
        return SamplingParams(
            max_new_tokens=int(budget),
            temperature=float(arguments.get("temperature", 1.0)) if sampled else 0.0,
            stop=tuple(str(s) for s in stops if s),
            **given,
        )
    except (TypeError, ValueError) as e:
        raise UsageError(f"{where}: generation_kwargs {dict(arguments)!r}: {e}") from e


def steps_of(asks: Sequence[Ask], repeats: int) -> tuple[Step, ...]:
    """The requests of an item, in order; a context that several continuations share is warmed once."""
    steps: list[Step] = []
    warmed: dict[str, int] = {}
    for index, ask in enumerate(asks):
        if ask.kind == "generate_until":
            steps += [Step(ask=index)] * repeats
            continue
        context, _ = _split(ask)
        if context not in warmed:
            warmed[context] = len(steps)
            steps.append(Step(ask=index, warms=True))
        steps.append(Step(ask=index, warm=warmed[context]))
    return tuple(steps)


def request_of(step: Step, ask: Ask, outputs: Sequence[Output]) -> Request:
    """The request of a step; ``outputs`` are the replies to the steps before it."""
    if isinstance(ask.second, str):
        context, continuation = _split(ask)
        if step.warm is None:
            return Request(text=context, sampling=_ONE_TOKEN)
        start = max(outputs[step.warm].prompt_tokens - 1, 0)  # nothing is given for the first position
        scored = PromptLogprobs(start=start, top_n=1)
        return Request(text=context + continuation, sampling=_ONE_TOKEN, prompt_logprobs=scored)
    sampling = sampling_of(ask.second, where="an item")
    if ask.chat:
        messages = tuple(Message(role=m["role"], content=m["content"]) for m in json.loads(ask.prompt))
        return Request(messages=messages, sampling=sampling)
    return Request(text=ask.prompt, sampling=sampling)


def _split(ask: Ask) -> tuple[str, str]:
    assert isinstance(ask.second, str), "a continuation"
    context = ask.prompt.rstrip()
    return context, ask.prompt[len(context) :] + ask.second
