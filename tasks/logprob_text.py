"""Teacher-forced logprobs of text behind a cached prefix, for any model with a tokenizer.

Example (a real prefix is of the length that the plan asks for)::

    first request:   The merry shelf improved the silent acorn in Marnahaven. ...
    second request:  the same and " The statue's package offered Deloric. ...", every token of which is scored

The first request leaves the prefix in the server's prefix cache, so that what is scored reads the cache as
stored, not the fresh keys and values of a prefill (``cached_tokens`` of the second reply says if it did).
About half of the scored sentences are repeated from the prefix: what makes them likely is far back.

The prefix's tokens must be a prefix of the whole's. They are for tokenizers that split before a space, as the
byte-level and tiktoken ones do: the prefix ends with a sentence, what is scored begins with a space.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

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
from equipoise.tasks.card import TaskCard
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.long.base import MAX_TOKENS
from equipoise.tasks.long.source import source_digest, source_sentences

__all__ = ["LogprobText"]

_ONE_TOKEN = SamplingParams(max_new_tokens=1, ignore_eos=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobText:
    """``prefix_tokens`` lists the prefixes' lengths, items go round them; ``scored_tokens`` come behind.

    Both are budgets of ``bytes_per_token``. ``repeated`` is the share of scored sentences that stand in the
    prefix, ``top_n`` the likely tokens asked for at each position; ``text`` a file in place of our prose.
    """

    prefix_tokens: tuple[int, ...] = (1024, 4096)
    scored_tokens: int = 128
    repeated: float = 0.5
    top_n: int = 20
    bytes_per_token: float = 4.2
    text: str = ""

    name = "logprob_text"
    version = "1"
    needs_chat_template = False
    option_names = ("prefix_tokens", "scored_tokens", "repeated", "top_n", "bytes_per_token", "text")

    def __post_init__(self) -> None:
        if not all(64 <= t <= MAX_TOKENS for t in self.prefix_tokens):
            raise ValueError(f"prefix_tokens must be 64 to {MAX_TOKENS}, not {list(self.prefix_tokens)}")
        if not 16 <= self.scored_tokens <= 8192:
            raise ValueError(f"scored_tokens must be 16 to 8192, not {self.scored_tokens}")
        if not 0.0 <= self.repeated <= 1.0:
            raise ValueError(f"repeated must be 0 to 1, not {self.repeated:g}")
        if not 1 <= self.top_n <= 1000:
            raise ValueError(f"top_n must be 1 to 1000, not {self.top_n}")
        if not 1.0 <= self.bytes_per_token <= 20.0:
            raise ValueError(f"bytes_per_token must be 1 to 20, not {self.bytes_per_token:g}")

    @property
    def kind(self) -> Literal["accuracy", "logprob"]:
        return "logprob"

    @property
    def card(self) -> TaskCard:
        return TaskCard(
            title="Logprobs of long text behind a cached prefix",
            group="long context",
            protocol="teacher-forced",
            licence="Apache-2.0 (generated here)",
            citation="",
            items=None,
            note="needs SGLang's own API; on a GPU only what is behind a cached prefix reads the cache",
        )

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """The first ``n`` items of ``seed``; each is drawn by itself."""
        digest = source_digest(self.text)
        items = []
        for index in range(n):
            tokens = self.prefix_tokens[index % len(self.prefix_tokens)]
            item_id = f"{self.name}-{seed}-{index:05d}"
            inputs = {
                "prefix_bytes": int(tokens * self.bytes_per_token),
                "scored_bytes": int(self.scored_tokens * self.bytes_per_token),
                "repeated": self.repeated,
            }
            items.append(
                TaskItem(
                    task=self.name,
                    id=item_id,
                    inputs=inputs,
                    target="",
                    content_hash=content_hash(digest, self.version, item_id, repr(inputs)),
                    cluster_id=item_id,
                    strata={"length": str(tokens)},
                )
            )
        return items

    def parts(self, item: TaskItem) -> tuple[str, str]:
        """Prefix, and what is scored behind it."""
        rng = random.Random(f"text-{item.id}-{self.version}")
        source = source_sentences(rng, self.text)
        prefix = _take(source, item.inputs["prefix_bytes"])
        scored: list[str] = []
        left: int = item.inputs["scored_bytes"]
        while left > 0:
            again = rng.random() < item.inputs["repeated"]
            scored.append(prefix[int(rng.random() * len(prefix))] if again else next(source))
            left -= len(scored[-1].encode()) + 1
        return " ".join(prefix), " " + " ".join(scored)

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """The prefix alone, to be cached; then the whole, with logprobs behind the prefix."""
        if len(outputs) >= 2:
            return None
        prefix, scored = self.parts(item)
        if not outputs:
            return Request(text=prefix, sampling=_ONE_TOKEN)
        return Request(
            text=prefix + scored,
            sampling=_ONE_TOKEN,
            # SGLang gives no logprob for the first position asked for: start one token earlier.
            prompt_logprobs=PromptLogprobs(start=max(outputs[0].prompt_tokens - 1, 0), top_n=self.top_n),
        )

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """The logprobs (nats) behind the prefix, by absolute position; ERRORED where some are missing."""
        if sample.error is not None or len(sample.outputs) < 2:
            status = ScoreStatus.REFUSED if sample.refused else ScoreStatus.ERRORED
            return Score(value=None, status=status, reason=sample.error or "no reply")
        context, output = sample.outputs
        found = _behind(context, output)
        if isinstance(found, str):
            return Score(value=None, status=ScoreStatus.ERRORED, reason=found)
        positions, logprobs = found
        skip = positions[0] - (output.prompt_logprobs_start or 0)
        ids, top = output.prompt_token_ids, output.prompt_top1_ids
        lists = output.prompt_top_logprobs
        return Score(
            value=None,
            status=ScoreStatus.SCORED,
            token_logprobs=logprobs,
            token_positions=positions,
            token_is_top1=None
            if ids is None or top is None
            else tuple(a == b for a, b in zip(ids[skip:], top[skip:], strict=True)),
            token_top_logprobs=None if lists is None else lists.at(positions),
            cached_tokens=output.cached_tokens,
        )


def _behind(context: Output, output: Output) -> tuple[tuple[int, ...], tuple[float, ...]] | str:
    """Absolute positions and logprobs behind the context, or why there are none."""
    start, given = output.prompt_logprobs_start, output.prompt_logprobs
    if start is None or given is None:
        return "the reply has no prompt logprobs"
    if output.prompt_tokens <= context.prompt_tokens:
        return "the scored text adds no token to the prefix"
    skip = context.prompt_tokens - start
    if skip < 0 or len(given) != output.prompt_tokens - start:
        return "the reply's prompt logprobs do not cover what is scored"
    values = [x for x in given[skip:] if x is not None and math.isfinite(x)]
    if len(values) != len(given) - skip:
        return "a scored token has no finite logprob"
    return tuple(range(context.prompt_tokens, output.prompt_tokens)), tuple(values)


def _take(source: Iterator[str], size_bytes: int) -> list[str]:
    """Sentences of at most ``size_bytes`` with the spaces between them; one at least."""
    found = [next(source)]
    left = size_bytes - len(found[0].encode())
    for sentence in source:
        left -= len(sentence.encode()) + 1
        if left < 0:
            break
        found.append(sentence)
    return found
