"""MBPP, sanitized: small Python functions from a sentence (Austin et al. 2021, arXiv:2108.07732).

Example row (local and hub form)::

    {"task_id": 3, "prompt": "Write a python function to identify non-prime numbers.",
     "code": "import math\\ndef is_not_prime(n): ...", "test_imports": [],
     "test_list": ["assert is_not_prime(2) == False", "assert is_not_prime(10) == True"]}

Correct when every assertion holds in the sandbox, which knows no packages but Python's own.
"""

import re
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

__all__ = ["MBPP"]

_DEFINED = re.compile(r"^(?:def|class)\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class MBPP(CodeTask):
    """Does the function pass its tests?"""

    name = "mbpp"
    version = "1"
    sources = (
        RowSource(
            local="mbpp/sanitized-mbpp.json",
            hub="google-research-datasets/mbpp",
            config="sanitized",
            split="prompt+test+validation+train",  # by task_id, as in the original file
            revision="4bb6404fdc6cacfda99d4ac4205087b89d32030c",
            licence="CC-BY-4.0",
            citation="Austin et al. 2021, arXiv:2108.07732",
        ),
    )
    card: ClassVar[TaskCard] = TaskCard(
        title="MBPP, sanitized: functions from a sentence",
        group="code",
        protocol="chat",
        licence="CC-BY-4.0",
        citation="Austin et al. 2021, arXiv:2108.07732",
        items=427,
        note="Zero-shot with one of the tests shown, which gives the function's name and form; all are run. "
        "The original (and lm-eval's mbpp) shows three solved examples and all tests, of the 500 test items "
        "that are not sanitized. All 427 sanitized items are asked, those of other splits too.",
    )

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        tests = [str(t) for t in row["test_list"]]
        code = str(row["code"])
        names = [n for n in _DEFINED.findall(code) if any(re.search(rf"\b{n}\(", t) for t in tests)]
        if not names:
            raise ValueError("test_list must call what code defines")
        return ChatQuestion(
            prompt=f"{row['prompt']} It must pass this test, and others like it:\n\n{fenced(tests[0])}\n\n"
            "Reply with the whole function, and the imports that it needs, in one Python code block.",
            target=code,
            extra={"names": names, "setup": "\n".join(map(str, row["test_imports"])), "tests": tests},
            key=f"{int(row['task_id']):03d}",
        )

    def find_code(self, item: TaskItem, answer: str) -> FoundCode | None:
        return code_of(answer, names=item.inputs["names"])

    def job(self, item: TaskItem, found: FoundCode) -> Code:
        given = item.inputs
        return Code(
            code=found.code, tests=tuple(given["tests"]), setup=given["setup"], names=tuple(given["names"])
        )

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """Functions that return None."""
        return (
            reply(fenced("\n".join(f"def {n}(*given, **named):\n    pass\n" for n in item.inputs["names"]))),
        )
