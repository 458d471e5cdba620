"""Facts given early in a conversation, other talk in between, questions about the facts at the end.

Example (the replies are the model's own, and stay in the conversation)::

    user:      Please remember: the locker code of Jorvson is 4180. The badge number of Alna is 7731. ...
    assistant: OK
    user:      In two sentences: how does a bicycle stay upright?
    assistant: ...
    user:      A correction: the badge number of Alna is 2096. Reply: OK
    assistant: OK
    user:      What is the locker code of Jorvson? Reply with the number alone.
    assistant: 4180                                                              <- asked, 4180 is right
    user:      What is the badge number of Alna? Reply with the number alone.
    assistant: 2096                                                              <- asked, 2096 is right

An item is a conversation; its score is the share of its questions that are answered right. A question's reply
that runs into the budget truncates the conversation; replies to the talk in between may be cut off.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
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
from equipoise.tasks.graders.recall import answers_in, recall
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.long.prose import uniform
from equipoise.tasks.long.vocabulary import NAMES
from equipoise.tasks.reference import reply

__all__ = ["MultiTurnRecall"]

MAX_NEW_TOKENS = 512
_TALK_TOKENS = 160
_FACTS_A_TURN = 3
_NUMBER = re.compile(r"(?<!\d)\d{4}(?!\d)")
_ATTRIBUTES = (
    "locker code",
    "badge number",
    "room number",
    "account number",
    "membership number",
    "desk number",
)
_TALK = (
    "how does a bicycle stay upright?",
    "why do leaves change colour in autumn?",
    "what makes bread rise?",
    "how does a lighthouse help a ship?",
    "why is the sea salty?",
    "what does a thermostat do?",
    "why do cats purr?",
    "how is glass made?",
    "what is a solar eclipse?",
    "why do we yawn?",
    "how does soap clean?",
    "what is the use of a compass?",
    "how do bees make honey?",
    "why does ice float?",
    "what does a librarian do?",
    "how does a piano make its sound?",
    "what is the difference between weather and climate?",
    "why do tyres have treads?",
    "how does a zip work?",
    "why do birds migrate?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTurnRecall:
    """``facts`` facts, ``talk`` turns of other talk, ``corrections`` of facts among it, ``questions``."""

    facts: int = 6
    talk: int = 4
    corrections: int = 1
    questions: int = 3

    def __post_init__(self) -> None:
        if not (1 <= self.questions <= self.facts <= 60 and 0 <= self.corrections <= self.facts):
            raise ValueError("questions must be 1 to facts, facts at most 60, corrections at most facts")
        if not self.corrections <= self.talk <= len(_TALK):
            raise ValueError(f"talk must be at least corrections and at most {len(_TALK)}, not {self.talk}")

    name = "multi_turn_recall"
    version = "1"
    needs_chat_template = True
    option_names = ("facts", "talk", "corrections", "questions")

    @property
    def kind(self) -> Literal["accuracy", "logprob"]:
        return "accuracy"

    @property
    def card(self) -> TaskCard:
        return TaskCard(
            title="Recall over a conversation's turns",
            group="long context",
            protocol="chat",
            licence="Apache-2.0 (generated here)",
            citation="",
            items=None,
            clusters="conversation",
            note="the model's own replies stay in the context; the score is the share of right answers",
        )

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """The first ``n`` conversations of ``seed``; each is drawn by itself."""
        return [self._item(f"{self.name}-{seed}-{index:05d}") for index in range(n)]

    def _item(self, item_id: str) -> TaskItem:
        rng = random.Random(f"{item_id}-{self.version}")
        pick = uniform(rng)
        values: dict[str, str] = {}
        while len(values) < self.facts:
            values[f"{pick(_ATTRIBUTES)} of {pick(NAMES)}"] = _number(rng)
        keys = list(values)
        turns = []
        for i in range(0, len(keys), _FACTS_A_TURN):
            told = [f"the {key} is {values[key]}." for key in keys[i : i + _FACTS_A_TURN]]
            told[1:] = [s[0].upper() + s[1:] for s in told[1:]]
            turns.append(f"Please remember: {' '.join(told)} Reply: OK")
        asked = rng.sample(keys, self.questions)
        # What is asked is corrected first: a correction that nothing depends on shows nothing.
        corrected = [*asked, *(k for k in keys if k not in asked)][: self.corrections]
        talk = rng.sample(_TALK, self.talk)
        for i, about in enumerate(talk):
            turns.append(f"In two sentences: {about}")
            if i < len(corrected):
                key, old = corrected[i], values[corrected[i]]
                while values[key] == old:
                    values[key] = _number(rng)
                turns.append(f"A correction: the {key} is {values[key]}. Reply: OK")
        rng.shuffle(asked)
        first = len(turns)
        turns += [f"What is the {key}? Reply with the number alone." for key in asked]
        answers = [values[key] for key in asked]
        return TaskItem(
            task=self.name,
            id=item_id,
            inputs={"turns": turns, "answers": answers, "first": first},
            target=", ".join(answers),
            content_hash=content_hash(self.version, *turns, *answers),
            cluster_id=item_id,
        )

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """The next turn, with all replies so far; the conversation ends where a reply has no content."""
        turns: list[str] = item.inputs["turns"]
        if len(outputs) >= len(turns) or any(o.text is None for o in outputs):
            return None
        messages: list[Message] = []
        for turn, output in zip(turns, outputs, strict=False):
            messages += [
                Message(role="user", content=turn),
                Message(role="assistant", content=(output.text or "").strip()),
            ]
        messages.append(Message(role="user", content=turns[len(outputs)]))
        asked = len(outputs) >= item.inputs["first"]
        return Request(
            sampling=SamplingParams(max_new_tokens=MAX_NEW_TOKENS if asked else _TALK_TOKENS),
            messages=tuple(messages),
        )

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """The questions' answers behind replies that say OK."""
        answers: list[str] = item.inputs["answers"]
        return (*[reply("OK")] * item.inputs["first"], *(reply(f"It is {a}.") for a in answers))

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """Right but for the last question."""
        replies = self.right(item)
        assert replies is not None, "every conversation has its answers"
        return (*replies[:-1], reply("It is 12345."))

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """The share of right answers; what is no answer is settled before."""
        inputs: dict[str, Any] = dict(item.inputs)
        settled = settled_score(sample)
        if isinstance(settled, Score):
            return settled
        replies = sample.outputs[inputs["first"] :]
        if len(replies) != len(inputs["answers"]):
            reason = f"{len(sample.outputs)} of {len(inputs['turns'])} replies"
            return Score(value=None, status=ScoreStatus.ERRORED, reason=reason)
        if any(o.finish_reason == "length" for o in replies):
            return Score(value=0.0, status=ScoreStatus.TRUNCATED, reason="an answer ran into max_new_tokens")
        grades = [
            recall(answers_in(o.text or "", _NUMBER), [answer])
            for o, answer in zip(replies, inputs["answers"], strict=True)
        ]
        found = [g.extracted for g in grades]
        wrong = sum(g.value < 1.0 for g in grades)
        return Score(
            value=sum(g.value for g in grades) / len(grades),
            status=ScoreStatus.SCORED,
            extracted=None if not any(found) else " | ".join(f or "-" for f in found),
            reason=f"{wrong} of {len(grades)} questions are not answered right" if wrong else "",
        )


def _number(rng: random.Random) -> str:
    return str(1000 + int(rng.random() * 9000))
