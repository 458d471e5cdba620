"""GSM8K: 1,319 word problems of grade-school mathematics (Cobbe et al. 2021, arXiv:2110.14168; MIT).

Example row (local and hub form)::

    {"question": "A robe takes 2 bolts of blue fiber and half that much white fiber.  How many bolts in total
     does it take?", "answer": "It takes 2/2=<<2/2=1>>1 bolt of white fiber\\nSo the total ...\\n#### 3"}
"""

from equipoise.tasks.advice import REASONING
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.declared import NumberTask
from equipoise.tasks.graders.number import read_number
from equipoise.tasks.rows import Row, RowSource

__all__ = ["Gsm8k"]


class Gsm8k(NumberTask):
    """What number solves the problem?"""

    name = "gsm8k"
    version = "1"
    sources = (
        RowSource(
            local="gsm8k/test.jsonl",
            hub="openai/gsm8k",
            config="main",
            split="test",
            revision="740312add88f781978c0658806c59bc2815b9866",
            licence="MIT",
            citation="Cobbe et al. 2021, arXiv:2110.14168",
        ),
    )
    card = TaskCard(
        title="GSM8K: grade-school word problems",
        group="math",
        protocol="chat",
        licence="MIT",
        citation="Cobbe et al. 2021, arXiv:2110.14168",
        items=1_319,
        advice=REASONING,
        note="Zero-shot. lm-eval asks a completion with five worked examples.",
    )

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        _, marker, target = str(row["answer"]).rpartition("####")
        if not marker or read_number(target) is None:
            raise ValueError("answer has no number behind ####")
        return ChatQuestion(
            prompt="Solve the problem. Reason step by step, then finish with a line of its own that reads "
            f'"ANSWER: N", where N is the result as a number.\n\n{str(row["question"]).strip()}',
            target=target.strip(),
        )
