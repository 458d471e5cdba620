"""HumanEval: write a function from its signature and docstring (Chen et al. 2021, arXiv:2107.03374).

Example row (local and hub form)::

    {"task_id": "HumanEval/0", "prompt": "from typing import List\\n\\n\\ndef has_close_elements(...) ...",
     "entry_point": "has_close_elements", "canonical_solution": "    for idx, elem in ...",
     "test": "def check(candidate):\\n    assert candidate([1.0, 2.0], 0.3) == False\\n"}

Correct when every assertion holds in the sandbox, which knows no packages but Python's own.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from equipoise.evals.types import Output, TaskItem
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.code_task import CodeTask, fenced
from equipoise.tasks.graders.code_block import FoundCode, code_of
from equipoise.tasks.reference import reply
from equipoise.tasks.rows import Row, RowSource
from equipoise.tasks.sandbox.types import Code

__all__ = ["HumanEval"]


@dataclass(frozen=True, kw_only=True)
class HumanEval(CodeTask):
    """Does the function pass its tests?"""

    name = "humaneval"
    version = "1"
    sources = (
        RowSource(
            local="humaneval/HumanEval.jsonl.gz",
            hub="openai/openai_humaneval",
            config="openai_humaneval",
            split="test",
            revision="7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
            licence="MIT",
            citation="Chen et al. 2021, arXiv:2107.03374",
        ),
    )
    card: ClassVar[TaskCard] = TaskCard(
        title="HumanEval: functions from their docstrings",
        group="code",
        protocol="chat",
        licence="MIT",
        citation="Chen et al. 2021, arXiv:2107.03374",
        items=164,
        note="Asked for the whole function; the original (and lm-eval's humaneval) continues the prompt as a "
        "plain completion. The tests are the original ones; the code is given the prompt's imports and "
        "helpers.",
    )

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        begun, name, test = str(row["prompt"]), str(row["entry_point"]), str(row["test"])
        if f"def {name}(" not in begun or "def check(" not in test:
            raise ValueError("prompt and test must define entry_point and check")
        return ChatQuestion(
            prompt="Complete this Python function. Reply with the whole function, and the imports that it "
            f"needs, in one Python code block.\n\n{fenced(begun)}",
            target=begun + str(row["canonical_solution"]),
            extra={"begun": begun, "entry_point": name, "test": test},
            key=str(row["task_id"]).rpartition("/")[2].zfill(3),
        )

    def find_code(self, item: TaskItem, answer: str) -> FoundCode | None:
        return code_of(answer, names=(item.inputs["entry_point"],), body_allowed=True)

    def job(self, item: TaskItem, found: FoundCode) -> Code:
        begun, name = item.inputs["begun"], item.inputs["entry_point"]
        code = begun + _indented(found.code) if found.is_body else found.code
        # The prompt's imports and helpers are given to the code as to the tests.
        return Code(
            code=code,
            preamble="" if found.is_body else begun,
            setup=begun,
            tests=(f"{item.inputs['test']}\n\ncheck({name})\n",),
            names=(name,),
        )

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """The function that returns None."""
        return (reply(fenced(f"{item.inputs['begun']}    pass")),)


def _indented(body: str) -> str:
    first = next((line for line in body.splitlines() if line.strip()), "")
    return body if first[:1] in (" ", "\t") else textwrap.indent(body, "    ")
