"""One needle in a haystack: a sentence with a random value somewhere in a long text.

Example (the text in between is of the length that the plan asks for)::

    The following text is long. One sentence of it gives a secret number.

    The merry shelf improved the silent acorn in Marnahaven. ... The secret number of the crimson lantern is
    4938201. ... Deloric offered a brass oak.

    What is the secret number of the crimson lantern? End with a line "Answer: ..." that gives it alone.

    -> 4938201

After RULER's single needle (Hsieh et al. 2024, arXiv:2404.06654), with our own text and words.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

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
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.recall import answers_in, recall
from equipoise.tasks.long.base import LENGTH_OPTIONS, Drawn, LongTask, Place, long_card
from equipoise.tasks.long.source import haystack, source_digest
from equipoise.tasks.long.values import VALUE_FORMS, VALUE_WORDS, draw_keys, draw_values, require_form

__all__ = ["Niah"]

_COMPLETION_TOKENS = {"numbers": 12, "words": 12, "uuids": 48}


@dataclass(frozen=True, slots=True, kw_only=True)
class Niah(LongTask):
    """``values`` is numbers, words or uuids; ``text`` a file to hide them in, in place of our prose.

    ``protocol`` completion asks a model without chat: the text ends with the needle's beginning, and the few
    tokens that follow are the answer.
    """

    values: str = "numbers"
    text: str = ""
    protocol: str = "chat"

    def __post_init__(self) -> None:
        LongTask.__post_init__(self)
        require_form(self.values)
        if self.protocol not in ("chat", "completion"):
            raise ValueError(f"protocol must be chat or completion, not {self.protocol!r}")

    @property
    def name(self) -> str:
        return "niah"

    @property
    def option_names(self) -> tuple[str, ...]:
        return (*LENGTH_OPTIONS, "values", "text", "protocol")

    @property
    def needs_chat_template(self) -> bool:
        return self.protocol == "chat"

    @property
    def digest(self) -> str:
        return source_digest(self.text)

    @property
    def card(self) -> TaskCard:
        return long_card(
            "One needle in a haystack",
            "RULER's single needle (arXiv:2404.06654), our text and words, zero-shot; a completion's prompt "
            "ends with the needle's beginning",
        )

    def draw(self, rng: random.Random, place: Place) -> Drawn:
        (key,), (value,) = draw_keys(rng, 1), draw_values(rng, 1, self.values)
        lead = f"The secret {VALUE_WORDS[self.values]} of the {key} is"
        if self.protocol == "completion":
            question = lead
        else:
            question = (
                f"What is the secret {VALUE_WORDS[self.values]} of the {key}? "
                'End with a line "Answer: ..." that gives it alone.'
            )
        return Drawn(
            question=question,
            target=value,
            recipe={"needles": [[place.depth(rng), f"{lead} {value}."]], "protocol": self.protocol},
            strata={"depth": place.label},
        )

    def write(self, rng: random.Random, item: TaskItem, size_bytes: int) -> tuple[Message, ...]:
        question: str = item.inputs["question"]
        word = VALUE_WORDS[self.values]
        before = (
            ""
            if self.protocol == "completion"
            else f"The following text is long. One sentence of it gives a secret {word}.\n\n"
        )
        needles = [(float(depth), str(sentence)) for depth, sentence in item.inputs["needles"]]
        size = size_bytes - len(before) - len(question) - 2
        text = f"{before}{haystack(rng, size, needles, self.text)}\n\n{question}"
        return (Message(role="user", content=text),)

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """The text with its question, or to be completed; nothing after its reply."""
        if outputs or self.protocol == "chat":
            return LongTask.next_request(self, item, outputs)
        return Request(
            sampling=SamplingParams(max_new_tokens=_COMPLETION_TOKENS[self.values], stop=("\n",)),
            text=self.messages(item)[0].content,
        )

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """1.0 if the value is given, and no other; a completion's few tokens are no truncation."""
        if self.protocol == "chat" or sample.error is not None or not sample.outputs:
            return LongTask.score(self, item, sample)
        text = sample.outputs[-1].text
        if text is None:
            return LongTask.score(self, item, sample)
        found = VALUE_FORMS[self.values].findall(text[:1000].lower())[:1]
        grade = recall(found, [item.target])
        return Score(
            value=grade.value, status=ScoreStatus.SCORED, extracted=grade.extracted, reason=grade.reason
        )

    def grade(self, item: TaskItem, answer: str) -> Grade:
        return recall(answers_in(answer, VALUE_FORMS[self.values]), [item.target])
