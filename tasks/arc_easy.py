"""ARC-Easy by log-likelihood (Clark et al. 2018, arXiv:1803.05457; CC BY-SA 4.0), zero-shot.

Example row (local form)::

    {"query": "Question: Which of these is a fruit?", "choices": ["apple", "stone"], "gold": 0}

Scored as ``acc``: the choice with the highest sum of logprobs after ``Answer:``. 2,376 items of three
to five choices.
"""

from collections.abc import Sequence
from typing import Any

from equipoise.evals.types import TaskItem
from equipoise.tasks.loglikelihood import Continuation, LoglikelihoodTask, Query
from equipoise.tasks.rows import Row, RowSource

__all__ = ["ArcEasy"]


class ArcEasy(LoglikelihoodTask):
    """Which choice does the model find most likely?"""

    name = "arc_easy"
    version = "1"
    source = RowSource(
        local="multiple_choice/arc_easy.jsonl",
        hub="allenai/ai2_arc",
        config="ARC-Easy",
        split="test",
        revision="210d026faf9955653af8916fad021475a3f00453",
        licence="CC BY-SA 4.0",
        citation="Clark et al. 2018, arXiv:1803.05457",
    )

    def parse(self, row: Row, *, local: bool) -> Query:
        if local:
            question, choices, gold = str(row["query"]), [str(c) for c in row["choices"]], int(row["gold"])
        else:
            listed: dict[str, Any] = row["choices"]
            question, choices = f"Question: {row['question']}", list(listed["text"])
            gold = listed["label"].index(row["answerKey"])
        return Query(
            context=f"{question}\nAnswer:",
            continuations=tuple(f" {c}" for c in choices),
            target=choices[gold],
        )

    def judge(self, item: TaskItem, scored: Sequence[Continuation]) -> tuple[float, str]:
        best = max(range(len(scored)), key=lambda i: scored[i].logprob)
        chosen = str(item.inputs["continuations"][best]).removeprefix(" ")
        return float(chosen == item.target), chosen
