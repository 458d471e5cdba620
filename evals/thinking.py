"""Where a reply's thinking ends and its answer begins.

Servers tell them apart (``reasoning_content``) only with a reasoning parser; without one the tags are in
the text, and where the chat template opened the thinking, only the closing tag is. Thinking that never
ends holds no answer: it is a truncation, whatever the finish_reason says. Stop strings are for answers: a
server would also find them in the thinking, so a request that thinks is sent without and cut here.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from equipoise.evals.types import Output

__all__ = ["UNCLOSED", "Thinking", "cut_at_stop", "settle"]

Thinking = Literal["on", "off"]

#: Stands in ``Output.finish_reason`` for thinking that the model ended without closing.
UNCLOSED = "length"
#: Of Kimi K2 Thinking, GLM, Qwen and DeepSeek; and of Kimi before K2.
_TAGS = (("<think>", "</think>"), ("\u25c1think\u25b7", "\u25c1/think\u25b7"))


def settle(output: Output, *, thinking: Thinking | None, stop: Sequence[str] = ()) -> Output:
    """The reply with thinking and answer apart.

    Parameters
    ----------
    thinking : "on", "off" or None
        What the plan asked for; None: nothing, so thinking is found by its tags alone.
    stop : sequence of str
        Where the answer ends; only with thinking "on", when the server was not told.

    Returns
    -------
    Output
        ``text`` without thinking, None if only thinking came; then ``finish_reason`` is "length" unless
        the reply calls tools.
    """
    if output.prompt_logprobs is not None:  # a given text was scored; nothing here is an answer
        return output
    text, reasoning, closed = _apart(output, thinking)
    finish = output.finish_reason
    if text is not None and thinking == "on" and stop:
        whole, text = text, cut_at_stop(text, stop)
        if finish == "length" and text != whole:  # the server, told of the stop strings, had ended it there
            finish = "stop"
    if not closed and not output.tool_calls:
        text, finish = None, UNCLOSED
    if (text, reasoning, finish) == (output.text, output.reasoning, output.finish_reason):
        return output
    return replace(output, text=text, reasoning=reasoning, finish_reason=finish)


def _apart(output: Output, thinking: Thinking | None) -> tuple[str | None, str | None, bool]:
    """Answer, thinking, and whether the thinking ended."""
    text = output.text
    if output.reasoning is not None:
        # A parser that took everything for thinking sends no content, or an empty one.
        return text, output.reasoning, bool(text and text.strip()) or not output.reasoning.strip()
    if text is None:
        return None, None, True
    for opening, closing in _TAGS:
        begun = text.lstrip().startswith(opening)
        if not begun and thinking == "off":
            continue
        # Only thinking that the template opened has a closing tag alone.
        before, tag, after = text.partition(closing)
        if tag and (begun or opening not in before):
            return after.lstrip("\n"), before.lstrip().removeprefix(opening), True
        if begun:
            return None, text.lstrip().removeprefix(opening), False
    if thinking == "on":
        return None, text, False
    return text, None, True


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """``text`` up to the first of the stop strings."""
    found = [at for s in stop if s and (at := text.find(s)) >= 0]
    return text[: min(found)] if found else text
