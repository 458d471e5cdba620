"""ARC-Challenge by log-likelihood (Clark et al. 2018, arXiv:1803.05457; CC BY-SA 4.0), zero-shot.

Example row (local form; on the hub as in ARC-Easy)::

    {"query": "Question: An astronomer observes that a planet rotates faster after a meteorite impact. ...",
     "choices": ["Planetary density will decrease.", ...], "gold": 2}
"""

from dataclasses import dataclass
from typing import ClassVar

from equipoise.tasks.arc_easy import arc_query, arc_source
from equipoise.tasks.card import TaskCard
from equipoise.tasks.loglikelihood import Query
from equipoise.tasks.multiple_choice import MultipleChoiceTask
from equipoise.tasks.rows import Row

__all__ = ["ArcChallenge"]


@dataclass(frozen=True, kw_only=True)
class ArcChallenge(MultipleChoiceTask):
    """Which choice does the model find most likely?"""

    name = "arc_challenge"
    version = "1"
    source = arc_source("ARC-Challenge", local="multiple_choice/arc_challenge.jsonl")
    card: ClassVar[TaskCard] = TaskCard(
        title="ARC-Challenge: grade-school science that retrieval gets wrong",
        group="multiple choice",
        protocol="loglikelihood",
        licence="CC BY-SA 4.0",
        citation="Clark et al. 2018, arXiv:1803.05457",
        items=1_172,
        note="lm-eval's arc_challenge, zero-shot; published figures are mostly acc_norm with 25 examples.",
    )

    def parse(self, row: Row, *, local: bool) -> Query:
        return arc_query(row, local=local)
