"""Base of the generated long contexts: an item is a recipe, whose text is made when it is asked.

So a million-token item is a few hundred bytes until then. Lengths are a budget of bytes: ``tokens`` times
``bytes_per_token``, whatever the server's tokenizer; a run records the tokens that it really had.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from equipoise.evals.types import (
    Message,
    Output,
    Request,
    Sample,
    SamplingParams,
    Score,
    ScoreStatus,
    TaskItem,
)
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import settled_score
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.long.source import source_digest
from equipoise.tasks.reference import reply

__all__ = ["CHAT_TOKENS", "LENGTH_OPTIONS", "MIN_TOKENS", "Drawn", "LongTask", "Place", "long_card"]

MIN_TOKENS, MAX_TOKENS = 256, 4_000_000
MAX_NEW_TOKENS = 1024
CHAT_TOKENS = 48  # a chat template's own
LENGTH_OPTIONS = ("tokens", "depths", "bytes_per_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the asked thing lies: depth in [low, high), of the whole text; ``tokens`` long all in all."""

    tokens: int
    low: float
    high: float

    def depth(self, rng: random.Random) -> float:
        return self.low + (self.high - self.low) * rng.random()

    @property
    def label(self) -> str:
        return f"{100 * self.low:.0f}-{100 * self.high:.0f}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One item's recipe: ``recipe`` (JSON values) is all that the text is made of beside the seed."""

    question: str
    target: str
    recipe: Mapping[str, Any]
    strata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongTask(ABC):
    """``tokens`` lists the lengths and ``depths`` is the number of depth buckets; items go round both."""

    tokens: tuple[int, ...] = (4096, 16384)
    depths: int = 5
    bytes_per_token: float = 4.2  # of our prose: 4.27 (SmolLM2), 4.39 (Kimi)

    def __post_init__(self) -> None:
        if not all(MIN_TOKENS <= t <= MAX_TOKENS for t in self.tokens):
            raise ValueError(f"tokens must be {MIN_TOKENS} to {MAX_TOKENS}, not {list(self.tokens)}")
        if not 1 <= self.depths <= 100:
            raise ValueError(f"depths must be 1 to 100, not {self.depths}")
        if not 1.0 <= self.bytes_per_token <= 20.0:
            raise ValueError(f"bytes_per_token must be 1 to 20, not {self.bytes_per_token:g}")

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def card(self) -> TaskCard: ...

    @property
    def option_names(self) -> tuple[str, ...]:
        return LENGTH_OPTIONS

    @property
    def version(self) -> str:
        return "1"

    @property
    def kind(self) -> Literal["accuracy", "logprob"]:
        return "accuracy"

    @property
    def needs_chat_template(self) -> bool:
        return True

    @property
    def digest(self) -> str:
        """What stands for the text's source in content hashes."""
        return source_digest("")

    @abstractmethod
    def draw(self, rng: random.Random, place: Place) -> Drawn:
        """One item's recipe."""

    @abstractmethod
    def write(self, rng: random.Random, item: TaskItem, size_bytes: int) -> tuple[Message, ...]:
        """The conversation, of at most ``size_bytes``, from the recipe in ``item.inputs``."""

    @abstractmethod
    def grade(self, item: TaskItem, answer: str) -> Grade:
        """Judge an answer; never raises, takes bounded time."""

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """The first ``n`` items of ``seed``; each is drawn by itself, so more begin with the fewer."""
        digest = self.digest
        items = []
        for index in range(n):
            tokens = self.tokens[index % len(self.tokens)]
            bucket = index // len(self.tokens) % self.depths
            place = Place(tokens=tokens, low=bucket / self.depths, high=(bucket + 1) / self.depths)
            item_id = f"{self.name}-{seed}-{index:05d}"
            drawn = self.draw(random.Random(f"{item_id}-{self.version}"), place)
            budget = int((tokens - CHAT_TOKENS) * self.bytes_per_token)
            inputs = {"question": drawn.question, "bytes": budget, **drawn.recipe}
            items.append(
                TaskItem(
                    task=self.name,
                    id=item_id,
                    inputs=inputs,
                    target=drawn.target,
                    content_hash=content_hash(
                        digest,
                        self.version,
                        item_id,
                        drawn.target,
                        *(f"{k}={v!r}" for k, v in inputs.items()),
                    ),
                    cluster_id=item_id,
                    strata={"length": str(tokens), **drawn.strata},
                )
            )
        return items

    def messages(self, item: TaskItem) -> tuple[Message, ...]:
        """The conversation that asks an item."""
        return _written(_Asked(self, item))

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """The whole conversation; nothing after its reply."""
        if outputs:
            return None
        return Request(sampling=SamplingParams(max_new_tokens=MAX_NEW_TOKENS), messages=self.messages(item))

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """The target, as it was asked for."""
        return (reply(f"It is in the text.\nAnswer: {item.target}"),)

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """An answer without the target."""
        return (reply("Answer: none of them"),)

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """Hand the answer to ``grade``; what is no answer is settled before."""
        settled = settled_score(sample)
        if isinstance(settled, Score):
            return settled
        assert settled.text is not None, "settled_score lets no null content through"
        grade = self.grade(item, settled.text)
        return Score(
            value=grade.value, status=ScoreStatus.SCORED, extracted=grade.extracted, reason=grade.reason
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A key for the cache of written texts: items of one content are the same text."""

    task: LongTask
    item: TaskItem

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.item.content_hash == other.item.content_hash

    def __hash__(self) -> int:
        return hash(self.item.content_hash)


# The arms ask an item at about the same time: a few texts are kept, of megabytes each.
@lru_cache(maxsize=4)
def _written(asked: _Asked) -> tuple[Message, ...]:
    item = asked.item
    return asked.task.write(random.Random(f"text-{item.id}"), item, item.inputs["bytes"])


def long_card(title: str, note: str) -> TaskCard:
    """The card of a generated long context."""
    return TaskCard(
        title=title,
        group="long context",
        protocol="chat",
        licence="Apache-2.0 (generated here)",
        citation="",
        items=None,
        note=note,
    )
