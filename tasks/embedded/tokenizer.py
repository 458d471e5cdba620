"""The character-level tokenizer and chat format of the embedded models, in pure Python.

Every character of the embedded tasks is one token. A conversation is rendered as::

    <bos><user>C:abc<assistant>abc<eos><user>S:cab<assistant>abc<eos>

The Hugging Face tokenizer shipped with the models is built from this table (see ``checkpoint``)
and a test holds the two equal.
"""

from collections.abc import Iterable, Sequence

from equipoise.evals.types import Message

__all__ = [
    "ASSISTANT_ID",
    "BOS_ID",
    "CHAT_TEMPLATE",
    "EOS_ID",
    "PAD_ID",
    "SPECIAL_TOKENS",
    "UNK_ID",
    "USER_ID",
    "VOCABULARY",
    "decode",
    "encode",
    "render",
    "render_chat",
]

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<assistant>", "<system>")
PAD_ID, BOS_ID, EOS_ID, UNK_ID, USER_ID, ASSISTANT_ID, SYSTEM_ID = range(7)
_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz" + "ABCKS" + "=;:?+()[]{}<>, \n"

# Token id -> token; padded with reserved tokens to a multiple of 32, as matrix kernels want it.
VOCABULARY: tuple[str, ...] = (*SPECIAL_TOKENS, *_CHARACTERS)
VOCABULARY += tuple(f"<reserved_{i}>" for i in range(-len(VOCABULARY) % 32))

_ID_OF = {token: i for i, token in enumerate(VOCABULARY)}
_ROLE_IDS = {"user": USER_ID, "assistant": ASSISTANT_ID, "system": SYSTEM_ID}

CHAT_TEMPLATE = (
    "<bos>"
    "{%- for message in messages -%}"
    "{{ '<' + message['role'] + '>' + message['content'] }}"
    "{%- if message['role'] == 'assistant' -%}{{ '<eos>' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<assistant>' }}{%- endif -%}"
)


def encode(text: str) -> list[int]:
    """Token ids of plain text, one a character; characters outside the table become ``<unk>``."""
    return [_ID_OF.get(character, UNK_ID) for character in text]


def decode(token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
    """Text of token ids; special and reserved tokens are dropped unless asked for."""
    tokens = (VOCABULARY[i] for i in token_ids)
    return "".join(t for t in tokens if not skip_special_tokens or len(t) == 1)


def render_chat(messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
    """Token ids of a conversation, as the chat template renders it."""
    ids = [BOS_ID]
    for message in messages:
        ids += [_ROLE_IDS[message.role], *encode(message.content or "")]
        if message.role == "assistant":
            ids.append(EOS_ID)
    if add_generation_prompt:
        ids.append(ASSISTANT_ID)
    return ids


def render(turns: Sequence[tuple[str, str]]) -> tuple[list[int], list[bool]]:
    """Token ids of (question, answer) turns, and which of them belong to an answer.

    The ``<eos>`` that ends an answer counts as part of it.
    """
    ids, is_answer = [BOS_ID], [False]
    for question, answer in turns:
        prompt = [USER_ID, *encode(question), ASSISTANT_ID]
        reply = [*encode(answer), EOS_ID]
        ids += prompt + reply
        is_answer += [False] * len(prompt) + [True] * len(reply)
    return ids, is_answer
