"""Where thinking ends and the answer begins, in every way that servers send them."""

from dataclasses import replace
from typing import Any

import pytest
from run_doubles import output

from equipoise.evals.thinking import cut_at_stop, settle
from equipoise.evals.types import Output, ToolCall

CALL = (ToolCall(name="f", arguments="{}"),)
KIMI = "\u25c1think\u25b7", "\u25c1/think\u25b7"


def cases() -> list[Any]:
    """(text, reasoning, thinking asked for) as they came -> (text, reasoning, finish_reason) as settled."""
    o, c = KIMI
    whole: list[tuple[Any, ...]] = [
        # no thinking anywhere
        ("plain", "42", None, None, "42", None, "stop"),
        ("off", "42", None, "off", "42", None, "stop"),
        ("empty", "", None, None, "", None, "stop"),
        ("null", None, None, None, None, None, "stop"),
        ("null with thinking on", None, None, "on", None, None, "stop"),
        # told apart by the server
        ("reasoning_content", "42", "6*7", None, "42", "6*7", "stop"),
        ("reasoning_content, on", "42", "6*7", "on", "42", "6*7", "stop"),
        ("reasoning_content only", None, "6*7 is", "on", None, "6*7 is", "length"),
        ("reasoning_content, empty answer", "", "6*7 is", "on", None, "6*7 is", "length"),
        ("reasoning_content, blank answer", " \n", "6*7 is", None, None, "6*7 is", "length"),
        ("blank reasoning_content", "", "\n", "on", "", "\n", "stop"),
        ("tags in a parsed answer stay", "a </think> b", "6*7", "on", "a </think> b", "6*7", "stop"),
        # in the text, opened by the model
        ("tags", "<think>6*7</think>\n\n42", None, None, "42", "6*7", "stop"),
        ("tags, on", "<think>6*7</think>42", None, "on", "42", "6*7", "stop"),
        ("tags, off", "<think>\n\n</think>\n\n42", None, "off", "42", "\n\n", "stop"),
        ("tags after spaces", "\n <think>6*7</think> 42", None, None, " 42", "6*7", "stop"),
        ("never closed", "<think>6*7 is", None, None, None, "6*7 is", "length"),
        ("never closed, on", "<think>6*7 is", None, "on", None, "6*7 is", "length"),
        ("never closed, off", "<think>6*7 is", None, "off", None, "6*7 is", "length"),
        ("closed twice", "<think>a</think>b</think>c", None, "on", "b</think>c", "a", "stop"),
        ("Kimi's tags", f"{o}6*7{c}42", None, None, "42", "6*7", "stop"),
        ("Kimi's, never closed", f"{o}6*7 is", None, "on", None, "6*7 is", "length"),
        ("nothing after the tag", "<think>6*7</think>", None, "on", "", "6*7", "stop"),
        # in the text, opened by the chat template
        ("template-opened", "6*7</think>42", None, "on", "42", "6*7", "stop"),
        ("template-opened, not asked for", "6*7</think>42", None, None, "42", "6*7", "stop"),
        ("template-opened, Kimi's", f"6*7{c}42", None, "on", "42", "6*7", "stop"),
        ("template-opened, never closed", "6*7 is", None, "on", None, "6*7 is", "length"),
        # tags that an answer speaks of
        (
            "off: an answer about tags",
            "use </think> to close",
            None,
            "off",
            "use </think> to close",
            None,
            "stop",
        ),
        (
            "an answer about tags",
            "use <think>x</think> here",
            None,
            None,
            "use <think>x</think> here",
            None,
            "stop",
        ),
    ]
    return [pytest.param(*rest, id=name) for name, *rest in whole]


@pytest.mark.parametrize(("text", "reasoning", "thinking", "answer", "thought", "finish"), cases())
def test_settled_replies(
    text: Any, reasoning: Any, thinking: Any, answer: Any, thought: Any, finish: str
) -> None:
    settled = settle(output(text, reasoning=reasoning), thinking=thinking)
    assert (settled.text, settled.reasoning, settled.finish_reason) == (answer, thought, finish)


@pytest.mark.parametrize(
    ("came", "text", "reasoning"),
    [
        (output(None, reasoning="so I call", tool_calls=CALL, finish_reason="tool_calls"), None, "so I call"),
        (output("", reasoning="so I call", tool_calls=CALL, finish_reason="tool_calls"), "", "so I call"),
        (output("<think>so</think>", tool_calls=CALL, finish_reason="tool_calls"), "", "so"),
        (output("so</think>", tool_calls=CALL, finish_reason="tool_calls"), "", "so"),
        (output("<think>so", tool_calls=CALL, finish_reason="tool_calls"), None, "so"),
        (output(None, tool_calls=CALL, finish_reason="tool_calls"), None, None),
    ],
)
def test_calls_after_thinking_are_an_answer(came: Output, text: str | None, reasoning: str | None) -> None:
    settled = settle(came, thinking="on")
    assert (settled.text, settled.reasoning) == (text, reasoning)
    assert (settled.finish_reason, settled.tool_calls) == ("tool_calls", CALL)


def test_a_reply_cut_off_stays_cut_off() -> None:
    for text in ("<think>6*7", "<think>6*7</think>4", "4"):
        assert settle(output(text, finish_reason="length"), thinking=None).finish_reason == "length"


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("Q: is it? No.</think>42\nQ: next", "on", "42\n"),  # found in the thinking it would have ended it
        ("<think>Q:</think>42", "on", "42"),
        ("42\nQ: next", "off", "42\nQ: next"),  # the server was told, and cut
        ("42\nQ: next", None, "42\nQ: next"),
    ],
)
def test_stop_strings_cut_the_answer_not_the_thinking(text: str, thinking: Any, answer: str) -> None:
    assert settle(output(text), thinking=thinking, stop=("Q:", "")).text == answer


@pytest.mark.parametrize(
    ("text", "finish"),
    [
        ("<think>a</think>42\nQ: next and", "stop"),
        ("<think>a</think>42\n", "length"),
        ("<think>Q:", "length"),
    ],
)
def test_an_answer_cut_at_a_stop_string_is_whole(text: str, finish: str) -> None:
    settled = settle(output(text, finish_reason="length"), thinking="on", stop=("Q:",))
    assert settled.finish_reason == finish


def test_stop_strings_cut_the_answer_that_a_parser_left() -> None:
    settled = settle(output("42\nQ: next", reasoning="Q: is it?"), thinking="on", stop=("Q:",))
    assert (settled.text, settled.reasoning) == ("42\n", "Q: is it?")


def test_the_first_of_several_stop_strings_cuts() -> None:
    assert cut_at_stop("one two three", ("three", "two", "")) == "one "
    assert cut_at_stop("one", ()) == "one"


def test_a_scored_prompt_is_left_alone() -> None:
    scored = output("<think>", prompt_logprobs=(None, -1.0), prompt_logprobs_start=0)
    assert settle(scored, thinking="on") is scored
    unchanged = replace(output("42"), tool_calls=CALL)
    assert settle(unchanged, thinking=None) is unchanged


@pytest.mark.parametrize(
    "text", ["<think>" * 100_000, "</think>" * 100_000, "\u25c1think\u25b7" * 50_000, " " * 1_000_000]
)
@pytest.mark.parametrize("thinking", ["on", "off", None])
def test_a_megabyte_of_tags_is_settled(text: str, thinking: Any) -> None:
    settled = settle(output(text), thinking=thinking)
    assert settled.text is None or len(settled.text) <= len(text)
