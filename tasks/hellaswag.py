"""HellaSwag by log-likelihood: how does it go on (Zellers et al. 2019, arXiv:1905.07830; MIT)? Zero-shot.

Example row (local and hub form)::

    {"activity_label": "Roof shingle removal", "ctx_a": "A man is sitting on a roof.", "ctx_b": "he",
     "endings": ["is using wrap to wrap a pair of skis.", ...], "label": "3", "source_id":
     "activitynet~v_-JhWjGDPHMY"}
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.loglikelihood import Query
from equipoise.tasks.multiple_choice import MultipleChoiceTask, choice_query
from equipoise.tasks.rows import Row, RowSource

__all__ = ["HellaSwag"]

_BRACKETED = re.compile(r"\[[^\]\n]*\]")


@dataclass(frozen=True, kw_only=True)
class HellaSwag(MultipleChoiceTask):
    """Which of four endings does the model find most likely?"""

    name = "hellaswag"
    version = "1"
    source = RowSource(
        local="multiple_choice/hellaswag.jsonl",
        hub="Rowan/hellaswag",
        config="default",
        split="validation",
        revision="218ec52e09a7e7462a5400043bb9a69a41d06b76",
        licence="MIT",
        citation="Zellers et al. 2019, arXiv:1905.07830",
    )
    card: ClassVar[TaskCard] = TaskCard(
        title="HellaSwag: how a scene goes on",
        group="multiple choice",
        protocol="loglikelihood",
        licence="MIT",
        citation="Zellers et al. 2019, arXiv:1905.07830",
        items=10_042,
        clusters="video or article",
        note="lm-eval's hellaswag, zero-shot, the validation split; published figures are mostly acc_norm "
        "with 10 examples.",
    )

    def parse(self, row: Row, *, local: bool) -> Query:
        scene = f"{row['activity_label']}: {row['ctx_a']} {str(row['ctx_b']).capitalize()}"
        endings = [_plain(str(e)) for e in row["endings"]]
        cluster = f"{self.name}-{row['source_id']}"
        return choice_query(_plain(scene), endings, int(row["label"]), cluster=cluster)


def _plain(text: str) -> str:
    """Without the marks of WikiHow's articles."""
    text = _BRACKETED.sub("", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")
