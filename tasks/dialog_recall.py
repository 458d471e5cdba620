"""Follow a chain through a table given in the first turn, one link a turn.

Example (a real one has 24 to 56 pairs)::

    user:      K:ga=nk;nk=me;ah=ga;me=ah;?nk
    assistant: me
    user:      ?me
    assistant: ah
    user:      ?ah
    assistant: ga

Every question after the first is the model's own last answer, and only the KV cache of the
first turn can answer it. The item is right if the last answer is.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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
from equipoise.tasks.generated import (
    MAX_NEW_TOKENS,
    Draw,
    GeneratedTask,
    draw_held_out,
    generated_card,
    score_text,
)
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.kv_retrieval import draw_keys, table_text
from equipoise.tasks.reference import reply

__all__ = ["DialogRecall", "draw_chain_table"]


def draw_chain_table(rng: random.Random, n: int, alphabet_size: int) -> dict[str, str]:
    """A table whose values are its keys, all on one cycle, in random order."""
    cycle = draw_keys(rng, n, alphabet_size)
    pairs = list(zip(cycle, cycle[1:] + cycle[:1], strict=True))
    rng.shuffle(pairs)
    return dict(pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogRecall(GeneratedTask):
    """Tables of ``min_pairs`` .. ``max_pairs`` pairs; ``turns`` links are followed."""

    min_pairs: int = 24
    max_pairs: int = 56
    alphabet_size: int = 14
    turns: int = 3

    card: ClassVar[TaskCard] = generated_card("Follow a chain through a table, one link a turn")

    @property
    def name(self) -> str:
        return "dialog_recall"

    def draw(self, rng: random.Random) -> Draw:
        table = draw_chain_table(rng, rng.randint(self.min_pairs, self.max_pairs), self.alphabet_size)
        text = table_text(table)
        key = rng.choice(list(table))
        turns = [(f"{text}?{key}", table[key])]
        while len(turns) < self.turns:
            key = table[key]
            turns.append((f"?{key}", table[key]))
        return Draw(turns=tuple(turns), split_key=text)

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """The first ``n`` items of ``seed``."""
        items = []
        for index, drawn in enumerate(draw_held_out(self, n, seed)):
            item_id = f"{self.name}-{seed}-{index:05d}"
            question, target = drawn.turns[0][0], drawn.turns[-1][1]
            items.append(
                TaskItem(
                    task=self.name,
                    id=item_id,
                    inputs={"question": question, "turns": self.turns},
                    target=target,
                    content_hash=content_hash(self.name, question, str(self.turns), target),
                    cluster_id=item_id,
                )
            )
        return items

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """The table and first question; then a question made of the last reply.

        The conversation ends early where a reply was cut off or empty: nothing can be asked with it.
        """
        inputs: Mapping[str, Any] = item.inputs
        if len(outputs) >= inputs["turns"]:
            return None
        messages = [Message(role="user", content=inputs["question"])]
        for output in outputs:
            reply = (output.text or "").strip()
            if not reply or output.finish_reason == "length":
                return None
            messages += [Message(role="assistant", content=reply), Message(role="user", content=f"?{reply}")]
        return Request(
            sampling=SamplingParams(max_new_tokens=MAX_NEW_TOKENS, stop=("\n",)), messages=tuple(messages)
        )

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """Each turn's answer, read off the table."""
        text, _, key = item.inputs["question"].removeprefix("K:").rpartition("?")
        table = dict(pair.split("=") for pair in text.split(";") if pair)
        replies = []
        for _ in range(item.inputs["turns"]):
            key = table[key]
            replies.append(reply(key))
        return replies

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """Right but for the last turn."""
        replies = self.right(item)
        assert replies is not None, "every table has its answers"
        return (*replies[:-1], reply(f"{item.target}0"))

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """1.0 if the last turn's reply is the target and no turn is missing."""
        if sample.error is not None or not sample.outputs:
            return Score(value=None, status=ScoreStatus.ERRORED, reason=sample.error or "no reply")
        last = score_text(sample.outputs[-1], item.target)
        missing = item.inputs["turns"] - len(sample.outputs)
        if missing > 0 and last.status is ScoreStatus.SCORED:
            reason = f"the conversation ended {missing} turns early: nothing to ask with an empty reply"
            return Score(value=0.0, status=ScoreStatus.SCORED, extracted=last.extracted, reason=reason)
        return last
