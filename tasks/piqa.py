"""PIQA by log-likelihood: how are things done (Bisk et al. 2020, arXiv:1911.11641)? Zero-shot.

Example row (local form; on the hub ``goal``, ``sol1``, ``sol2``, ``label``)::

    {"query": "Question: dresser\\n", "choices": ["replace drawer with bobby pin", "finish, woodgrain with
     bobby pin"], "gold": 1}
"""

from dataclasses import dataclass
from typing import ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.loglikelihood import Query
from equipoise.tasks.multiple_choice import MultipleChoiceTask, choice_query
from equipoise.tasks.rows import Row, RowSource

__all__ = ["Piqa"]


@dataclass(frozen=True, kw_only=True)
class Piqa(MultipleChoiceTask):
    """Which of two ways to a goal does the model find more likely?"""

    name = "piqa"
    version = "1"
    source = RowSource(
        local="multiple_choice/piqa.jsonl",
        hub="baber/piqa",
        config="default",
        split="validation",
        revision="142f6d7367fd9877f0fb3b5734ea6a545f54cdd1",
        licence="not stated on the hub",
        citation="Bisk et al. 2020, arXiv:1911.11641",
    )
    card: ClassVar[TaskCard] = TaskCard(
        title="PIQA: physical common sense",
        group="multiple choice",
        protocol="loglikelihood",
        licence="not stated on the hub",
        citation="Bisk et al. 2020, arXiv:1911.11641",
        items=1_838,
        clusters="goal",
        note="lm-eval's piqa, zero-shot, the validation split. Its acc_norm is by characters.",
    )

    def parse(self, row: Row, *, local: bool) -> Query:
        if local:
            goal, choices, gold = str(row["query"]).removesuffix("\n"), row["choices"], int(row["gold"])
        else:
            goal, choices = f"Question: {row['goal']}", (row["sol1"], row["sol2"])
            gold = int(row["label"])
        cluster = f"{self.name}-goal-{content_hash(goal)}"
        return choice_query(f"{goal}\nAnswer:", [str(c) for c in choices], gold, cluster=cluster)
