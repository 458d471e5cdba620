"""Copy a random string.

Example::

    user:      C:qhzvtxkcwpbmrdqs
    assistant: qhzvtxkcwpbmrdqs
"""

import random
import string
from dataclasses import dataclass
from typing import ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.generated import Draw, SingleTurnTask, generated_card

__all__ = ["Copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(SingleTurnTask):
    """Strings of ``min_length`` .. ``max_length`` letters out of the first ``alphabet_size``.

    The longest are longer than any the embedded models were trained on (24).
    """

    min_length: int = 8
    max_length: int = 29
    alphabet_size: int = 26

    card: ClassVar[TaskCard] = generated_card("Copy a random string")

    @property
    def name(self) -> str:
        return "copy"

    def draw(self, rng: random.Random) -> Draw:
        letters = string.ascii_lowercase[: self.alphabet_size]
        text = "".join(rng.choices(letters, k=rng.randint(self.min_length, self.max_length)))
        question = f"C:{text}"
        return Draw(turns=((question, text),), split_key=question)
