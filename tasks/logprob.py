"""Teacher-forced logprobs of right answers, deep inside a conversation of a few hundred tokens.

Example (a real one has 30 pairs and 12 turns; scored answers are marked with ``*``)::

    K:ca=07;ac=81;lk=55;ka=12;?ka   12
    ?lk                             55
    S:tkbqaat                       aabkqtt *
    ?ac                             81 *
    A:538+274                       218 *

The first turns are sent alone, so that the server holds them in its prefix cache; then the whole
conversation is sent and only tokens behind that prefix are scored. What they see of the table is
the KV cache as stored, not the fresh keys and values of a prefill.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

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
from equipoise.tasks.addition import Addition
from equipoise.tasks.brackets import Brackets
from equipoise.tasks.card import TaskCard
from equipoise.tasks.copy import Copy
from equipoise.tasks.embedded.tokenizer import VOCABULARY, render
from equipoise.tasks.generated import Draw, GeneratedTask, SingleTurnTask, draw_held_out, generated_card
from equipoise.tasks.heldout import content_hash, is_held_out
from equipoise.tasks.kv_retrieval import draw_keys, table_text
from equipoise.tasks.sort import Sort

__all__ = ["Logprob"]

TOP_N = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob(GeneratedTask):
    """A table of ``pairs`` pairs, ``prefix_turns`` turns to warm the cache, ``scored_turns`` to score.

    At each scored position the ``top_n`` likeliest tokens are asked for too, for the divergence of the
    arms' distributions.
    """

    pairs: int = 30
    prefix_turns: int = 4
    scored_turns: int = 8
    top_n: int = TOP_N
    alphabet_size: int = 26
    others: tuple[SingleTurnTask, ...] = (Copy(), Sort(), Brackets(), Addition())

    card: ClassVar[TaskCard] = generated_card(
        "Logprobs of right answers deep in a conversation", protocol="teacher-forced"
    )

    @property
    def name(self) -> str:
        return "logprob"

    @property
    def kind(self) -> Literal["accuracy", "logprob"]:
        return "logprob"

    @property
    def needs_chat_template(self) -> bool:
        return False

    def draw(self, rng: random.Random) -> Draw:
        while True:  # a table that is not held out would be rejected after all the turns are drawn
            keys = draw_keys(rng, self.pairs, self.alphabet_size)
            table = {key: f"{rng.randrange(100):02d}" for key in keys}
            text = table_text(table)
            if is_held_out(text):
                break
        turns = [(f"{text}?{keys[0]}", table[keys[0]])]
        asked = rng.sample(keys, self.prefix_turns + self.scored_turns)
        while len(turns) < self.prefix_turns + self.scored_turns:
            if rng.random() < 0.5:
                key = asked[len(turns)]
                turns.append((f"?{key}", table[key]))
            else:
                turns.append(_held_out_turn(rng, rng.choice(self.others)))
        return Draw(turns=tuple(turns), split_key=text)

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """The first ``n`` items of ``seed``; ``scored`` lists the positions of the scored tokens."""
        items = []
        for index, drawn in enumerate(draw_held_out(self, n, seed)):
            ids, is_answer = render(drawn.turns)
            start = len(render(drawn.turns[: self.prefix_turns])[0])
            scored = [i for i in range(start, len(ids)) if is_answer[i]]
            item_id = f"{self.name}-{seed}-{index:05d}"
            target = "\n".join(answer for _, answer in drawn.turns[self.prefix_turns :])
            items.append(
                TaskItem(
                    task=self.name,
                    id=item_id,
                    inputs={"input_ids": ids, "start": start, "scored": scored},
                    target=target,
                    content_hash=content_hash(self.name, *map(str, ids), "start", str(start)),
                    cluster_id=item_id,
                )
            )
        return items

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """First the prefix alone, to be cached; then the whole, with logprobs behind the prefix."""
        if len(outputs) >= 2:
            return None
        ids: list[int] = item.inputs["input_ids"]
        start: int = item.inputs["start"]
        if not outputs:
            return Request(
                sampling=SamplingParams(max_new_tokens=1, ignore_eos=True), input_ids=tuple(ids[:start])
            )
        return Request(
            sampling=SamplingParams(max_new_tokens=1, ignore_eos=True),
            input_ids=tuple(ids),
            prompt_logprobs=PromptLogprobs(
                start=start, top_n=self.top_n, top_positions=tuple(item.inputs["scored"])
            ),
        )

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """The scored tokens' logprobs (nats); ERRORED where the server did not send all of them."""
        if sample.error is not None or len(sample.outputs) < 2:
            return Score(value=None, status=ScoreStatus.ERRORED, reason=sample.error or "no reply")
        output = sample.outputs[-1]
        if output.prompt_logprobs is None or output.prompt_logprobs_start is None:
            return Score(value=None, status=ScoreStatus.ERRORED, reason="the reply has no prompt logprobs")
        first = output.prompt_logprobs_start
        ids: list[int] = item.inputs["input_ids"]
        logprobs, positions, is_top1 = [], [], []
        for position in item.inputs["scored"]:
            offset = position - first
            value = output.prompt_logprobs[offset] if 0 <= offset < len(output.prompt_logprobs) else None
            if value is None:
                reason = f"the reply has no logprob for prompt position {position}"
                return Score(value=None, status=ScoreStatus.ERRORED, reason=reason)
            logprobs.append(value)
            positions.append(position)
            if output.prompt_top1_ids is not None:
                is_top1.append(output.prompt_top1_ids[offset] == ids[position])
        return Score(
            value=None,
            status=ScoreStatus.SCORED,
            token_logprobs=tuple(logprobs),
            token_positions=tuple(positions),
            token_is_top1=tuple(is_top1) if output.prompt_top1_ids is not None else None,
            token_top_logprobs=None
            if output.prompt_top_logprobs is None
            else output.prompt_top_logprobs.at(positions),
            vocabulary_size=len(VOCABULARY),
            cached_tokens=output.cached_tokens,
        )


def _held_out_turn(rng: random.Random, task: SingleTurnTask) -> tuple[str, str]:
    while True:
        drawn = task.draw(rng)
        if is_held_out(drawn.split_key):
            return drawn.turns[0]
