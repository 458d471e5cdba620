"""LAMBADA, OpenAI's test split: the last word of a passage (Paperno et al. 2016, arXiv:1606.06031).

Example row (local form)::

    {"context": "... his mouth curved in a confident grin, I don't care about", "continuation": "signs"}

Correct when greedy decoding would give exactly the word's tokens. 5,153 passages. CC BY 4.0.
"""

from collections.abc import Sequence

from equipoise.evals.types import Output, TaskItem
from equipoise.tasks.card import TaskCard
from equipoise.tasks.loglikelihood import Continuation, LoglikelihoodTask, Query, likely_replies
from equipoise.tasks.rows import Row, RowSource

__all__ = ["Lambada"]


class Lambada(LoglikelihoodTask):
    """Would the model write the passage's last word?"""

    name = "lambada"
    version = "1"
    source = RowSource(
        local="multiple_choice/lambada_openai.jsonl",
        hub="EleutherAI/lambada_openai",
        config="default",
        split="test",
        revision="900124bf3b8235c6daf21033af9948b3f07346c4",
        licence="CC BY 4.0",
        citation="Paperno et al. 2016, arXiv:1606.06031",
    )

    card = TaskCard(
        title="LAMBADA: the last word of a passage",
        group="multiple choice",
        protocol="loglikelihood",
        licence="CC BY 4.0",
        citation="Paperno et al. 2016, arXiv:1606.06031",
        items=5_153,
        note="lm-eval's lambada_openai, its acc.",
    )

    def parse(self, row: Row, *, local: bool) -> Query:
        if local:
            context, word = str(row["context"]), str(row["continuation"])
        else:
            context, word = str(row["text"]).rsplit(" ", 1)
        return Query(context=context, continuations=(f" {word}",), target=word)

    def judge(self, item: TaskItem, scored: Sequence[Continuation]) -> tuple[float, str]:
        (only,) = scored
        return float(only.is_greedy), item.target if only.is_greedy else "another word"

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        return likely_replies(item, [-1.0], greedy=True)

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        return likely_replies(item, [-1.0], greedy=False)
