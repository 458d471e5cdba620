"""LiveCodeBench, code generation: problems of programming contests (Jain et al. 2024, arXiv:2403.07974).

Example row (the hub's file, shortened)::

    {"question_title": "A. Short Sort", "question_content": "There are three cards ...",
     "platform": "codeforces", "question_id": "1873_A", "contest_id": "1873",
     "contest_date": "2023-08-21T00:00:00", "starter_code": "", "difficulty": "easy",
     "public_test_cases": "[{\\"input\\": \\"6\\\\nabc\\", \\"output\\": \\"YES\\", ...}]",
     "private_test_cases": "eJxrYJ...", "metadata": "{}"}

Correct when every public and private test is passed in the sandbox.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from equipoise.evals.types import Output, TaskItem
from equipoise.tasks.card import Advice, TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.code_task import CodeTask, fenced
from equipoise.tasks.contest_tests import ContestTest, read_tests
from equipoise.tasks.graders.code_block import FoundCode, code_of
from equipoise.tasks.reference import reply
from equipoise.tasks.rows import Row, RowSource
from equipoise.tasks.sandbox.types import Call, Limits, Program

__all__ = ["LiveCodeBench"]

#: What the reference grader puts before a solution, in its order: a later name hides an earlier one.
_STARS = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
)
_PREAMBLE = (
    "".join(f"from {name} import *\n" for name in _STARS)
    + f"import {', '.join(n for n in _STARS if n not in ('builtins', 'typing'))}\n"
    + "sys.setrecursionlimit(50000)\n"
)


@dataclass(frozen=True, kw_only=True)
class LiveCodeBench(CodeTask):
    """Does the program pass the problem's tests?"""

    name = "livecodebench"
    version = "1"
    max_new_tokens = 16_384
    limits: ClassVar[Limits] = Limits(
        cpu_s=10, wall_s=60.0, memory_bytes=4 << 30, output_bytes=32 << 20, scratch_bytes=64 << 20
    )
    sources = (
        RowSource(
            local="livecodebench/test6.jsonl",
            hub="livecodebench/code_generation_lite",
            config="release_v6",
            split="test",
            revision="0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
            hub_file="test6.jsonl",
            licence="as the data's card says: cc",
            citation="Jain et al. 2024, arXiv:2403.07974",
        ),
    )
    card: ClassVar[TaskCard] = TaskCard(
        title="LiveCodeBench: contest problems new in release v6",
        group="code",
        protocol="chat",
        licence="cc, without a version (the problems are their contests')",
        citation="Jain et al. 2024, arXiv:2403.07974",
        items=175,
        advice={
            "kimi": Advice(
                temperature=1.0,
                top_p=0.95,
                max_new_tokens=131_072,
                thinking="on",
                repeats=1,
                source="https://platform.kimi.ai/docs/guide/benchmark-best-practice, Lcb + OJBench",
            ),
            "glm": Advice(
                temperature=1.0,
                top_p=0.95,
                source="https://huggingface.co/zai-org/GLM-4.6, code-related evaluation (with top_k 40)",
            ),
        },
        note="The file that release v6 added; vendors report other windows of it. Public and private tests "
        "count. Private ones are stored as a pickle of one text, which is read by its bytes and never "
        "unpickled. Time is processor time, 10 s an input (the reference: 6 s of wall time).",
    )

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        public, private = str(row["public_test_cases"]), str(row["private_test_cases"])
        function = json.loads(row["metadata"] or "{}").get("func_name") or ""
        for test in read_tests(public, private):  # here, so that a bad row is named before it is asked
            if function:
                _arguments(test)
        starter = str(row["starter_code"])
        return ChatQuestion(
            prompt=f"{row['question_content']}\n\n{_instructions(starter)}",
            target="",
            extra={"function": str(function), "private": private, "public": public},
            strata={"platform": str(row["platform"]), "difficulty": str(row["difficulty"])},
            key=str(row["question_id"]),
        )

    def find_code(self, item: TaskItem, answer: str) -> FoundCode | None:
        return code_of(answer)

    def job(self, item: TaskItem, found: FoundCode) -> Call | Program:
        tests = read_tests(item.inputs["public"], item.inputs["private"])
        if name := item.inputs["function"]:
            return Call(
                code=found.code, function=name, cases=[_arguments(t) for t in tests], preamble=_PREAMBLE
            )
        return Program(code=found.code, cases=[(t.given, t.expected) for t in tests], preamble=_PREAMBLE)

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """A program that does nothing."""
        return (reply(fenced("pass")),)


def _instructions(starter: str) -> str:
    if starter.strip():
        how = f"Write it in Python by completing this code:\n\n{fenced(starter)}\n\n"
    else:
        how = "Write a Python program that reads standard input and writes the answer to standard output. "
    return f"{how}Reply with the whole code in one Python code block."


def _arguments(test: ContestTest) -> tuple[list[Any], Any]:
    """A function's arguments, one a line, and its result."""
    return [json.loads(line) for line in test.given.split("\n")], json.loads(test.expected)
