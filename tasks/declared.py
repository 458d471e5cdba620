"""Chat tasks whose answer ends with a line ``ANSWER: ...``."""

import string
from collections.abc import Sequence

from equipoise.evals.types import Output, TaskItem
from equipoise.tasks.chat import ChatTask
from equipoise.tasks.graders.choice import grade_choice
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.number import grade_number
from equipoise.tasks.reference import reply

__all__ = ["DeclaredTask", "LetteredTask", "NumberTask", "lettered_prompt"]


class DeclaredTask(ChatTask):
    """Base: ``other`` is an answer to an item that is wrong."""

    def other(self, item: TaskItem) -> str:
        """By default one that no item has."""
        return "none of these"

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        return (reply(f"It follows from the question.\nANSWER: {item.target}"),)

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        return (reply(f"It follows from the question.\nANSWER: {self.other(item)}"),)


class NumberTask(DeclaredTask):
    """Base: the target is a number, and equal numbers are right."""

    def grade(self, item: TaskItem, answer: str) -> Grade:
        return grade_number(answer, item.target)

    def other(self, item: TaskItem) -> str:
        return f"1{item.target}" if item.target[:1].isdigit() else "1"


class LetteredTask(DeclaredTask):
    """Base: the target is a letter; ``extra`` has ``options``, how many there are."""

    def grade(self, item: TaskItem, answer: str) -> Grade:
        return grade_choice(answer, item.target, letters=string.ascii_uppercase[: item.inputs["options"]])

    def other(self, item: TaskItem) -> str:
        return "B" if item.target == "A" else "A"


def lettered_prompt(question: str, choices: Sequence[str]) -> str:
    """A question with its choices as options A, B, ...

    Raises
    ------
    ValueError
        There are fewer than two choices, or more than letters.
    """
    if not 2 <= len(choices) <= len(string.ascii_uppercase):
        raise ValueError(f"{len(choices)} choices; between 2 and {len(string.ascii_uppercase)} can be asked")
    letters = string.ascii_uppercase[: len(choices)]
    options = "\n".join(
        f"{letter}) {choice.strip()}" for letter, choice in zip(letters, choices, strict=True)
    )
    return (
        "Choose the right option. Reason first if that helps, then finish with a line of its own that reads "
        f'"ANSWER: X", where X is the letter of your choice.\n\nQuestion: {question.strip()}\n\n{options}'
    )
