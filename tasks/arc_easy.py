"""ARC-Easy by log-likelihood (Clark et al. 2018, arXiv:1803.05457; CC BY-SA 4.0), zero-shot.

Example row (local form)::

    {"query": "Question: Which of these is a fruit?", "choices": ["apple", "stone"], "gold": 0}

Scored as ``acc``: the choice with the highest sum of logprobs after ``Answer:``.
"""

from collections.abc import Sequence
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.types import TaskItem
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.loglikelihood import Continuation, LoglikelihoodTask
from equipoise.tasks.rows import Row, RowSource, load_rows, sample_rows

__all__ = ["ArcEasy"]

SOURCE = RowSource(
    local="multiple_choice/arc_easy.jsonl",
    hub="allenai/ai2_arc",
    config="ARC-Easy",
    split="test",
    revision="210d026faf9955653af8916fad021475a3f00453",
    licence="CC BY-SA 4.0",
    citation="Clark et al. 2018, arXiv:1803.05457",
)


def _parse(row: Row, local: bool) -> tuple[str, list[str], int]:
    if local:
        return str(row["query"]), [str(c) for c in row["choices"]], int(row["gold"])
    choices: dict[str, Any] = row["choices"]
    return f"Question: {row['question']}", list(choices["text"]), choices["label"].index(row["answerKey"])


class ArcEasy(LoglikelihoodTask):
    """2,376 items; three to five choices."""

    name = "arc_easy"
    version = "1"

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """``n`` items drawn by ``seed``; ids are row numbers of the test split.

        Raises
        ------
        UsageError
            The data cannot be loaded, has fewer rows, or a row is malformed (named).
        """
        rows, local = load_rows(SOURCE)
        items = []
        for index, row in sample_rows(rows, n, seed, name=self.name):
            try:
                question, choices, gold = _parse(row, local)
                target = choices[gold]
            except (KeyError, ValueError, IndexError, TypeError) as e:
                raise UsageError(f"arc_easy row {index} is malformed ({e!r}); check the data file") from e
            context = f"{question}\nAnswer:"
            items.append(
                TaskItem(
                    task=self.name,
                    id=f"arc_easy-{index:05d}",
                    inputs={"context": context, "continuations": [f" {c}" for c in choices], "gold": gold},
                    target=target,
                    content_hash=content_hash(context, *choices, str(gold)),
                    cluster_id=f"arc_easy-{index:05d}",
                )
            )
        return items

    def judge(self, item: TaskItem, scored: Sequence[Continuation]) -> tuple[float, str]:
        best = max(range(len(scored)), key=lambda i: scored[i].logprob)
        return float(best == item.inputs["gold"]), str(item.inputs["continuations"][best]).strip()
