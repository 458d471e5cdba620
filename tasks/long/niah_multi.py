"""Several needles: one of many keys, all values of one key, or the values of many keys.

Example (multi_value; the text in between is of the length that the plan asks for)::

    The following text is long. Some sentences of it give secret numbers.

    ... A secret number of the frozen harp is 7719034. ... A secret number of the frozen harp is 2046611. ...

    What are the 2 secret numbers of the frozen harp? End with a line "Answer: ..." that lists them alone.

    -> 7719034, 2046611

The score is the share of the values found; to name more than asked for costs (see graders/recall.py). After
RULER's multi-key, multi-value and multi-query needles (arXiv:2404.06654), with our own text and words.
"""

import random
from dataclasses import dataclass

from equipoise.evals.types import Message, TaskItem
from equipoise.tasks.card import TaskCard
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.recall import answers_in, recall
from equipoise.tasks.long.base import LENGTH_OPTIONS, Drawn, LongTask, Place, long_card
from equipoise.tasks.long.source import haystack, source_digest
from equipoise.tasks.long.values import VALUE_FORMS, VALUE_WORDS, draw_keys, draw_values, require_form

__all__ = ["NiahMulti"]

KINDS = ("multi_key", "multi_value", "multi_query")
_NEEDLE_BYTES = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class NiahMulti(LongTask):
    """``needles`` sentences: of as many keys, one (multi_key) or all (multi_query) asked, or of one key."""

    kinds: tuple[str, ...] = KINDS
    needles: int = 4
    values: str = "numbers"
    text: str = ""

    def __post_init__(self) -> None:
        LongTask.__post_init__(self)
        require_form(self.values)
        if unknown := [k for k in self.kinds if k not in KINDS]:
            raise ValueError(f"kinds must be some of {', '.join(KINDS)}, not {unknown[0]!r}")
        most = int(min(self.tokens) * self.bytes_per_token) // (2 * _NEEDLE_BYTES)
        if not 2 <= self.needles <= most:
            raise ValueError(f"needles must be 2 to {most} in {min(self.tokens)} tokens, not {self.needles}")

    @property
    def name(self) -> str:
        return "niah_multi"

    @property
    def option_names(self) -> tuple[str, ...]:
        return (*LENGTH_OPTIONS, "kinds", "needles", "values", "text")

    @property
    def digest(self) -> str:
        return source_digest(self.text)

    @property
    def card(self) -> TaskCard:
        return long_card(
            "Several needles in a haystack",
            "RULER's multi-key, multi-value and multi-query needles (arXiv:2404.06654), our text and words, "
            "zero-shot; the score is the share of the values found",
        )

    def draw(self, rng: random.Random, place: Place) -> Drawn:
        kind = self.kinds[int(rng.random() * len(self.kinds))]
        word = VALUE_WORDS[self.values]
        keys = draw_keys(rng, self.needles)
        if kind == "multi_value":
            keys = keys[:1] * self.needles
        values = draw_values(rng, self.needles, self.values)
        depths = [rng.random() for _ in keys]
        article = "A" if kind == "multi_value" else "The"
        strata = {"kind": kind}
        if kind == "multi_key":
            asked, wanted = f"is the secret {word} of the {keys[0]}", values[:1]
            depths[0] = place.depth(rng)
            strata["depth"] = place.label
        elif kind == "multi_value":
            asked, wanted = f"are the {self.needles} secret {word}s of the {keys[0]}", values
        else:
            listed = ", ".join(f"the {key}" for key in keys[:-1]) + f" and the {keys[-1]}"
            asked, wanted = f"are the secret {word}s of {listed}", values
        them = "it" if len(wanted) == 1 else "them"
        return Drawn(
            question=f'What {asked}? End with a line "Answer: ..." that lists {them} alone.',
            target=", ".join(wanted),
            recipe={
                "needles": [
                    [depth, f"{article} secret {word} of the {key} is {value}."]
                    for depth, key, value in zip(depths, keys, values, strict=True)
                ]
            },
            strata=strata,
        )

    def write(self, rng: random.Random, item: TaskItem, size_bytes: int) -> tuple[Message, ...]:
        question: str = item.inputs["question"]
        word = VALUE_WORDS[self.values]
        before = f"The following text is long. Some sentences of it give secret {word}s.\n\n"
        needles = [(float(depth), str(sentence)) for depth, sentence in item.inputs["needles"]]
        size = size_bytes - len(before) - len(question) - 2
        text = f"{before}{haystack(rng, size, needles, self.text)}\n\n{question}"
        return (Message(role="user", content=text),)

    def grade(self, item: TaskItem, answer: str) -> Grade:
        return recall(answers_in(answer, VALUE_FORMS[self.values]), item.target.split(", "))
