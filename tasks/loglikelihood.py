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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
from equipoise.tasks.rows import Row, RowSource, load_rows, sample_rows

__all__ = ["Continuation", "LoglikelihoodTask", "Query", "continuation_logprob"]

_ONE_TOKEN = SamplingParams(max_new_tokens=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A row as it is asked; each continuation starts with a space, ``target`` is the right one without."""

    context: str
    continuations: tuple[str, ...]
    target: str


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
        """One row, in the local or the hub's form; a malformed one may raise Key- or ValueError."""

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
        items = []
        for index, row in sample_rows(rows, n, seed, name=self.name):
            try:
                query = self.parse(row, local=local)
            except (KeyError, ValueError, IndexError, TypeError) as e:
                raise UsageError(f"{self.name} row {index} is malformed ({e!r}); check the data file") from e
            item_id = f"{self.name}-{index:05d}"
            items.append(
                TaskItem(
                    task=self.name,
                    id=item_id,
                    inputs={"context": query.context, "continuations": list(query.continuations)},
                    target=query.target,
                    content_hash=content_hash(query.context, *query.continuations, query.target),
                    cluster_id=item_id,
                )
            )
        return items

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """The context alone, then the context with each continuation."""
        context: str = item.inputs["context"]
        if not outputs:
            return Request(text=context, sampling=_ONE_TOKEN)
        if len(outputs) > len(item.inputs["continuations"]):
            return None
        return Request(
            text=context + item.inputs["continuations"][len(outputs) - 1],
            sampling=_ONE_TOKEN,
            # SGLang gives no logprob for the first position asked for: start one token earlier.
            prompt_logprobs=PromptLogprobs(start=max(outputs[0].prompt_tokens - 1, 0), top_n=1),
        )

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """Hand the continuations' logprobs to ``judge``; what cannot be scored is an error."""
        if sample.error is not None:
            return Score(value=None, status=ScoreStatus.ERRORED, reason=sample.error)
        wanted = 1 + len(item.inputs["continuations"])
        if len(sample.outputs) != wanted:
            reason = f"{len(sample.outputs)} of {wanted} replies"
            return Score(value=None, status=ScoreStatus.ERRORED, reason=reason)
        results = [continuation_logprob(sample.outputs[0], out) for out in sample.outputs[1:]]
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
