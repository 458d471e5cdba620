"""GPQA Diamond: 198 graduate questions of three sciences (Rein et al. 2023, arXiv:2311.12022).

Example row (local and hub form, shortened; the authors ask not to publish questions in plain text)::

    {"Question": "...", "Correct Answer": "10^-4 eV", "Incorrect Answer 1": "10^-11 eV", "Incorrect Answer 2":
     "10^-8 eV", "Incorrect Answer 3": "10^-9 eV", "Record ID": "rec...", "High-level domain": "Physics"}

The data set is gated: accept its terms on the hub and set ``HF_TOKEN``. The right answer stands first in the
data; every item has its choices in an order of its own, drawn from its id and the same in every arm and run.
"""

import random

from equipoise.tasks.advice import REASONING
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.declared import LetteredTask, lettered_prompt
from equipoise.tasks.rows import Row, RowSource

__all__ = ["GpqaDiamond"]


class GpqaDiamond(LetteredTask):
    """Which of four answers is the expert's?"""

    name = "gpqa_diamond"
    version = "1"
    max_new_tokens = 8192
    sources = (
        RowSource(
            local="gpqa_diamond/train.jsonl",
            hub="Idavidrein/gpqa",
            config="gpqa_diamond",
            split="train",
            revision="633f5ee89ab8ad4522a9f850766b73f62147ffdd",
            licence="CC BY 4.0",
            citation="Rein et al. 2023, arXiv:2311.12022",
        ),
    )
    card = TaskCard(
        title="GPQA Diamond: graduate-level science",
        group="knowledge",
        protocol="chat",
        licence="CC BY 4.0, gated: its terms must be accepted on the hub",
        citation="Rein et al. 2023, arXiv:2311.12022",
        items=198,
        advice=REASONING,
        note="Zero-shot. lm-eval shuffles the choices by the order in which rows are read, here each item by "
        "its id. 198 items carry little: ask them several times.",
    )

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        key = str(row["Record ID"])
        choices = [str(row["Correct Answer"]), *(str(row[f"Incorrect Answer {i}"]) for i in (1, 2, 3))]
        order = list(range(len(choices)))
        random.Random(f"{self.name}-{key}").shuffle(order)
        return ChatQuestion(
            prompt=lettered_prompt(str(row["Question"]), [choices[i] for i in order]),
            target="ABCD"[order.index(0)],
            extra={"options": len(choices)},
            strata={"domain": str(row["High-level domain"])},
            key=key,
        )
