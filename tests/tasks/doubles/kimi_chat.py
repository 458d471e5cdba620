"""Kimi's chat format and tokenizer, as a measure of what our prompts become.

The format is that of Kimi K2's chat template: a turn is ``<|im_CLASS|>NAME<|im_middle|>BODY<|im_end|>``,
tools are declared first, as compact JSON. Vocabulary and control tokens are read from
``EQUIPOISE_DATA/kimi_tokenizer``.
"""

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tiktoken.load import load_tiktoken_bpe

from equipoise.evals.types import Message

__all__ = ["count_tokens", "encode", "render", "tokenizer"]

# Read before a test changes the environment.
_FOLDER = Path(os.environ.get("EQUIPOISE_DATA", "")) / "kimi_tokenizer"
DEFAULT_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."
_CONTROL_TOKENS = 256
_CASED = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# Han runs split off first; the rest is the usual splitting of words, digits by three, and spaces.
_PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_CASED}]*[\p{{Ll}}{_CASED}]+{_SUFFIX}",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_CASED}]+[\p{{Ll}}{_CASED}]*{_SUFFIX}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


@cache
def tokenizer() -> tiktoken.Encoding:
    """The tokenizer with its control tokens; skips the test that asks where its files are not there."""
    folder = _FOLDER
    if not (folder / "tiktoken.model").is_file():
        pytest.skip("EQUIPOISE_DATA has no kimi_tokenizer/tiktoken.model")
    ranks = load_tiktoken_bpe(str(folder / "tiktoken.model"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    control = {f"<|reserved_token_{i}|>": i for i in range(len(ranks), len(ranks) + _CONTROL_TOKENS)}
    for number, token in config["added_tokens_decoder"].items():
        del control[f"<|reserved_token_{number}|>"]
        control[token["content"]] = int(number)
    return tiktoken.Encoding("kimi", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=control)


def encode(text: str) -> list[int]:
    """Token ids of a rendered conversation, its control tokens one id each."""
    return tokenizer().encode(text, allowed_special="all")


def count_tokens(text: str) -> int:
    return len(encode(text))


def render(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """The prompt that the model sees, up to where its answer begins.

    ``tools`` are function definitions in OpenAI's form.
    """
    parts = []
    if tools:
        declared = json.dumps(list(tools), separators=(",", ":"), ensure_ascii=False)
        parts.append(_turn("system", "tool_declare", declared))
    if messages and messages[0].role != "system":
        parts.append(_turn("system", "system", DEFAULT_SYSTEM))
    parts += [_message(m) for m in messages]
    return "".join(parts) + "<|im_assistant|>assistant<|im_middle|>"


def _turn(kind: str, name: str, body: str) -> str:
    return f"<|im_{kind}|>{name}<|im_middle|>{body}<|im_end|>"


def _message(message: Message) -> str:
    body = message.content or ""
    if message.role == "tool":
        return _turn("system", "tool", f"## Return of {message.tool_call_id}\n{body}")
    if message.reasoning is not None:
        body = f"<think>{message.reasoning}</think>{body}"
    if message.tool_calls:
        calls = "".join(
            f"<|tool_call_begin|>{call.id or f'functions.{call.name}:{i}'}"
            f"<|tool_call_argument_begin|>{call.arguments}<|tool_call_end|>"
            for i, call in enumerate(message.tool_calls)
        )
        body += f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"
    return _turn(message.role, message.role, body)
