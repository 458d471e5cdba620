"""ARC-Easy by log-likelihood (Clark et al. 2018, arXiv:1803.05457; CC BY-SA 4.0), zero-shot.

Example row (local form)::

    {"query": "Question: Which of these is a fruit?", "choices": ["apple", "stone"], "gold": 0}

By default scored as ``acc``: the choice with the highest sum of logprobs after ``Answer:``. 2,376 items of
three to five choices.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.loglikelihood import Query
from equipoise.tasks.multiple_choice import MultipleChoiceTask, choice_query
from equipoise.tasks.rows import Row, RowSource

__all__ = ["ArcEasy", "arc_query", "arc_source"]


def arc_source(config: str, *, local: str) -> RowSource:
    """The test questions of one of ARC's two parts."""
    return RowSource(
        local=local,
        hub="allenai/ai2_arc",
        config=config,
        split="test",
        revision="210d026faf9955653af8916fad021475a3f00453",
        licence="CC BY-SA 4.0",
        citation="Clark et al. 2018, arXiv:1803.05457",
    )


def arc_query(row: Row, *, local: bool) -> Query:
    """A question of either part."""
    if local:
        question, choices, gold = str(row["query"]), [str(c) for c in row["choices"]], int(row["gold"])
    else:
        listed: dict[str, Any] = row["choices"]
        question, choices = f"Question: {row['question']}", [str(c) for c in listed["text"]]
        gold = listed["label"].index(row["answerKey"])
    return choice_query(f"{question}\nAnswer:", choices, gold)


@dataclass(frozen=True, kw_only=True)
class ArcEasy(MultipleChoiceTask):
    """Which choice does the model find most likely?"""

    name = "arc_easy"
    version = "1"
    source = arc_source("ARC-Easy", local="multiple_choice/arc_easy.jsonl")
    card: ClassVar[TaskCard] = TaskCard(
        title="ARC-Easy: grade-school science",
        group="multiple choice",
        protocol="loglikelihood",
        licence="CC BY-SA 4.0",
        citation="Clark et al. 2018, arXiv:1803.05457",
        items=2_376,
        note="lm-eval's arc_easy, zero-shot.",
    )

    def parse(self, row: Row, *, local: bool) -> Query:
        return arc_query(row, local=local)
