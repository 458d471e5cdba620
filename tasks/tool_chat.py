"""Chat tasks that offer tools: what is judged are the calls of a reply, not only its text."""

from abc import abstractmethod
from collections.abc import Sequence

from equipoise.evals.types import Sample, Score, ScoreStatus, TaskItem, ToolCall
from equipoise.tasks.chat import ChatTask, settled_score
from equipoise.tasks.graders.grade import Grade

__all__ = ["ToolTask"]


class ToolTask(ChatTask):
    """Base: a reply of null content is an answer if it calls a tool."""

    @abstractmethod
    def judge(self, item: TaskItem, calls: Sequence[ToolCall], text: str) -> Grade:
        """Judge a reply by its calls and its text; must not raise, and take bounded time."""

    def grade(self, item: TaskItem, answer: str) -> Grade:
        """Judge a reply that calls nothing."""
        return self.judge(item, (), answer)

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """Hand calls and text to ``judge``; what is no answer is settled before."""
        calls = (sample.outputs[-1].tool_calls if sample.outputs else None) or ()
        settled = settled_score(sample, text_needed=not calls)
        if isinstance(settled, Score):
            return settled
        grade = self.judge(item, calls, settled.text or "")
        return Score(
            value=grade.value, status=ScoreStatus.SCORED, extracted=grade.extracted, reason=grade.reason
        )
