"""COPA by log-likelihood: the cause or effect of an event (Roemmele et al. 2011, of SuperGLUE). Zero-shot.

Example row (local form; on the hub ``premise``, ``question``, ``choice1``, ``choice2``, ``label``)::

    {"query": "The man turned on the faucet, therefore", "gold": 1, "choices": ["the toilet filled with
     water.", "water flowed from the spout."]}
"""

from dataclasses import dataclass
from typing import ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.loglikelihood import Query
from equipoise.tasks.multiple_choice import MultipleChoiceTask, choice_query
from equipoise.tasks.rows import Row, RowSource

__all__ = ["Copa"]

_CONNECTORS = {"cause": "because", "effect": "therefore"}


@dataclass(frozen=True, kw_only=True)
class Copa(MultipleChoiceTask):
    """Which of two sentences does the model find more likely to follow?"""

    metrics: ClassVar[tuple[str, ...]] = ("acc",)
    name = "copa"
    version = "1"
    source = RowSource(
        local="multiple_choice/copa.jsonl",
        hub="aps/super_glue",
        config="copa",
        split="validation",
        revision="3de24cf8022e94f4ee4b9d55a6f539891524d646",
        licence="BSD 2-Clause",
        citation="Roemmele et al. 2011, Choice of Plausible Alternatives; arXiv:1905.00537",
    )
    card: ClassVar[TaskCard] = TaskCard(
        title="COPA: causes and effects",
        group="multiple choice",
        protocol="loglikelihood",
        licence="BSD 2-Clause",
        citation="Roemmele et al. 2011, Choice of Plausible Alternatives; arXiv:1905.00537",
        items=100,
        note="lm-eval's copa, zero-shot, the validation split; as there, two spaces come before a choice.",
    )

    def parse(self, row: Row, *, local: bool) -> Query:
        if local:
            premise, comma, connector = str(row["query"]).rpartition(", ")
            if not comma:
                raise ValueError("query does not end with a comma and a connector")
            choices, gold = [str(c) for c in row["choices"]], int(row["gold"])
        else:
            premise, connector = str(row["premise"]).strip()[:-1], _CONNECTORS[row["question"]]
            choices, gold = [str(row["choice1"]), str(row["choice2"])], int(row["label"])
        # The second space is lm-eval's.
        return choice_query(f"{premise} {connector}", [f" {c[:1].lower()}{c[1:]}" for c in choices], gold)
