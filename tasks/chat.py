"""Tasks asked as a conversation of one question: a row becomes a prompt, a grader judges the reply.

Null content, a reply cut off at the budget and thinking that never ended are no answers: they are settled
here, so that a grader sees answers only.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from equipoise.evals.errors import UsageError
from equipoise.evals.types import (
    ChatOptions,
    Message,
    Output,
    Request,
    Sample,
    SamplingParams,
    Score,
    ScoreStatus,
    TaskItem,
)
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.reference import reply
from equipoise.tasks.rows import Row, RowSource, load_rows, sample_rows

__all__ = ["ChatQuestion", "ChatTask", "settled_score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuestion:
    """A row as it is asked.

    ``extra`` are JSON values that the grader needs beside ``target``; they are hashed. ``strata`` and
    ``cluster`` (empty: the item is its own) are not.
    """

    prompt: str
    target: str
    system: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    strata: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""
    key: str = ""  # in place of the row's number, where the data has stable ids of its own


class ChatTask(ABC):
    """Base: a task names its data, how a row is asked, and how an answer is graded.

    ``max_new_tokens`` is the budget of a model that does not think; plans give thinking ones more.
    """

    kind: Literal["accuracy", "logprob"] = "accuracy"
    needs_chat_template = True
    name: str
    version: str  # of prompt and grader together
    sources: tuple[RowSource, ...]  # one, or one for each ``label``
    max_new_tokens: int = 4096

    @abstractmethod
    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        """One row, in the local or the hub's form; a malformed one may raise Key-, Value- or TypeError."""

    @abstractmethod
    def grade(self, item: TaskItem, answer: str) -> Grade:
        """Judge the text of an answer; must not raise on any text, and take bounded time."""

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """``n`` items drawn by ``seed`` over all sources; a larger ``n`` adds to a smaller one.

        Raises
        ------
        UsageError
            The data cannot be loaded, has fewer rows, or a row is malformed (named with the field).
        """
        rows = self._rows()
        drawn = sample_rows([{"at": i} for i in range(len(rows))], n, seed, name=self.name)
        return [self._item(*rows[at]) for at, _ in drawn]

    def count(self) -> int:
        """How many rows the data has here."""
        return len(self._rows())

    def keep(self, row: Row) -> bool:
        """Whether a row is asked at all; ids stay the rows' numbers in the data."""
        return True

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """The target itself; tasks whose target is no answer say what is."""
        return (reply(item.target),)

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """An answer that says nothing."""
        return (reply("I would rather not say."),)

    def _rows(self) -> list[tuple[RowSource, int, Row, bool]]:
        rows: list[tuple[RowSource, int, Row, bool]] = []
        for source in self.sources:
            found, local = load_rows(source)
            rows += [(source, index, row, local) for index, row in enumerate(found) if self.keep(row)]
        return rows

    def _item(self, source: RowSource, index: int, row: Row, local: bool) -> TaskItem:
        where = f"{self.name} row {index}" + (f" of {source.label}" if source.label else "")
        try:
            question = self.parse(row, source=source, local=local)
            extra = {k: question.extra[k] for k in sorted(question.extra)}
            digest = content_hash(  # raises where a text is none, such as a lone surrogate
                question.system, question.prompt, question.target, *(f"{k}={v!r}" for k, v in extra.items())
            )
        except KeyError as e:
            raise UsageError(f"{where} has no field {e}; check the data file") from e
        except (ValueError, IndexError, TypeError, AttributeError) as e:
            raise UsageError(f"{where} is malformed ({e!r}); check the data file") from e
        prefix = f"{self.name}-{source.label}" if source.label else self.name
        item_id = f"{prefix}-{question.key or f'{index:05d}'}"
        strata = {"subset": source.label, **question.strata} if source.label else dict(question.strata)
        return TaskItem(
            task=self.name,
            id=item_id,
            inputs={"prompt": question.prompt, "system": question.system, **extra},
            target=question.target,
            content_hash=digest,
            cluster_id=question.cluster or item_id,
            strata=strata,
        )

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """The question; nothing after its reply."""
        if outputs:
            return None
        system = item.inputs["system"]
        messages = [Message(role="system", content=system)] if system else []
        messages.append(Message(role="user", content=item.inputs["prompt"]))
        return Request(
            sampling=SamplingParams(max_new_tokens=self.max_new_tokens),
            messages=tuple(messages),
            chat=self.chat_options(item),
        )

    def chat_options(self, item: TaskItem) -> ChatOptions:
        """Tools, for tasks that have some."""
        return ChatOptions()

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """Hand the answer to ``grade``; what is no answer is settled before."""
        settled = settled_score(sample)
        if isinstance(settled, Score):
            return settled
        assert settled.text is not None, "settled_score lets no null content through"
        grade = self.grade(item, settled.text)
        return Score(
            value=grade.value, status=ScoreStatus.SCORED, extracted=grade.extracted, reason=grade.reason
        )


def settled_score(sample: Sample, *, text_needed: bool = True) -> Output | Score:
    """The last reply of a sample if it is an answer, else the score of what it is instead.

    With ``text_needed`` a reply without content is refused, unless it was cut off.
    """
    if sample.error is not None or not sample.outputs:
        status = ScoreStatus.REFUSED if sample.refused else ScoreStatus.ERRORED
        return Score(value=None, status=status, reason=sample.error or "no reply")
    output = sample.outputs[-1]
    if output.finish_reason == "length":
        reason = "ran into max_new_tokens" if output.text is not None else "no answer before the reply ended"
        return Score(value=0.0, status=ScoreStatus.TRUNCATED, reason=reason)
    if output.text is None and text_needed:
        return Score(value=None, status=ScoreStatus.REFUSED, reason="the server sent null content")
    return output
