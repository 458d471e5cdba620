"""The pure-Python tokenizer and chat format."""

import jinja2
import pytest

from equipoise.evals.types import Message
from equipoise.tasks.embedded.tokenizer import (
    ASSISTANT_ID,
    BOS_ID,
    CHAT_TEMPLATE,
    EOS_ID,
    SPECIAL_TOKENS,
    UNK_ID,
    USER_ID,
    VOCABULARY,
    decode,
    encode,
    render,
    render_chat,
)

CONVERSATION = (
    Message(role="user", content="K:ab=12;?ab"),
    Message(role="assistant", content="12"),
    Message(role="user", content="?ab"),
)


def test_text_survives_the_round_trip() -> None:
    text = "".join(token for token in VOCABULARY if len(token) == 1)
    assert decode(encode(text)) == text
    assert len(encode(text)) == len(text)


def test_vocabulary_is_a_multiple_of_32_without_duplicates() -> None:
    assert len(VOCABULARY) % 32 == 0
    assert len(set(VOCABULARY)) == len(VOCABULARY)


def test_unknown_characters_become_unk() -> None:
    assert encode("aé") == [*encode("a"), UNK_ID]


def test_special_tokens_are_dropped_from_text_unless_asked_for() -> None:
    ids = [BOS_ID, USER_ID, *encode("ab"), EOS_ID]
    assert decode(ids) == "ab"
    assert decode(ids, skip_special_tokens=False) == "<bos><user>ab<eos>"


@pytest.mark.parametrize("prompt", [True, False])
def test_chat_template_renders_what_render_chat_encodes(prompt: bool) -> None:
    messages = [{"role": m.role, "content": m.content} for m in CONVERSATION]
    template = jinja2.Template(CHAT_TEMPLATE, trim_blocks=True, lstrip_blocks=True)  # as transformers does
    text = template.render(messages=messages, add_generation_prompt=prompt)
    assert text == decode(render_chat(CONVERSATION, add_generation_prompt=prompt), skip_special_tokens=False)


def test_a_conversation_continues_the_tokens_of_its_earlier_turns() -> None:
    """Else the cache of an earlier turn could not be reused by a later one."""
    first = render_chat(CONVERSATION[:1])
    assert render_chat(CONVERSATION)[: len(first)] == first
    reply = [*encode("12"), EOS_ID]
    assert render_chat(CONVERSATION)[len(first) : len(first) + 3] == reply


def test_render_marks_answers_with_their_eos() -> None:
    ids, is_answer = render([("C:ab", "ab"), ("?x", "y")])
    assert ids == [
        BOS_ID, USER_ID, *encode("C:ab"), ASSISTANT_ID, *encode("ab"), EOS_ID,
        USER_ID, *encode("?x"), ASSISTANT_ID, *encode("y"), EOS_ID,
    ]  # fmt: skip
    assert [ids[i] for i, answer in enumerate(is_answer) if answer] == [
        *encode("ab"), EOS_ID, *encode("y"), EOS_ID,
    ]  # fmt: skip


def test_special_tokens_come_first() -> None:
    assert VOCABULARY[: len(SPECIAL_TOKENS)] == SPECIAL_TOKENS
