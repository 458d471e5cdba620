"""IFEval: does the answer follow instructions that a program can check (Zhou et al. 2023, arXiv:2311.07911)?

Example row (local and hub form; the hub's kwargs also hold every other argument, as null)::

    {"key": 1001, "prompt": "I am planning a trip to Japan, ... You are not allowed to use any commas in your
     response.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}

The value is prompt-level accuracy: 1 if every instruction of the prompt is followed, strictly or, with
``loose``, in any of the variants that the paper allows. The reason of a score tells of each instruction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from equipoise.evals.types import Output, TaskItem
from equipoise.tasks.advice import OTHER
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion, ChatTask
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.ifeval import Instruction, follow, instructions_of
from equipoise.tasks.reference import reply
from equipoise.tasks.rows import Row, RowSource

__all__ = ["IFEval"]


@dataclass(frozen=True, kw_only=True)
class IFEval(ChatTask):
    """``loose`` also accepts what the answer's first line, last line or asterisks alone get wrong."""

    loose: bool = False

    option_names: ClassVar[tuple[str, ...]] = ("loose",)
    name = "ifeval"
    version = "1"
    sources = (
        RowSource(
            local="ifeval/input_data.jsonl",
            hub="google/IFEval",
            config="default",
            split="train",
            revision="966cd89545d6b6acfd7638bc708b98261ca58e84",
            licence="Apache-2.0",
            citation="Zhou et al. 2023, arXiv:2311.07911",
        ),
    )
    card: ClassVar[TaskCard] = TaskCard(
        title="IFEval: verifiable instructions",
        group="instructions",
        protocol="chat",
        licence="Apache-2.0",
        citation="Zhou et al. 2023, arXiv:2311.07911",
        items=541,
        advice=OTHER,
        note="The prompt is the data's own. lm-eval asks greedily with 1,280 tokens and counts sentences by "
        "a trained tokenizer (Punkt); here they are found by rules, which differ in 2 of 100 sentences. Two "
        "prompts count a character that is no letter; the reference puts a random letter in its place.",
    )

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        instructions = instructions_of(row["instruction_id_list"], row["kwargs"])
        kinds = [i.kind for i in instructions]
        groups = {kind.partition(":")[0] for kind in kinds}
        return ChatQuestion(
            prompt=str(row["prompt"]),
            target=" ".join(kinds),
            extra={
                "instructions": [{"kind": i.kind, "args": dict(sorted(i.args.items()))} for i in instructions]
            },
            strata={
                "instructions": str(len(kinds)),
                "group": groups.pop() if len(groups) == 1 else "several",
            },
            key=str(int(row["key"])),
        )

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """Not known: the data has no answers."""
        return None

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """Nothing follows no instruction."""
        return (reply(" "),)

    def grade(self, item: TaskItem, answer: str) -> Grade:
        instructions = [Instruction(kind=i["kind"], args=i["args"]) for i in item.inputs["instructions"]]
        return follow(instructions, answer, loose=self.loose)
