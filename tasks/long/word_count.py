"""Aggregate over a whole long list: which words appear most often, or how often does one appear?

Example (frequent; a real list is of the length that the plan asks for)::

    Here is a long list of words.

    harp lantern otter harp brick harp lantern ...

    Which 2 words appear most often in the list? End with a line "Answer: ..." that lists them alone.

    -> harp, lantern

A few words appear ``factor`` times as often as all others. frequent: the share of them that is named, where
more than asked for costs (see graders/recall.py); count: 1 - |error| / truth, at least 0. After RULER's
common words (arXiv:2404.06654), with our own words.
"""

import random
import re
from dataclasses import dataclass

from equipoise.evals.types import Message, TaskItem
from equipoise.tasks.card import TaskCard
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.recall import answers_in, recall
from equipoise.tasks.long.base import CHAT_TOKENS, LENGTH_OPTIONS, Drawn, LongTask, Place, long_card
from equipoise.tasks.long.vocabulary import ADJECTIVES, INTRANSITIVE, NOUNS, VERBS

__all__ = ["WordCount"]

ASKS = ("frequent", "count")
#: With five letters or more most tokenizers have them as one token, and few answers contain them by chance.
_WORDS = tuple(sorted({w for w in (*NOUNS, *ADJECTIVES, *VERBS, *INTRANSITIVE) if len(w) >= 5}))
_WORD = re.compile(r"(?<![a-z])[a-z]{5,20}(?![a-z])")
_NUMBER = re.compile(r"(?<![\d.])\d{1,7}(?![\d])")
_BEFORE = "Here is a long list of words.\n\n"
_QUESTION_BYTES = 160
_MOST_OTHERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class WordCount(LongTask):
    """``frequent`` words appear ``factor`` times as often as each of up to 300 others."""

    tokens: tuple[int, ...] = (2048, 8192)
    bytes_per_token: float = 6.0  # of the words: 6.4 (SmolLM2, Kimi)
    asks: tuple[str, ...] = ("frequent",)
    frequent: int = 5
    factor: int = 4

    def __post_init__(self) -> None:
        LongTask.__post_init__(self)
        if unknown := [a for a in self.asks if a not in ASKS]:
            raise ValueError(f"asks must be some of {', '.join(ASKS)}, not {unknown[0]!r}")
        if not (1 <= self.frequent <= 20 and 2 <= self.factor <= 100):
            raise ValueError(
                f"frequent must be 1 to 20 and factor 2 to 100, not {self.frequent} and {self.factor}"
            )
        most = int(min(self.tokens) * self.bytes_per_token) // 40
        if self.frequent * self.factor > most:
            raise ValueError(
                f"frequent * factor must be at most {most} in {min(self.tokens)} tokens, not "
                f"{self.frequent * self.factor}"
            )

    @property
    def name(self) -> str:
        return "word_count"

    @property
    def option_names(self) -> tuple[str, ...]:
        return (*LENGTH_OPTIONS, "asks", "frequent", "factor")

    @property
    def card(self) -> TaskCard:
        return long_card(
            "Most frequent words of a list",
            "RULER's common words (arXiv:2404.06654), our words, zero-shot, RULER has an example; graded "
            "by share of the words, or by how near a count is",
        )

    def draw(self, rng: random.Random, place: Place) -> Drawn:
        ask = self.asks[int(rng.random() * len(self.asks))]
        size = int((place.tokens - CHAT_TOKENS) * self.bytes_per_token) - len(_BEFORE) - _QUESTION_BYTES
        words = rng.sample(_WORDS, self.frequent + _MOST_OTHERS)
        often, others = words[: self.frequent], words[self.frequent :]
        of_often = self.factor * sum(len(w) + 1 for w in often)
        while len(others) > 1 and of_often + sum(len(w) + 1 for w in others) > size:
            others.pop()
        rounds = max(1, size // (of_often + sum(len(w) + 1 for w in others)))
        if ask == "count":
            target = str(rounds * self.factor)
            question = f'How many times does the word "{often[0]}" appear in the list?'
            them = "gives the number"
        else:
            target = ", ".join(often)
            question = f"Which {self.frequent} words appear most often in the list?"
            them = "lists them"
        return Drawn(
            question=f'{question} End with a line "Answer: ..." that {them} alone.',
            target=target,
            recipe={"often": often, "others": others, "rounds": rounds, "factor": self.factor},
            strata={"ask": ask} if len(self.asks) > 1 else {},
        )

    def write(self, rng: random.Random, item: TaskItem, size_bytes: int) -> tuple[Message, ...]:
        inputs = item.inputs
        words = [*inputs["often"] * inputs["factor"], *inputs["others"]] * inputs["rounds"]
        rng.shuffle(words)
        text = f"{_BEFORE}{' '.join(words)}\n\n{inputs['question']}"
        return (Message(role="user", content=text),)

    def grade(self, item: TaskItem, answer: str) -> Grade:
        if item.target.isdigit():
            return _grade_count(answers_in(answer, _NUMBER), int(item.target))
        listed = {*item.inputs["often"], *item.inputs["others"]}
        named = answers_in(answer, _WORD)
        found = [w for w in named if w in listed]
        if named and not found:
            return Grade(value=0.0, extracted=", ".join(named), reason="no word of the list is named")
        return recall(found, item.target.split(", "))


def _grade_count(found: list[str], truth: int) -> Grade:
    if not found:
        return Grade(value=0.0, extracted=None, reason="no number is in the answer")
    given = int(found[-1])
    value = max(0.0, 1.0 - abs(given - truth) / truth)
    return Grade(value=value, extracted=found[-1], reason="" if given == truth else f"it is {truth}")
