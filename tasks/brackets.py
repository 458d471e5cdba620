"""Close all open brackets.

Example::

    user:      B:([{}<(
    assistant: )>])
"""

import random
from dataclasses import dataclass
from typing import ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.generated import Draw, SingleTurnTask, generated_card

__all__ = ["Brackets"]

_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Brackets(SingleTurnTask):
    """Strings of ``min_length`` .. ``max_length`` brackets; each closes one with ``close_probability``."""

    min_length: int = 8
    max_length: int = 24
    close_probability: float = 0.42

    card: ClassVar[TaskCard] = generated_card("Close all open brackets")

    @property
    def name(self) -> str:
        return "brackets"

    def draw(self, rng: random.Random) -> Draw:
        text = ""
        open_brackets: list[str] = []
        for _ in range(rng.randint(self.min_length, self.max_length)):
            if open_brackets and rng.random() < self.close_probability:
                text += _CLOSING[open_brackets.pop()]
            else:
                open_brackets.append(rng.choice("([{<"))
                text += open_brackets[-1]
        if not open_brackets:
            open_brackets.append("(")
            text += "("
        question = f"B:{text}"
        answer = "".join(_CLOSING[bracket] for bracket in reversed(open_brackets))
        return Draw(turns=((question, answer),), split_key=question)
