"""Endless English-looking prose from a grammar and a vocabulary, the same for the same seed everywhere.

Example::

    Late in the rainy week the gilded otter measured 41 lanterns near Kelaham, though a weary mason of
    Marinaric never noticed the eastern wall. "The kettle disappeared," said Jorveson sadly.

It says nothing that anybody could know, so what is hidden in it can only be read. Numbers have at most three
digits. `random.Random.random` alone is drawn from, whose sequence Python keeps from version to version.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice

from equipoise.tasks.long.vocabulary import (
    ADJECTIVES,
    ADVERBS,
    INTRANSITIVE,
    NAMES,
    NOUNS,
    PLACES,
    PREPOSITIONS,
    TIMES,
    VERBS,
)

__all__ = ["grammar_digest", "sentences", "uniform"]

_JOINTS = (", and ", ", but ", ", while ", ", so ", ", because ", ", though ", "; ", ", until ", ", where ")
_SAID = ("said", "answered", "wrote", "insisted", "whispered", "repeated", "noted", "replied")
_OPENERS = (
    "In those days",
    "According to the record",
    "As usual",
    "To everyone's surprise",
    "On the way home",
    "For no clear reason",
    "In the end",
    "By chance",
    "With some effort",
    "That evening",
)


def uniform(rng: random.Random) -> Callable[[Sequence[str]], str]:
    """A function that draws one element of a sequence, all alike."""
    draw = rng.random
    return lambda pool: pool[int(draw() * len(pool))]


def sentences(rng: random.Random) -> Iterator[str]:
    """Sentences without end, ASCII, 20 to 250 characters each."""
    pick, draw = uniform(rng), rng.random

    def thing() -> str:
        kind = draw()
        if kind < 0.15:
            return pick(NAMES)
        if kind < 0.25:
            return f"{2 + int(draw() * 997)} {_plural(pick(NOUNS))}"
        noun = pick(NOUNS)
        if draw() < 0.6:
            noun = f"{pick(ADJECTIVES)} {noun}"
        article = "the" if draw() < 0.6 else ("an" if noun[0] in "aeiou" else "a")
        if kind < 0.40:
            return f"{article} {noun} of {pick(NAMES if draw() < 0.5 else PLACES)}"
        if kind < 0.50:
            return f"the {noun}'s {pick(NOUNS)}"
        return f"{article} {noun}"

    def place() -> str:
        return f"in {pick(PLACES)}" if draw() < 0.3 else f"{pick(PREPOSITIONS)} {thing()}"

    def clause() -> str:
        subject = thing()
        adverb = f"{pick(ADVERBS)} " if draw() < 0.25 else ""
        if draw() < 0.3:
            return f"{subject} {adverb}{pick(INTRANSITIVE)} {place()}"
        tail = f" {place()}" if draw() < 0.45 else ""
        return f"{subject} {adverb}{pick(VERBS)} {thing()}{tail}"

    while True:
        kind = draw()
        text = clause()
        if kind < 0.3:
            text = f"{text}{pick(_JOINTS)}{clause()}"
        elif kind < 0.45:
            text = f"{pick(TIMES)} {text}"
        elif kind < 0.55:
            text = f"{pick(_OPENERS)}, {text}"
        elif kind < 0.65:
            yield f'"{_capital(text)}," {pick(_SAID)} {pick(NAMES)} {pick(ADVERBS)}.'
            continue
        yield f"{_capital(text)}."


@cache
def grammar_digest() -> str:
    """What stands for the prose in content hashes: another grammar or vocabulary gives another one."""
    sample = "\n".join(islice(sentences(random.Random("digest")), 2000))
    return hashlib.sha256(sample.encode()).hexdigest()[:16]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
