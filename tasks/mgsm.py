"""MGSM: 250 problems of GSM8K in eleven languages (Shi et al. 2022, arXiv:2210.03057).

Example row (local form: two columns without names; on the hub ``question`` and ``answer_number``)::

    Ein Kleid erfordert 2 Knäuel blaue Wolle und halb so viel weiße Wolle. Wie viele Knäuel braucht man
    insgesamt?	3

The languages have the same problems, row by row: a problem is a cluster.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from equipoise.evals.types import TaskItem
from equipoise.tasks.advice import REASONING
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.declared import NumberTask
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.number import grade_number, read_number
from equipoise.tasks.rows import Row, RowSource

__all__ = ["LANGUAGES", "Mgsm"]

LANGUAGES = ("bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")
_LICENCE = "CC BY 4.0 (its authors); CC BY-SA 4.0 (the hub's copy)"
#: Where 1.234 is a thousand and 1,5 one and a half.
_DECIMAL_COMMA = frozenset({"de", "es", "fr", "ru"})


@dataclass(frozen=True, kw_only=True)
class Mgsm(NumberTask):
    """The problems in ``languages``."""

    languages: tuple[str, ...] = LANGUAGES
    sources: tuple[RowSource, ...] = field(init=False)

    option_names: ClassVar[tuple[str, ...]] = ("languages",)
    name = "mgsm"
    version = "1"
    card: ClassVar[TaskCard] = TaskCard(
        title="MGSM: word problems in eleven languages",
        group="math",
        protocol="chat",
        licence=_LICENCE,
        citation="Shi et al. 2022, arXiv:2210.03057",
        items=2_750,
        clusters="problem, which all languages share",
        advice=REASONING,
        note="Zero-shot; the instruction is in English, the problem in its language. lm-eval asks for a "
        "completion in that language, simple-evals translates the instruction too.",
    )

    def __post_init__(self) -> None:
        if not set(self.languages) <= set(LANGUAGES) or len(set(self.languages)) != len(self.languages):
            raise ValueError(
                f"languages must be different ones of {', '.join(LANGUAGES)}; got {self.languages}"
            )
        object.__setattr__(self, "sources", tuple(_source(language) for language in self.languages))

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        question, target = (row["0"], row["1"]) if local else (row["question"], row["answer_number"])
        value = read_number(str(target))
        if value is None:
            raise ValueError(f"the answer {str(target)[:80]!r} is not a number")
        return ChatQuestion(
            prompt="Solve the problem below, reasoning step by step in the language that it is written in. "
            'Then finish with a line of its own that reads "ANSWER: N", where N is the result as a number in '
            f"digits.\n\n{str(question).strip()}",
            target=str(value),
            extra={"language": source.label},
            strata={"language": source.label},
        )

    def _item(self, source: RowSource, index: int, row: Row, local: bool) -> TaskItem:
        return replace(super()._item(source, index, row, local), cluster_id=f"{self.name}-{index:05d}")

    def grade(self, item: TaskItem, answer: str) -> Grade:
        return grade_number(answer, item.target, decimal_comma=item.inputs["language"] in _DECIMAL_COMMA)


def _source(language: str) -> RowSource:
    return RowSource(
        local=f"mgsm/mgsm_{language}.tsv",
        hub="juletxara/mgsm",
        config=language,
        split="test",
        revision="b2f13d426afe3be8d69a7e739b36724db8b66bbc",
        licence=_LICENCE,
        citation="Shi et al. 2022, arXiv:2210.03057",
        label=language,
    )
