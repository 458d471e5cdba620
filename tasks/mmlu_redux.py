"""MMLU-Redux 2.0: 100 questions of each MMLU subject, checked by hand (Gema et al. 2024, arXiv:2406.04127).

Example row (local and hub form; one file or config a subject)::

    {"question": "Find the degree for the given field extension Q(sqrt(2), sqrt(3), sqrt(18)) over Q.",
     "choices": ["0", "4", "2", "6"], "answer": 1, "error_type": "ok", "source": null, "correct_answer": null,
     "potential_reason": null}

Only questions that the annotators found without error (``error_type`` "ok") are asked: 5,330 of 5,700.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from equipoise.tasks.advice import REASONING
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.declared import LetteredTask, lettered_prompt
from equipoise.tasks.rows import Row, RowSource

__all__ = ["SUBJECTS", "MmluRedux"]

SUBJECTS = (
    "abstract_algebra",
    "anatomy",
    "astronomy",
    "business_ethics",
    "clinical_knowledge",
    "college_biology",
    "college_chemistry",
    "college_computer_science",
    "college_mathematics",
    "college_medicine",
    "college_physics",
    "computer_security",
    "conceptual_physics",
    "econometrics",
    "electrical_engineering",
    "elementary_mathematics",
    "formal_logic",
    "global_facts",
    "high_school_biology",
    "high_school_chemistry",
    "high_school_computer_science",
    "high_school_european_history",
    "high_school_geography",
    "high_school_government_and_politics",
    "high_school_macroeconomics",
    "high_school_mathematics",
    "high_school_microeconomics",
    "high_school_physics",
    "high_school_psychology",
    "high_school_statistics",
    "high_school_us_history",
    "high_school_world_history",
    "human_aging",
    "human_sexuality",
    "international_law",
    "jurisprudence",
    "logical_fallacies",
    "machine_learning",
    "management",
    "marketing",
    "medical_genetics",
    "miscellaneous",
    "moral_disputes",
    "moral_scenarios",
    "nutrition",
    "philosophy",
    "prehistory",
    "professional_accounting",
    "professional_law",
    "professional_medicine",
    "professional_psychology",
    "public_relations",
    "security_studies",
    "sociology",
    "us_foreign_policy",
    "virology",
    "world_religions",
)


@dataclass(frozen=True, kw_only=True)
class MmluRedux(LetteredTask):
    """``subjects`` are those of MMLU, all 57 by default."""

    subjects: tuple[str, ...] = SUBJECTS
    sources: tuple[RowSource, ...] = field(init=False)

    option_names: ClassVar[tuple[str, ...]] = ("subjects",)
    name = "mmlu_redux"
    version = "1"
    card: ClassVar[TaskCard] = TaskCard(
        title="MMLU-Redux 2.0: MMLU without its wrong questions",
        group="knowledge",
        protocol="chat",
        licence="CC BY 4.0",
        citation="Gema et al. 2024, arXiv:2406.04127",
        items=5_330,
        advice=REASONING,
        note="Zero-shot; the same questions as lm-eval's mmlu_redux_generative (a letter alone). "
        "A few history questions of one source text are not clustered: the data does not say which.",
    )

    def __post_init__(self) -> None:
        unknown = sorted(set(self.subjects) - set(SUBJECTS))
        if unknown or len(set(self.subjects)) != len(self.subjects):
            raise ValueError(f"subjects must be different ones of MMLU; got {unknown or self.subjects}")
        object.__setattr__(self, "sources", tuple(_source(subject) for subject in self.subjects))

    def keep(self, row: Row) -> bool:
        return row.get("error_type") == "ok"

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        choices = [str(c) for c in row["choices"]]
        answer = int(row["answer"])
        if not 0 <= answer < len(choices):
            raise ValueError(f"answer {answer} is none of {len(choices)} choices")
        return ChatQuestion(
            prompt=lettered_prompt(str(row["question"]), choices),
            target="ABCD"[answer],
            extra={"options": len(choices)},
        )


def _source(subject: str) -> RowSource:
    return RowSource(
        local=f"mmlu_redux/{subject}.jsonl",
        hub="edinburgh-dawg/mmlu-redux-2.0",
        config=subject,
        split="test",
        revision="372ea425445d51e1ba1188c56e5e893f8138621f",
        licence="CC BY 4.0",
        citation="Gema et al. 2024, arXiv:2406.04127",
        label=subject,
    )
