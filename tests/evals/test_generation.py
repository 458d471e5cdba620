"""The plan's generation settings over a task's own, and replies settled before a task sees them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from run_doubles import EchoTask, item, output, sample

from equipoise.evals.generation import Generation
from equipoise.evals.types import (
    ChatOptions,
    Message,
    Output,
    PromptLogprobs,
    Request,
    Sample,
    SamplingParams,
    Score,
    ScoreStatus,
    TaskItem,
)

CHAT = Request(
    messages=(Message(role="user", content="hi"),),
    sampling=SamplingParams(max_new_tokens=64, temperature=0.5, stop=("\n",)),
    chat=ChatOptions(template_kwargs={"own": 1, "thinking": True}, reasoning_effort="low"),
)


class OneRequest(EchoTask):
    """Asks one given request; keeps the replies that it was shown."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request
        self.shown: list[tuple[Output, ...]] = []

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        self.shown.append(tuple(outputs))
        return self.request if len(outputs) < 2 else None

    def score(self, item: TaskItem, sample: Sample) -> Score:
        self.shown.append(sample.outputs)
        return Score(value=1.0, status=ScoreStatus.SCORED)


def asked(request: Request, **settings: Any) -> Request:
    found = Generation(**settings).next_request(OneRequest(request), item(1), ())
    assert found is not None
    return found


def test_without_settings_a_request_is_the_tasks_own() -> None:
    assert asked(CHAT) == CHAT


def test_logprobs_of_generated_tokens_are_asked_for_where_something_is_generated() -> None:
    scored = Request(
        text="x", sampling=SamplingParams(max_new_tokens=0), prompt_logprobs=PromptLogprobs(start=1)
    )
    assert asked(CHAT, output_logprobs=True).output_logprobs
    assert not asked(scored, output_logprobs=True).output_logprobs


@pytest.mark.parametrize(
    ("settings", "sampling"),
    [
        ({"max_new_tokens": 9000}, {"max_new_tokens": 9000, "temperature": 0.5, "stop": ("\n",)}),
        ({"temperature": 0.0}, {"max_new_tokens": 64, "temperature": 0.0, "stop": ("\n",)}),
        (
            {"temperature": 1.0, "top_p": 0.95, "top_k": 40, "min_p": 0.1},
            {
                "max_new_tokens": 64,
                "temperature": 1.0,
                "top_p": 0.95,
                "top_k": 40,
                "min_p": 0.1,
                "stop": ("\n",),
            },
        ),
        ({"thinking": "on"}, {"max_new_tokens": 64, "temperature": 0.5}),  # the answer is cut here instead
        ({"thinking": "off"}, {"max_new_tokens": 64, "temperature": 0.5, "stop": ("\n",)}),
    ],
)
def test_given_settings_replace_the_tasks_own(settings: dict[str, Any], sampling: dict[str, Any]) -> None:
    assert asked(CHAT, **settings).sampling == SamplingParams(**sampling)


@pytest.mark.parametrize(
    ("settings", "kwargs", "effort"),
    [
        ({}, {"own": 1, "thinking": True}, "low"),
        ({"thinking": "off"}, {"own": 1, "thinking": False, "enable_thinking": False}, "low"),
        (
            {"thinking": "on", "reasoning_effort": "high"},
            {"own": 1, "thinking": True, "enable_thinking": True},
            "high",
        ),
        (
            {"thinking": "off", "template_kwargs": {"own": 2, "enable_thinking": True}},
            {"own": 2, "thinking": False, "enable_thinking": True},
            "low",
        ),
    ],
)
def test_the_chat_template_is_told_of_thinking_under_both_names(
    settings: dict[str, Any], kwargs: dict[str, Any], effort: str
) -> None:
    chat = asked(CHAT, **settings).chat
    assert (dict(chat.template_kwargs), chat.reasoning_effort) == (kwargs, effort)


@pytest.mark.parametrize(
    "request_",
    [
        Request(text="x", sampling=SamplingParams(max_new_tokens=1, stop=("a",))),
        Request(text="x", sampling=SamplingParams(max_new_tokens=8), prompt_logprobs=PromptLogprobs(start=0)),
    ],
)
def test_what_generates_nothing_is_left_alone(request_: Request) -> None:
    settings = {"thinking": "on", "max_new_tokens": 9000, "temperature": 1.0}
    assert asked(request_, **settings) == request_


def test_plain_prompts_get_the_sampling_but_no_chat_options() -> None:
    plain = Request(text="x", sampling=SamplingParams(max_new_tokens=8, stop=("\n",)))
    found = asked(plain, thinking="on", temperature=1.0)
    assert (found.sampling.temperature, found.sampling.stop, found.chat) == (1.0, ("\n",), ChatOptions())
    (settled,) = Generation(thinking="on").settled(OneRequest(plain), item(1), (output("42"),))
    assert (settled.text, settled.finish_reason) == ("42", "stop")


def test_a_conversation_with_an_answer_of_one_token_is_told_of_thinking() -> None:
    one = replace(CHAT, sampling=SamplingParams(max_new_tokens=1))
    found = asked(one, thinking="off", max_new_tokens=8)
    assert (found.sampling.max_new_tokens, found.chat.template_kwargs["enable_thinking"]) == (8, False)


def test_a_task_sees_settled_replies_in_its_next_turn_and_in_its_score() -> None:
    generation = Generation(thinking="on")
    task = OneRequest(CHAT)
    came = (output("a\nb?</think>42\nmore"), output("c</think>43\n"))
    assert generation.next_request(task, item(1), came[:1]) is not None
    (seen,) = task.shown[-1]
    assert (seen.text, seen.reasoning) == ("42", "a\nb?")  # cut at the task's own stop string
    generation.score(task, item(1), sample(outputs=came))
    assert [o.text for o in task.shown[-1]] == ["42", "43"]
    assert came[0].text == "a\nb?</think>42\nmore"  # as it is kept


def test_thinking_that_never_ended_is_a_cut_off_reply() -> None:
    (settled,) = Generation(thinking="on").settled(OneRequest(CHAT), item(1), (output("so we"),))
    assert (settled.text, settled.finish_reason) == (None, "length")
