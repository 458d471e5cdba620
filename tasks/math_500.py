r"""MATH-500: competition problems (Hendrycks et al. 2021, arXiv:2103.03874; Lightman et al. 2023; MIT).

Example row (local and hub form)::

    {"problem": "Convert the point $(0,3)$ in rectangular coordinates to polar coordinates. ...", "solution":
     "We have that $r = \\sqrt{0^2 + 3^2} = 3.$ ...", "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
     "subject": "Precalculus", "level": 2, "unique_id": "test/precalculus/807.json"}
"""

from equipoise.evals.types import TaskItem
from equipoise.tasks.advice import REASONING
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.declared import DeclaredTask
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.math import grade_math
from equipoise.tasks.rows import Row, RowSource

__all__ = ["Math500"]


class Math500(DeclaredTask):
    """What expression solves the problem?"""

    name = "math_500"
    version = "1"
    max_new_tokens = 8192
    sources = (
        RowSource(
            local="math_500/test.jsonl",
            hub="HuggingFaceH4/MATH-500",
            config="default",
            split="test",
            revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
            licence="MIT",
            citation="Hendrycks et al. 2021, arXiv:2103.03874; Lightman et al. 2023, arXiv:2305.20050",
        ),
    )
    card = TaskCard(
        title="MATH-500: competition mathematics",
        group="math",
        protocol="chat",
        licence="MIT",
        citation="Hendrycks et al. 2021, arXiv:2103.03874; Lightman et al. 2023, arXiv:2305.20050",
        items=500,
        advice=REASONING,
        note="Zero-shot. Answers are compared as text and numbers, then by math-verify within limits. "
        "lm-eval's minerva_math500 asks a completion with four worked examples.",
    )

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        target = str(row["answer"]).strip()
        if not target:
            raise ValueError("answer is empty")
        return ChatQuestion(
            prompt="Solve the problem. Reason step by step, then put the final result, in LaTeX and without "
            f"words, into \\boxed{{}}.\n\n{str(row['problem']).strip()}",
            target=target,
            strata={"subject": str(row["subject"]), "level": str(row["level"])},
            key=str(row["unique_id"]).removesuffix(".json").replace("/", "-"),
        )

    def grade(self, item: TaskItem, answer: str) -> Grade:
        return grade_math(answer, item.target)
