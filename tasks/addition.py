"""Add two numbers; the sum is written least significant digit first.

Example::

    user:      A:538+274
    assistant: 218

(538 + 274 = 812.) Reversed digits let each be decided when it is written, carry included.
"""

import random
from dataclasses import dataclass
from typing import ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.generated import Draw, SingleTurnTask, generated_card

__all__ = ["Addition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition(SingleTurnTask):
    """Two numbers of the same length, zero-padded; the length is drawn evenly from ``digits``.

    The embedded models were trained up to 4 digits.
    """

    digits: tuple[int, ...] = (3, 3, 3, 3, 3, 4, 4, 5)

    card: ClassVar[TaskCard] = generated_card("Add two numbers, digits reversed")

    @property
    def name(self) -> str:
        return "addition"

    def draw(self, rng: random.Random) -> Draw:
        digits = rng.choice(self.digits)
        a, b = rng.randrange(10**digits), rng.randrange(10**digits)
        question = f"A:{a:0{digits}d}+{b:0{digits}d}"
        return Draw(turns=((question, str(a + b)[::-1]),), split_key=question, strata={"digits": str(digits)})
