"""Tasks whose answer is Python that is run: a reply becomes code, its tests run in the sandbox.

A machine that does not isolate as required is refused when items are asked for, before anything is served.
"""

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from equipoise.evals.types import Output, Sample, TaskItem
from equipoise.tasks.chat import ChatTask, settled_score
from equipoise.tasks.graders.code_block import FoundCode
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.reference import reply
from equipoise.tasks.sandbox.sandbox import shared_sandbox
from equipoise.tasks.sandbox.types import Call, Code, Isolation, Keyed, Limits, Program, SandboxResult

__all__ = ["CodeTask", "fenced"]

MAX_CODE_CHARS = 200_000


@dataclass(frozen=True, kw_only=True)
class CodeTask(ChatTask):
    """Base: a task says what code an answer holds, and how it is tested."""

    limits: ClassVar[Limits] = Limits()

    @abstractmethod
    def find_code(self, item: TaskItem, answer: str) -> FoundCode | None:
        """The code of an answer; None if it has none."""

    @abstractmethod
    def job(self, item: TaskItem, found: FoundCode) -> Code | Call | Program:
        """The code with the item's tests."""

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """See `ChatTask.items`.

        Raises
        ------
        UsageError
            Also where this machine does not isolate as EQUIPOISE_SANDBOX requires.
        """
        shared_sandbox().require()
        return super().items(n, seed)

    def grade(self, item: TaskItem, answer: str) -> Grade:
        found = self._found(item, answer)
        if isinstance(found, Grade):
            return found
        result = shared_sandbox().run(self._keyed(item, found), self.limits)
        return Grade(value=float(result.ok), extracted=found.code, reason=_reason(result))

    def prepare(self, pairs: Sequence[tuple[TaskItem, Sample]]) -> None:
        """Run many samples' code at once, so that scoring them finds the results there.

        Samples as `score` gets them: settled.
        """
        jobs = []
        for item, sample in pairs:
            settled = settled_score(sample)
            if isinstance(settled, Output) and settled.text is not None:
                found = self._found(item, settled.text)
                if isinstance(found, FoundCode):
                    jobs.append(self._keyed(item, found))
        shared_sandbox().run_many(jobs, self.limits)

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """The reference solution."""
        return (reply(fenced(item.target)),) if item.target else None

    def _keyed(self, item: TaskItem, found: FoundCode) -> Keyed:
        key = content_hash(self.name, self.version, item.content_hash, ascii(found.code), str(found.is_body))
        return Keyed(key=key, make=functools.partial(self.job, item, found))

    def _found(self, item: TaskItem, answer: str) -> FoundCode | Grade:
        found = self.find_code(item, answer)
        if found is None:
            return Grade(value=0.0, extracted=None, reason="no code in the answer")
        if len(found.code) > MAX_CODE_CHARS:
            reason = f"code of {len(found.code)} characters, at most {MAX_CODE_CHARS} are run"
            return Grade(value=0.0, extracted=found.code, reason=reason)
        return found


def fenced(code: str) -> str:
    """Code as a block of Markdown."""
    return f"```python\n{code.rstrip()}\n```"


def _reason(result: SandboxResult) -> str:
    weak = "" if result.isolation is Isolation.FULL else f" (isolation: {result.isolation.name.lower()})"
    if result.ok:
        return weak.strip()
    told = (
        result.status.value
        if result.status.value != "failed"
        else f"{result.passed} of {result.tests} passed"
    )
    return f"{told}: {result.reason}{weak}"
