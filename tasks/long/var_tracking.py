"""Follow chains of assignments through a long text.

Example (the text in between is of the length that the plan asks for)::

    The following text is long. Some sentences of it give names a value.

    ... The name qxj48 is given the value 48213. ... The name lrb07 is given the value of qxj48. ... The name
    vvk31 is given the value 90122. ...

    Which names have the value 48213? End with a line "Answer: ..." that lists them alone.

    -> qxj48, lrb07

The score is the share of the names found; to name more than asked for costs (see graders/recall.py). After
RULER's variable tracking (arXiv:2404.06654), with our own text and words.
"""

import random
import re
from dataclasses import dataclass

from equipoise.evals.types import Message, TaskItem
from equipoise.tasks.card import TaskCard
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.recall import answers_in, recall
from equipoise.tasks.long.base import LENGTH_OPTIONS, Drawn, LongTask, Place, long_card
from equipoise.tasks.long.source import haystack, source_digest

__all__ = ["VarTracking"]

_NAME = re.compile(r"(?<![a-z0-9])[a-z]{3}\d{2}(?![a-z0-9])")
_LETTERS = "bcdfghjklmnpqrstvwxz"
_BEFORE = "The following text is long. Some sentences of it give names a value.\n\n"
_NEEDLE_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class VarTracking(LongTask):
    """``chains`` chains of ``hops`` assignments behind the first each; one chain is asked for."""

    chains: int = 2
    hops: int = 4
    text: str = ""

    def __post_init__(self) -> None:
        LongTask.__post_init__(self)
        most = int(min(self.tokens) * self.bytes_per_token) // (2 * _NEEDLE_BYTES)
        if self.chains < 1 or self.hops < 1 or self.chains * (self.hops + 1) > most:
            raise ValueError(
                f"{self.chains} chains of {self.hops} hops do not fit into {min(self.tokens)} tokens: at "
                f"least 1 each, and chains * (hops + 1) at most {most}"
            )

    @property
    def name(self) -> str:
        return "var_tracking"

    @property
    def option_names(self) -> tuple[str, ...]:
        return (*LENGTH_OPTIONS, "chains", "hops", "text")

    @property
    def digest(self) -> str:
        return source_digest(self.text)

    @property
    def card(self) -> TaskCard:
        return long_card(
            "Variable tracking",
            "RULER's variable tracking (arXiv:2404.06654), our text and words, zero-shot where RULER has an "
            "example; the score is the share of the names found",
        )

    def draw(self, rng: random.Random, place: Place) -> Drawn:
        values = rng.sample(range(10_000, 100_000), self.chains)
        names: dict[str, None] = {}
        while len(names) < self.chains * (self.hops + 1):
            letters = "".join(_LETTERS[int(rng.random() * len(_LETTERS))] for _ in range(3))
            names[f"{letters}{int(rng.random() * 100):02d}"] = None
        listed = list(names)
        needles: list[list[float | str]] = []
        for chain, value in enumerate(values):
            own = listed[chain * (self.hops + 1) : (chain + 1) * (self.hops + 1)]
            depths = sorted(rng.random() for _ in own)
            needles.append([depths[0], f"The name {own[0]} is given the value {value}."])
            for hop in range(1, len(own)):
                needles.append([depths[hop], f"The name {own[hop]} is given the value of {own[hop - 1]}."])
        return Drawn(
            question=f"Which names have the value {values[0]}? "
            'End with a line "Answer: ..." that lists them alone.',
            target=", ".join(listed[: self.hops + 1]),
            recipe={"needles": needles},
        )

    def write(self, rng: random.Random, item: TaskItem, size_bytes: int) -> tuple[Message, ...]:
        question: str = item.inputs["question"]
        needles = [(float(depth), str(sentence)) for depth, sentence in item.inputs["needles"]]
        size = size_bytes - len(_BEFORE) - len(question) - 2
        text = f"{_BEFORE}{haystack(rng, size, needles, self.text)}\n\n{question}"
        return (Message(role="user", content=text),)

    def grade(self, item: TaskItem, answer: str) -> Grade:
        return recall(answers_in(answer, _NAME), item.target.split(", "))
