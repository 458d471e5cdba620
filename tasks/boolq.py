"""BoolQ by log-likelihood: yes or no, by a passage (Clark et al. 2019, arXiv:1905.10044; CC BY-SA 3.0).

Example row (local form; on the hub ``passage``, ``question``, ``label``), shortened::

    {"query": "Passage: All biomass goes through at least some of these steps: ...\\nQuestion: does ethanol
     take more energy make that produces?", "choices": ["no", "yes"], "gold": 0}
"""

from dataclasses import dataclass
from typing import ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.loglikelihood import Query
from equipoise.tasks.multiple_choice import MultipleChoiceTask, choice_query
from equipoise.tasks.rows import Row, RowSource

__all__ = ["BoolQ"]

_CHOICES = ("no", "yes")


@dataclass(frozen=True, kw_only=True)
class BoolQ(MultipleChoiceTask):
    """Does the model find yes or no more likely?"""

    metrics: ClassVar[tuple[str, ...]] = ("acc",)
    name = "boolq"
    version = "1"
    source = RowSource(
        local="multiple_choice/boolq.jsonl",
        hub="aps/super_glue",
        config="boolq",
        split="validation",
        revision="3de24cf8022e94f4ee4b9d55a6f539891524d646",
        licence="CC BY-SA 3.0",
        citation="Clark et al. 2019, arXiv:1905.10044",
    )
    card: ClassVar[TaskCard] = TaskCard(
        title="BoolQ: yes or no by a passage",
        group="multiple choice",
        protocol="loglikelihood",
        licence="CC BY-SA 3.0",
        citation="Clark et al. 2019, arXiv:1905.10044",
        items=3_270,
        clusters="passage",
        note="lm-eval's boolq, zero-shot, the validation split. Passages of the local form have no title, "
        "those of the hub begin with one.",
    )

    def parse(self, row: Row, *, local: bool) -> Query:
        if local:
            passage, mark, question = str(row["query"]).removeprefix("Passage: ").rpartition("\nQuestion: ")
            if not mark or tuple(row["choices"]) != _CHOICES:
                raise ValueError("query has no question, or the choices are not no and yes")
            gold = int(row["gold"])
        else:
            passage, question, gold = str(row["passage"]), f"{row['question']}?", int(row["label"])
        cluster = f"{self.name}-passage-{content_hash(passage)}"
        return choice_query(f"{passage}\nQuestion: {question}\nAnswer:", _CHOICES, gold, cluster=cluster)
