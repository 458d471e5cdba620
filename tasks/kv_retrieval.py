"""Find the value of one key in a table of a few hundred tokens.

Example (a real one has 40 to 64 pairs)::

    user:      K:ca=07;ac=81;lk=55;ka=12;ck=90;?ka
    assistant: 12

Keys share their few letters (``ca``, ``ac``, ``ka``), so a slightly wrong key in the cache points at
a neighbour.
"""

import random
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.generated import Draw, SingleTurnTask, generated_card

__all__ = ["KvRetrieval", "draw_keys", "table_text"]


def draw_keys(rng: random.Random, n: int, alphabet_size: int) -> list[str]:
    """``n`` distinct two-letter keys over the first ``alphabet_size`` letters, in random order."""
    codes = rng.sample(range(alphabet_size**2), n)
    letters = string.ascii_lowercase
    return [letters[code // alphabet_size] + letters[code % alphabet_size] for code in codes]


def table_text(table: Mapping[str, str]) -> str:
    """``K:key=value;`` for every pair, in order."""
    return "K:" + "".join(f"{key}={value};" for key, value in table.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRetrieval(SingleTurnTask):
    """Tables of ``min_pairs`` .. ``max_pairs`` pairs, keys over ``alphabet_size`` letters."""

    min_pairs: int = 40
    max_pairs: int = 64
    alphabet_size: int = 12

    card: ClassVar[TaskCard] = generated_card("Find a value in a table by its key")

    @property
    def name(self) -> str:
        return "kv_retrieval"

    def draw(self, rng: random.Random) -> Draw:
        keys = draw_keys(rng, rng.randint(self.min_pairs, self.max_pairs), self.alphabet_size)
        table = {key: f"{rng.randrange(100):02d}" for key in keys}
        asked = rng.choice(keys)
        text = table_text(table)
        third = ("first", "middle", "last")[3 * keys.index(asked) // len(keys)]
        return Draw(
            turns=((f"{text}?{asked}", table[asked]),), split_key=text, strata={"depth": f"{third} third"}
        )
