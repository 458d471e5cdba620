"""LAMBADA, OpenAI's test split: the last word of a passage (Paperno et al. 2016, arXiv:1606.06031).

Example row (local form)::

    {"context": "... his mouth curved in a confident grin, I don't care about", "continuation": "signs"}

Correct when greedy decoding would give exactly the word's tokens. CC BY 4.0.
"""

from collections.abc import Sequence

from equipoise.evals.errors import UsageError
from equipoise.evals.types import TaskItem
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.loglikelihood import Continuation, LoglikelihoodTask
from equipoise.tasks.rows import Row, RowSource, load_rows, sample_rows

__all__ = ["Lambada"]

SOURCE = RowSource(
    local="multiple_choice/lambada_openai.jsonl",
    hub="EleutherAI/lambada_openai",
    config="default",
    split="test",
    revision="900124bf3b8235c6daf21033af9948b3f07346c4",
    licence="CC BY 4.0",
    citation="Paperno et al. 2016, arXiv:1606.06031",
)


def _parse(row: Row, local: bool) -> tuple[str, str]:
    if local:
        return str(row["context"]), str(row["continuation"])
    context, word = str(row["text"]).rsplit(" ", 1)
    return context, word


class Lambada(LoglikelihoodTask):
    """5,153 passages."""

    name = "lambada"
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
                context, word = _parse(row, local)
            except (KeyError, ValueError, TypeError) as e:
                raise UsageError(f"lambada row {index} is malformed ({e!r}); check the data file") from e
            items.append(
                TaskItem(
                    task=self.name,
                    id=f"lambada-{index:05d}",
                    inputs={"context": context, "continuations": [f" {word}"]},
                    target=word,
                    content_hash=content_hash(context, word),
                    cluster_id=f"lambada-{index:05d}",
                )
            )
        return items

    def judge(self, item: TaskItem, scored: Sequence[Continuation]) -> tuple[float, str]:
        (only,) = scored
        return float(only.is_greedy), item.target if only.is_greedy else "another word"
