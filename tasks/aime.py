"""AIME 2024, 2025 and 2026: 30 problems a year whose answers are integers from 0 to 999.

Example row (of 2026, local and hub form)::

    {"problem_idx": 1, "answer": 277, "problem": "Patrick started walking at a constant rate along a
     straight road from his school to the park. ..."}

2024 and 2025 have the same fields but for the number, which is ``id`` there.
"""

import re
from dataclasses import dataclass, field
from typing import ClassVar

from equipoise.tasks.advice import AIME
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.declared import NumberTask
from equipoise.tasks.rows import Row, RowSource

__all__ = ["Aime"]

_ANSWER = re.compile(r"(\d{1,3})(?:\^\{?\\circ\}?)?")  # some copies keep a unit
_CITATION = "Mathematical Association of America, American Invitational Mathematics Examination"
#: year: hub, split, revision, licence
_DATA = {
    2024: (
        "HuggingFaceH4/aime_2024",
        "train",
        "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        "not stated on the hub",
    ),
    2025: ("math-ai/aime25", "test", "563bb8404243c5f09de6ec262f2db674fe5bce9b", "Apache-2.0"),
    2026: (
        "MathArena/aime_2026",
        "train",
        "d2de22f3c656b4f56cf8981212186377d1e23bc3",
        "CC BY-NC-SA 4.0",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Aime(NumberTask):
    """The problems of ``years``."""

    years: tuple[int, ...] = (2024, 2025, 2026)
    sources: tuple[RowSource, ...] = field(init=False)

    option_names: ClassVar[tuple[str, ...]] = ("years",)
    name = "aime"
    version = "1"
    max_new_tokens = 32_768
    card: ClassVar[TaskCard] = TaskCard(
        title="AIME: competition problems with integer answers",
        group="math",
        protocol="chat",
        licence="2024: not stated on the hub; 2025: Apache-2.0; 2026: CC BY-NC-SA 4.0",
        citation=_CITATION,
        items=90,
        advice=AIME,
        note="Zero-shot. So few items decide only with many repeats, and then about these problems alone.",
    )

    def __post_init__(self) -> None:
        if not set(self.years) <= set(_DATA) or len(set(self.years)) != len(self.years):
            raise ValueError(
                f"years must be different ones of {', '.join(map(str, _DATA))}; got {self.years}"
            )
        object.__setattr__(self, "sources", tuple(_source(year) for year in self.years))

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        answer = _ANSWER.fullmatch(str(row["answer"]).strip())
        if answer is None:
            raise ValueError(f"answer {row['answer']!r} is no integer from 0 to 999")
        return ChatQuestion(
            prompt="Solve the problem. Reason step by step, then finish with a line of its own that reads "
            f'"ANSWER: N", where N is an integer from 0 to 999.\n\n{str(row["problem"]).strip()}',
            target=str(int(answer[1])),
        )


def _source(year: int) -> RowSource:
    hub, split, revision, licence = _DATA[year]
    return RowSource(
        local=f"aime/{year}.jsonl",
        hub=hub,
        config="default",
        split=split,
        revision=revision,
        licence=licence,
        citation=_CITATION,
        label=str(year),
    )
