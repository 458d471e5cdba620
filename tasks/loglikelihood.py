"""Tasks answered by log-likelihood: which continuation does the model find most likely?

Each item is a small conversation. The first request warms the context, so that the scored
requests read it back from the KV cache; without that a GPU server may score fresh, unquantized
keys and values and say nothing about the cache. ``cached_tokens`` of the scored requests goes into
the score, so that a report can tell.

The context's tokens must be a prefix of the tokens of context + continuation. That holds for
byte-level BPE when the continuation starts with the space, as it does here; the check below makes
a tokenizer that merges across the boundary an error instead of a wrong score.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from equipoise.evals.errors import UsageError
from equipoise.evals.types import (
    Output,
    PromptLogprobs,
    Request,
    Sample,
    SamplingParams,
    Score,
    ScoreStatus,
    TaskItem,
)
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.reference import reply
from equipoise.tasks.rows import Row, RowSource, load_rows, sample_rows

__all__ = ["Continuation", "LoglikelihoodTask", "Query", "continuation_logprob", "likely_replies"]

_ONE_TOKEN = SamplingParams(max_new_tokens=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A row as it is asked; each continuation starts with a space.

    ``contexts`` stands in for ``context`` where each continuation has one of its own. ``target`` is the right
    continuation in words, ``extra`` are JSON values for ``judge`` that follow from the rest: they are not
    hashed, nor is ``cluster`` (empty: the item is its own).
    """

    continuations: tuple[str, ...]
    target: str
    context: str = ""
    contexts: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    cluster: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Sum of logprobs (nats) of a continuation's tokens, and whether greedy decoding gives it."""

    logprob: float
    is_greedy: bool
    tokens: int
    cached_tokens: int | None


def continuation_logprob(context: Output, full: Output) -> Continuation | str:
    """Score the part of ``full``'s prompt after ``context``'s prompt, or say why it cannot be."""
    start, logprobs = full.prompt_logprobs_start, full.prompt_logprobs
    if start is None or logprobs is None:
        return "the server returned no prompt logprobs"
    if full.prompt_tokens <= context.prompt_tokens:
        return "the continuation adds no token to the context"
    skip = context.prompt_tokens - start
    if skip < 0 or len(logprobs) != full.prompt_tokens - start:
        return "the server's prompt logprobs do not cover the continuation"
    scored = logprobs[skip:]
    if any(x is None or not math.isfinite(x) for x in scored):
        return "a continuation token has no finite logprob"
    ids, top = full.prompt_token_ids, full.prompt_top1_ids
    greedy = ids is not None and top is not None and tuple(ids[skip:]) == tuple(top[skip:])
    return Continuation(
        logprob=sum(x for x in scored if x is not None),
        is_greedy=greedy,
        tokens=len(scored),
        cached_tokens=full.cached_tokens,
    )


