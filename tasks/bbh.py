"""BIG-Bench Hard: 6,511 items of 27 kinds of reasoning (Suzgun et al. 2022, arXiv:2210.09261; MIT).

Example row (local and hub form, of ``navigate``)::

    {"input": "If you follow these instructions, do you return to the starting point? Always face forward.
     Take 1 step backward. ...\\nOptions:\\n- Yes\\n- No", "target": "No"}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from equipoise.evals.types import TaskItem
from equipoise.tasks.advice import REASONING
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.declared import DeclaredTask
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.short import ASKED, VOCABULARIES, Kind, grade_short, kind_of
from equipoise.tasks.rows import Row, RowSource

__all__ = ["SUBSETS", "Bbh"]

SUBSETS: Mapping[str, Kind] = MappingProxyType(
    {
        "boolean_expressions": "true/false",
        "causal_judgement": "yes/no",
        "date_understanding": "letter",
        "disambiguation_qa": "letter",
        "dyck_languages": "brackets",
        "formal_fallacies": "valid/invalid",
        "geometric_shapes": "letter",
        "hyperbaton": "letter",
        "logical_deduction_five_objects": "letter",
        "logical_deduction_seven_objects": "letter",
        "logical_deduction_three_objects": "letter",
        "movie_recommendation": "letter",
        "multistep_arithmetic_two": "number",
        "navigate": "yes/no",
        "object_counting": "number",
        "penguins_in_a_table": "letter",
        "reasoning_about_colored_objects": "letter",
        "ruin_names": "letter",
        "salient_translation_error_detection": "letter",
        "snarks": "letter",
        "sports_understanding": "yes/no",
        "temporal_sequences": "letter",
        "tracking_shuffled_objects_five_objects": "letter",
        "tracking_shuffled_objects_seven_objects": "letter",
        "tracking_shuffled_objects_three_objects": "letter",
        "web_of_lies": "yes/no",
        "word_sorting": "words",
    }
)


@dataclass(frozen=True, kw_only=True)
class Bbh(DeclaredTask):
    """The items of ``subsets``, all 27 by default."""

    subsets: tuple[str, ...] = tuple(SUBSETS)
    sources: tuple[RowSource, ...] = field(init=False)

    option_names: ClassVar[tuple[str, ...]] = ("subsets",)
    name = "bbh"
    version = "1"
    card: ClassVar[TaskCard] = TaskCard(
        title="BIG-Bench Hard: 27 kinds of reasoning",
        group="reasoning",
        protocol="chat",
        licence="MIT",
        citation="Suzgun et al. 2022, arXiv:2210.09261",
        items=6_511,
        advice=REASONING,
        note="Zero-shot. The paper and lm-eval's bbh_cot_fewshot give three worked examples. In a few rows "
        "the target is an option's text in place of its letter; it is read as the letter.",
    )

    def __post_init__(self) -> None:
        unknown = sorted(set(self.subsets) - set(SUBSETS))
        if unknown or len(set(self.subsets)) != len(self.subsets):
            raise ValueError(f"subsets must be different ones of {', '.join(SUBSETS)}; got {self.subsets}")
        object.__setattr__(self, "sources", tuple(_source(subset) for subset in self.subsets))

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        question, target = str(row["input"]).strip(), str(row["target"]).strip()
        kind, target = kind_of(question, target, SUBSETS[source.label])
        return ChatQuestion(
            prompt=f"{question}\n\nReason step by step. Then finish with a line of its own that reads "
            f'"ANSWER: {ASKED[kind]}',
            target=target,
            extra={"kind": kind},
        )

    def grade(self, item: TaskItem, answer: str) -> Grade:
        return grade_short(answer, item.target, item.inputs["kind"])

    def other(self, item: TaskItem) -> str:
        kind: Kind = item.inputs["kind"]
        if kind in VOCABULARIES:
            return next(w for w in VOCABULARIES[kind] if w.casefold() != item.target.casefold())
        if kind == "letter":
            return "(B)" if item.target == "(A)" else "(A)"
        if kind == "number":
            return f"1{item.target.lstrip('-')}"
        return f"{item.target} {')' if kind == 'brackets' else 'more'}"


def _source(subset: str) -> RowSource:
    return RowSource(
        local=f"bbh/{subset}.json",
        hub="SaylorTwift/bbh",
        config=subset,
        split="test",
        revision="b5306be6f827cfafbb545ff5a51f96916029b0fd",
        licence="MIT",
        citation="Suzgun et al. 2022, arXiv:2210.09261",
        label=subset,
    )
