"""Tell like from like: a long conversation asks for the same kind of text several times; repeat one of them.

Example (a real one has as many exchanges as the plan's length holds)::

    user:      Write a letter about a lantern.
    assistant: A drum almost smiled in Barostead. ...
    user:      Write a diary entry about an otter.
    assistant: The statue's package offered Deloric. ...
    user:      Write a letter about a lantern.
    assistant: Lorsa sheltered a brass oak. ...
    user:      Begin with the code k7xw2p and repeat, word for word, the 2nd letter about a lantern.

    -> k7xw2p Lorsa sheltered a brass oak. ...

The score is the similarity of the words (2 x matched / all, as difflib has it), 0 without the code. After
multi-round coreference (MRCR; Vodrahalli et al. 2024, arXiv:2409.12640), with our own texts and words.
"""

import difflib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from equipoise.evals.types import Message, Output, TaskItem
from equipoise.tasks.card import TaskCard
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.long.base import LENGTH_OPTIONS, Drawn, LongTask, Place, long_card
from equipoise.tasks.long.prose import sentences, uniform
from equipoise.tasks.long.vocabulary import NOUNS
from equipoise.tasks.reference import reply

__all__ = ["Coreference"]

_FORMS = ("letter", "diary entry", "short story", "poem", "report", "speech", "review", "riddle")
_ORDINALS = ("1st", "2nd", "3rd", *(f"{i}th" for i in range(4, 21)))
_CODE = "bcdfghjkmnpqrstvwxz23456789"
_PIECE_BYTES = 380
_EXCHANGE_BYTES = _PIECE_BYTES + 60  # on average, with its request and what a chat template adds
_QUESTION_BYTES = 200
_CODE_WITHIN = 200  # characters
_MAX_WORDS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Coreference(LongTask):
    """``same`` exchanges ask for the same form and topic; one of them is to be repeated."""

    same: int = 4

    def __post_init__(self) -> None:
        LongTask.__post_init__(self)
        most = min(len(_ORDINALS), self._exchanges(min(self.tokens)) // 2)
        if most < 2:
            raise ValueError(f"tokens must be at least {self._least()}, not {min(self.tokens)}")
        if not 2 <= self.same <= most:
            raise ValueError(f"same must be 2 to {most} in {min(self.tokens)} tokens, not {self.same}")

    @property
    def name(self) -> str:
        return "coreference"

    @property
    def option_names(self) -> tuple[str, ...]:
        return (*LENGTH_OPTIONS, "same")

    @property
    def card(self) -> TaskCard:
        return long_card(
            "Multi-round coreference",
            "after MRCR (arXiv:2409.12640), our own texts and words; similarity of words, OpenAI's MRCR "
            "has it of characters",
        )

    def draw(self, rng: random.Random, place: Place) -> Drawn:
        pick = uniform(rng)
        number = self._exchanges(place.tokens)
        asked = min(int(place.depth(rng) * number), number - 1)
        at = sorted([asked, *rng.sample([i for i in range(number) if i != asked], self.same - 1)])
        form, topic = pick(_FORMS), pick(NOUNS)
        code = "".join(pick(_CODE) for _ in range(6))
        seed = f"{rng.getrandbits(64):016x}"
        ordinal = _ORDINALS[at.index(asked)]
        return Drawn(
            question=f"Begin with the code {code} and repeat, word for word, the {ordinal} {form} about "
            f"{_article(topic)}.",
            target=f"{code} {_piece(seed, asked)}",
            recipe={"form": form, "topic": topic, "at": at, "exchanges": number, "seed": seed},
            strata={"depth": place.label},
        )

    def write(self, rng: random.Random, item: TaskItem, size_bytes: int) -> tuple[Message, ...]:
        return tuple(_conversation(rng, item))

    def grade(self, item: TaskItem, answer: str) -> Grade:
        code, wanted = item.target.split(" ", 1)
        at = answer[: _CODE_WITHIN + len(code)].find(code)
        if at < 0:
            return Grade(value=0.0, extracted=None, reason="the answer does not begin with the code")
        given = answer[at + len(code) : at + len(code) + 20 * _MAX_WORDS].split()[:_MAX_WORDS]
        value = difflib.SequenceMatcher(None, wanted.split(), given, autojunk=False).ratio()
        return Grade(
            value=value, extracted=" ".join(given), reason="" if value == 1.0 else "not word for word"
        )

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """The text with its code."""
        return (reply(item.target),)

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """Another exchange's text, with the right code."""
        another = next(i for i in item.inputs["at"] if _piece(item.inputs["seed"], i) not in item.target)
        return (reply(f"{item.target.split(' ', 1)[0]} {_piece(item.inputs['seed'], another)}"),)

    def _exchanges(self, tokens: int) -> int:
        return (int(tokens * self.bytes_per_token) - _QUESTION_BYTES) // _EXCHANGE_BYTES

    def _least(self) -> int:
        return int((4 * _EXCHANGE_BYTES + _QUESTION_BYTES) / self.bytes_per_token) + 1


def _conversation(rng: random.Random, item: TaskItem) -> Iterator[Message]:
    inputs = item.inputs
    pick, at, asked = uniform(rng), set(inputs["at"]), (inputs["form"], inputs["topic"])
    for i in range(inputs["exchanges"]):
        form, topic = asked
        while i not in at and (form, topic) == asked:
            form, topic = pick(_FORMS), pick(NOUNS)
        yield Message(role="user", content=f"Write a {form} about {_article(topic)}.")
        yield Message(role="assistant", content=_piece(inputs["seed"], i))
    yield Message(role="user", content=inputs["question"])


def _piece(seed: str, number: int) -> str:
    """The text of one exchange: whole sentences."""
    found: list[str] = []
    left = _PIECE_BYTES
    for sentence in sentences(random.Random(f"{seed}-{number}")):
        left -= len(sentence) + 1
        if left < 0:
            break
        found.append(sentence)
    return " ".join(found)


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
