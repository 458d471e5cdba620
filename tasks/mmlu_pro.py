"""MMLU-Pro: 12,032 questions of 14 fields with up to ten options (Wang et al. 2024, arXiv:2406.01574; MIT).

Example row (local and hub form)::

    {"question_id": 70, "question": "Typical advertising regulatory bodies suggest, for example that adverts
     must not: encourage ____, ...", "options": ["Safe practices, Fear, Jealousy, Trivial", ...], "answer":
     "I", "answer_index": 8, "category": "business", "src": "ori_mmlu-business_ethics"}
"""

import string

from equipoise.tasks.advice import REASONING
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.declared import LetteredTask, lettered_prompt
from equipoise.tasks.rows import Row, RowSource

__all__ = ["MmluPro"]


class MmluPro(LetteredTask):
    """Which of up to ten options is right?"""

    name = "mmlu_pro"
    version = "1"
    sources = (
        RowSource(
            local="mmlu_pro/test.jsonl",
            hub="TIGER-Lab/MMLU-Pro",
            config="default",
            split="test",
            revision="b189ec765aa7ed75c8acfea42df31fdae71f97be",
            licence="MIT",
            citation="Wang et al. 2024, arXiv:2406.01574",
        ),
    )
    card = TaskCard(
        title="MMLU-Pro: knowledge and reasoning in 14 fields",
        group="knowledge",
        protocol="chat",
        licence="MIT",
        citation="Wang et al. 2024, arXiv:2406.01574",
        items=12_032,
        advice=REASONING,
        note="Zero-shot. lm-eval asks with five worked examples, greedily, with 2,048 tokens.",
    )

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        options = [str(o) for o in row["options"]]
        target = str(row["answer"])
        if len(target) != 1 or target not in string.ascii_uppercase[: len(options)]:
            raise ValueError(f"answer {target!r} is none of {len(options)} options")
        return ChatQuestion(
            prompt=lettered_prompt(str(row["question"]), options),
            target=target,
            extra={"options": len(options)},
            strata={"category": str(row["category"])},
            key=str(row["question_id"]),
        )
