"""WinoGrande by log-likelihood: whom or what does the blank mean (Sakaguchi et al. 2019, arXiv:1907.10641)?

Example row (local form; on the hub ``sentence`` with ``_``, ``option1``, ``option2``, ``answer`` of 1 or 2)::

    {"context_options": ["Sarah was a much better surgeon than Maria so Sarah", "Sarah was a much better
     surgeon than Maria so Maria"], "continuation": "always got the easier cases.", "gold": 1}

Partial evaluation: the same words are scored behind each option. Zero-shot. Twin sentences differ in a word
that turns the answer round; they are told by their first words and are a cluster.
"""

from dataclasses import dataclass
from typing import ClassVar

from equipoise.tasks.card import TaskCard
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.loglikelihood import Query
from equipoise.tasks.multiple_choice import MultipleChoiceTask, partial_query
from equipoise.tasks.rows import Row, RowSource

__all__ = ["Winogrande"]

_TWIN_WORDS = 5


@dataclass(frozen=True, kw_only=True)
class Winogrande(MultipleChoiceTask):
    """Behind which of two options does the model find the rest of the sentence more likely?"""

    metrics: ClassVar[tuple[str, ...]] = ("acc",)
    name = "winogrande"
    version = "1"
    source = RowSource(
        local="multiple_choice/winogrande.jsonl",
        hub="allenai/winogrande",
        config="winogrande_xl",
        split="validation",
        revision="01e74176c63542e6b0bcb004dcdea22d94fb67b5",
        licence="CC BY",
        citation="Sakaguchi et al. 2019, arXiv:1907.10641",
    )
    card: ClassVar[TaskCard] = TaskCard(
        title="WinoGrande: what a pronoun means",
        group="multiple choice",
        protocol="loglikelihood",
        licence="CC BY",
        citation="Sakaguchi et al. 2019, arXiv:1907.10641",
        items=1_267,
        clusters="sentence and its twin, by their first five words",
        note="lm-eval's winogrande, zero-shot, the validation split; published figures mostly have 5 shots.",
    )

    def parse(self, row: Row, *, local: bool) -> Query:
        if local:
            contexts = [str(c) for c in row["context_options"]]
            rest, gold = str(row["continuation"]), int(row["gold"])
        else:
            before, blank, rest = str(row["sentence"]).partition("_")
            if not blank:
                raise ValueError("sentence has no blank")
            contexts = [before + str(row["option1"]), before + str(row["option2"])]
            gold = ("1", "2").index(str(row["answer"]))
        first = " ".join(contexts[0].split()[:_TWIN_WORDS])
        cluster = f"{self.name}-twins-{content_hash(first)}"
        return partial_query(contexts, rest.strip(), gold, cluster=cluster)