class LoglikelihoodTask(ABC):
    """Base: a task names its data and says how a row is asked and judged."""

    kind: Literal["accuracy", "logprob"] = "accuracy"
    needs_chat_template = False
    name: str
    version: str
    source: RowSource

    @abstractmethod
    def parse(self, row: Row, *, local: bool) -> Query:
        """One row, in the local or the hub's form; a malformed one may raise Key-, Value- or TypeError."""

    @abstractmethod
    def judge(self, item: TaskItem, scored: Sequence[Continuation]) -> tuple[float, str]:
        """Value and what the model chose, in words."""

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """``n`` items drawn by ``seed``; ids are row numbers of the split.

        Raises
        ------
        UsageError
            The data cannot be loaded, has fewer rows, or a row is malformed (named).
        """
        rows, local = load_rows(self.source)
        drawn = sample_rows(rows, n, seed, name=self.name)
        return [self._item(index, row, local) for index, row in drawn]

    def count(self) -> int:
        """How many rows the data has here."""
        return len(load_rows(self.source)[0])

    def _item(self, index: int, row: Row, local: bool) -> TaskItem:
        try:
            query = self.parse(row, local=local)
            contexts = query.contexts or (query.context,)
            digest = content_hash(*contexts, *query.continuations, query.target)
        except KeyError as e:
            raise UsageError(f"{self.name} row {index} has no field {e}; check the data file") from e
        except (ValueError, IndexError, TypeError, AttributeError) as e:
            raise UsageError(f"{self.name} row {index} is malformed ({e!r}); check the data file") from e
        item_id = f"{self.name}-{index:05d}"
        own = {"contexts": list(contexts)} if query.contexts else {"context": query.context}
        return TaskItem(
            task=self.name,
            id=item_id,
            inputs={**own, "continuations": list(query.continuations), **query.extra},
            target=query.target,
            content_hash=digest,
            cluster_id=query.cluster or item_id,
        )

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """A context alone, then with its continuations; the next context where there are several."""
        steps = _steps(item)
        if len(outputs) >= len(steps):
            return None
        step = steps[len(outputs)]
        if step.warm is None:
            return Request(text=step.text, sampling=_ONE_TOKEN)
        return Request(
            text=step.text,
            sampling=_ONE_TOKEN,
            # SGLang gives no logprob for the first position asked for: start one token earlier.
            prompt_logprobs=PromptLogprobs(start=max(outputs[step.warm].prompt_tokens - 1, 0), top_n=1),
        )

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """Hand the continuations' logprobs to ``judge``; what cannot be scored is an error."""
        if sample.error is not None:
            status = ScoreStatus.REFUSED if sample.refused else ScoreStatus.ERRORED
            return Score(value=None, status=status, reason=sample.error)
        steps = _steps(item)
        if len(sample.outputs) != len(steps):
            reason = f"{len(sample.outputs)} of {len(steps)} replies"
            return Score(value=None, status=ScoreStatus.ERRORED, reason=reason)
        results = [
            continuation_logprob(sample.outputs[step.warm], output)
            for step, output in zip(steps, sample.outputs, strict=True)
            if step.warm is not None
        ]
        scored = [r for r in results if isinstance(r, Continuation)]
        if len(scored) != len(results):
            reason = next(r for r in results if isinstance(r, str))
            return Score(value=None, status=ScoreStatus.ERRORED, reason=reason)
        value, extracted = self.judge(item, scored)
        cached = [r.cached_tokens for r in scored if r.cached_tokens is not None]
        return Score(
            value=value,
            status=ScoreStatus.SCORED,
            extracted=extracted,
            cached_tokens=min(cached) if len(cached) == len(scored) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One request; ``warm`` is the place of the request that put its context into the cache."""

    text: str
    warm: int | None


def _steps(item: TaskItem) -> list[_Step]:
    continuations: list[str] = item.inputs["continuations"]
    contexts: list[str] = item.inputs.get("contexts") or [item.inputs["context"]] * len(continuations)
    steps: list[_Step] = []
    warm = -1
    for context, continuation in zip(contexts, continuations, strict=True):
        if warm < 0 or steps[warm].text != context:
            warm = len(steps)
            steps.append(_Step(text=context, warm=None))
        steps.append(_Step(text=context + continuation, warm=warm))
    return steps


def likely_replies(item: TaskItem, logprobs: Sequence[float], *, greedy: bool) -> tuple[Output, ...]:
    """Replies to an item, as a server would send them, that give its continuations these logprobs."""
    given = iter(logprobs)
    outputs: list[Output] = []
    for step in _steps(item):
        output = reply("")
        if step.warm is not None:
            output = replace(
                output,
                prompt_tokens=2,
                prompt_logprobs_start=0,
                prompt_logprobs=(None, next(given)),
                prompt_token_ids=(0, 1),
                prompt_top1_ids=(None, 1 if greedy else 0),
            )
        outputs.append(output)
    return tuple(outputs)
