"""How a plan has answers generated: a task's requests with the plan's sampling, its replies settled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from equipoise.evals.thinking import Thinking, settle
from equipoise.evals.types import ChatOptions, Output, Request, Sample, Score, Task, TaskItem

__all__ = ["Generation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What replaces the task's own settings, in every arm alike; None: nothing.

    A task sees settled replies only (see thinking.py): thinking and answer apart, in its next turn as in
    its score. The journal keeps them as they came.
    """

    thinking: Thinking | None = None
    reasoning_effort: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    output_logprobs: bool = False

    def next_request(self, task: Task, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """The task's next request, given the replies as they came; None when the item is done."""
        request = task.next_request(item, self.settled(task, item, outputs))
        return None if request is None else self._generated(request)

    def settled(self, task: Task, item: TaskItem, outputs: Sequence[Output]) -> tuple[Output, ...]:
        """The replies with thinking and answer apart."""
        found: list[Output] = []
        for output in outputs:
            thinking: Thinking | None = self.thinking
            stop: tuple[str, ...] = ()
            if thinking == "on" and (request := task.next_request(item, found)) is not None:
                if request.messages is None:  # no template opened any thinking
                    thinking = None
                else:  # the stop strings that the server was not sent
                    stop = request.sampling.stop
            found.append(settle(output, thinking=thinking, stop=stop))
        return tuple(found)

    def score(self, task: Task, item: TaskItem, sample: Sample) -> Score:
        """The task's score of a sample as it came."""
        settled = self.settled(task, item, sample.outputs)
        return task.score(item, replace(sample, outputs=settled))

    def chat_options(self, own: ChatOptions) -> ChatOptions:
        """A request's chat options with the plan's; both names of the switch, templates ignore the other."""
        switch = (
            {}
            if self.thinking is None
            else dict.fromkeys(("thinking", "enable_thinking"), self.thinking == "on")
        )
        return replace(
            own,
            template_kwargs={**own.template_kwargs, **switch, **self.template_kwargs},
            reasoning_effort=self.reasoning_effort or own.reasoning_effort,
        )

    def _generated(self, request: Request) -> Request:
        sampling = request.sampling
        if request.prompt_logprobs is not None or (request.messages is None and sampling.max_new_tokens == 1):
            return request  # scores a given text, or warms the cache for it: nothing is generated
        given = {
            name: value
            for name in ("max_new_tokens", "temperature", "top_p", "top_k", "min_p")
            if (value := getattr(self, name)) is not None
        }
        if self.thinking == "on" and request.messages is not None:
            given["stop"] = ()
        chat = request.chat if request.messages is None else self.chat_options(request.chat)
        wanted = request.output_logprobs or self.output_logprobs
        return replace(request, sampling=replace(sampling, **given), chat=chat, output_logprobs=wanted)
