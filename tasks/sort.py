"""Sort the letters of a string; repeated letters stay repeated.

Example::

    user:      S:tkbqaat
    assistant: aabkqtt
"""

import random
import string
from dataclasses import dataclass
from typing import ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.generated import Draw, SingleTurnTask, generated_card

__all__ = ["Sort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(SingleTurnTask):
    """Strings of ``min_length`` .. ``max_length`` letters; the embedded models were trained up to 12."""

    min_length: int = 4
    max_length: int = 14

    card: ClassVar[TaskCard] = generated_card("Sort the letters of a string")

    @property
    def name(self) -> str:
        return "sort"

    def draw(self, rng: random.Random) -> Draw:
        text = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(self.min_length, self.max_length)))
        question = f"S:{text}"
        return Draw(turns=((question, "".join(sorted(text))),), split_key=question)
