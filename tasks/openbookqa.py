"""OpenBookQA by log-likelihood: elementary science (Mihaylov et al. 2018, arXiv:1809.02789). Zero-shot.

Example row (local form; on the hub ``question_stem``, ``choices`` of ``text`` and ``label``, ``answerKey``)::

    {"query": "Predators eat", "choices": ["lions", "humans", "bunnies", "grass"], "gold": 2}
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.loglikelihood import Query
from equipoise.tasks.multiple_choice import MultipleChoiceTask, choice_query
from equipoise.tasks.rows import Row, RowSource

__all__ = ["OpenBookQA"]


@dataclass(frozen=True, kw_only=True)
class OpenBookQA(MultipleChoiceTask):
    """Which of four choices does the model find most likely to follow?"""

    name = "openbookqa"
    version = "1"
    source = RowSource(
        local="multiple_choice/openbook_qa.jsonl",
        hub="allenai/openbookqa",
        config="main",
        split="test",
        revision="388097ea7776314e93a529163e0fea805b8a6454",
        licence="not stated on the hub",
        citation="Mihaylov et al. 2018, arXiv:1809.02789",
    )
    card: ClassVar[TaskCard] = TaskCard(
        title="OpenBookQA: elementary science",
        group="multiple choice",
        protocol="loglikelihood",
        licence="not stated on the hub",
        citation="Mihaylov et al. 2018, arXiv:1809.02789",
        items=500,
        note="lm-eval's openbookqa, zero-shot: the book's facts are not given. Published figures are mostly "
        "acc_norm.",
    )

    def parse(self, row: Row, *, local: bool) -> Query:
        if local:
            stem, choices, gold = str(row["query"]), [str(c) for c in row["choices"]], int(row["gold"])
        else:
            listed: dict[str, Any] = row["choices"]
            stem, choices = str(row["question_stem"]), [str(c) for c in listed["text"]]
            gold = listed["label"].index(str(row["answerKey"]).lstrip())
        return choice_query(stem, choices, gold)
