"""Tasks whose items are generated: one draw gives the turns of a conversation and their answers."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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
from equipoise.tasks.card import Protocol_, TaskCard
from equipoise.tasks.heldout import content_hash, is_held_out
from equipoise.tasks.reference import reply

__all__ = ["Draw", "GeneratedTask", "SingleTurnTask", "draw_held_out", "generated_card", "score_text"]

MAX_NEW_TOKENS = 64  # at least twice the longest answer of any embedded task
_MAX_TRIES_PER_ITEM = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One generated conversation: ``turns`` are (question, right answer) pairs.

    ``split_key`` decides between training and evaluation (see ``heldout``); ``strata`` says what kind of
    item it is, for exploration by subgroup.
    """

    turns: tuple[tuple[str, str], ...]
    split_key: str
    strata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTask(ABC):
    """Base of the embedded tasks: ``draw`` says what an item is; its fields are the difficulty."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        return "1"

    @property
    def kind(self) -> Literal["accuracy", "logprob"]:
        return "accuracy"

    @property
    def needs_chat_template(self) -> bool:
        return True

    @abstractmethod
    def draw(self, rng: random.Random) -> Draw:
        """One conversation, held out or not."""


def generated_card(title: str, *, protocol: Protocol_ = "chat") -> TaskCard:
    """The card of a task whose items are drawn here, in the language of the embedded models."""
    return TaskCard(
        title=title,
        group="embedded",
        protocol=protocol,
        licence="Apache-2.0 (generated here)",
        citation="",
        items=None,
        note="In a language that the embedded models are trained on; other models were not shown it.",
    )


def draw_held_out(task: GeneratedTask, n: int, seed: int) -> list[Draw]:
    """The first ``n`` distinct held-out draws of ``seed``; a longer list starts with a shorter one.

    Raises
    ------
    ValueError
        If the task's difficulty leaves fewer than ``n`` distinct items.
    """
    rng = random.Random(f"{task.name}-{task.version}-{seed}")
    seen: set[str] = set()
    draws: list[Draw] = []
    for _ in range(n * _MAX_TRIES_PER_ITEM):
        if len(draws) == n:
            return draws
        candidate = task.draw(rng)
        if candidate.split_key not in seen and is_held_out(candidate.split_key):
            seen.add(candidate.split_key)
            draws.append(candidate)
    if len(draws) == n:
        return draws
    raise ValueError(
        f"task {task.name} has only {len(draws)} distinct items at this difficulty; asked for {n}"
    )


def score_text(output: Output, target: str) -> Score:
    """Exact match of one reply. Running into the budget is wrong; null content is no answer."""
    extracted = None if output.text is None else output.text.strip()
    if output.finish_reason == "length":
        return Score(
            value=0.0, status=ScoreStatus.TRUNCATED, extracted=extracted, reason="ran into max_new_tokens"
        )
    if extracted is None:
        return Score(value=None, status=ScoreStatus.REFUSED, reason="the server sent null content")
    return Score(value=float(extracted == target), status=ScoreStatus.SCORED, extracted=extracted)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTurnTask(GeneratedTask):
    """One question, one exact answer."""

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """The first ``n`` items of ``seed``."""
        items = []
        for index, drawn in enumerate(draw_held_out(self, n, seed)):
            ((question, answer),) = drawn.turns
            items.append(
                TaskItem(
                    task=self.name,
                    id=f"{self.name}-{seed}-{index:05d}",
                    inputs={"question": question},
                    target=answer,
                    content_hash=content_hash(self.name, question, answer),
                    cluster_id=f"{self.name}-{seed}-{index:05d}",
                    strata=drawn.strata,
                )
            )
        return items

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """The question; nothing after its reply."""
        if outputs:
            return None
        return Request(
            sampling=SamplingParams(max_new_tokens=MAX_NEW_TOKENS, stop=("\n",)),
            messages=(Message(role="user", content=item.inputs["question"]),),
        )

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """The target."""
        return (reply(item.target),)

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """Not the target."""
        return (reply(f"{item.target}0"),)

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """1.0 if the reply is exactly the target."""
        if sample.error is not None or not sample.outputs:
            return Score(value=None, status=ScoreStatus.ERRORED, reason=sample.error or "no reply")
        return score_text(sample.outputs[-1], item.target)
