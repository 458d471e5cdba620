"""The double of Kimi's chat format and tokenizer."""

import pytest
from kimi_chat import count_tokens, encode, render, tokenizer

from equipoise.evals.types import Message, ToolCall


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, world!", [19180, 11, 2695, 0]),
        ("1234567890", [6694, 12972, 16242, 15]),
        ("中文English混合", [16717, 44372, 13935]),
        ("<|im_user|>user<|im_middle|>", [163587, 2482, 163601]),
    ],
)
def test_texts_encode_to_the_published_ids(text: str, ids: list[int]) -> None:
    assert encode(text) == ids
    assert tokenizer().decode(ids) == text


def test_a_conversation_with_tools_renders_as_in_the_template() -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    text = render(
        [
            Message(role="user", content="Weather in Beijing?"),
            Message(
                role="assistant",
                content=None,
                reasoning="look it up",
                tool_calls=(ToolCall(name="weather", arguments='{"city": "Beijing"}'),),
            ),
            Message(role="tool", content="Sunny", tool_call_id="functions.weather:0"),
        ],
        [tool],
    )
    assert text == (
        '<|im_system|>tool_declare<|im_middle|>[{"type":"function","function":{"name":"weather",'
        '"parameters":{"type":"object"}}}]<|im_end|>'
        "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>"
        "<|im_user|>user<|im_middle|>Weather in Beijing?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>look it up</think><|tool_calls_section_begin|>"
        "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Beijing"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
        "<|im_system|>tool<|im_middle|>## Return of functions.weather:0\nSunny<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>"
    )
    assert 60 < count_tokens(text) < 130
