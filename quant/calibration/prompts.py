"""The texts a model is calibrated on: lines of a text file, or of JSON."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError

__all__ = ["Prompt", "PromptSet", "TokenSequences", "read_prompts", "tokenize"]

MAX_LINE_BYTES = 16_000_000
_TEXT_KEYS = ("text", "prompt")
_ID_KEYS = ("token_ids", "input_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One of ``text``, ``messages`` (for the chat template) or ``token_ids`` is there."""

    where: str  # file:line
    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """``unread``: whether lines were left because enough had been read."""

    prompts: tuple[Prompt, ...]
    files: tuple[tuple[str, str], ...]  # name, SHA-256 of the bytes that were read
    unread: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequences:
    """Prompts as token ids.

    ``truncated`` and ``too_short`` are counts of prompts; the latter are left out.
    """

    sequences: tuple[tuple[int, ...], ...]
    where: tuple[str, ...]
    truncated: int
    too_short: int

    @property
    def tokens(self) -> int:
        return sum(map(len, self.sequences))


def read_prompts(paths: Sequence[Path], *, max_prompts: int) -> PromptSet:
    """Read up to ``max_prompts``, from all files in turn.

    A ``.jsonl`` line is a string, or an object with ``text`` or ``prompt`` (a string), ``messages``
    (a conversation), or ``token_ids`` or ``input_ids``. Any other file holds one prompt a line.

    Raises
    ------
    UsageError
        A file that cannot be read, a line that is malformed or too long, or no prompt at all.
    """
    readers = [_Reader(path) for path in paths]
    lines = [reader.prompts() for reader in readers]
    prompts: list[Prompt] = []
    while lines and len(prompts) < max_prompts:
        for stream in tuple(lines):
            prompt = next(stream, None)
            if prompt is None:
                lines.remove(stream)
            elif len(prompts) < max_prompts:
                prompts.append(prompt)
    if not prompts:
        raise UsageError(f"no prompts in {', '.join(map(str, paths))}; give texts like those to be served")
    files = tuple((reader.path.name, reader.sha256.hexdigest()) for reader in readers)
    unread = any(next(stream, None) is not None for stream in lines)
    return PromptSet(prompts=tuple(prompts), files=files, unread=unread)


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.sha256 = hashlib.sha256()

    def prompts(self) -> Iterator[Prompt]:
        parse = _json_prompt if self.path.suffix in (".jsonl", ".ndjson") else _text_prompt
        try:
            with self.path.open("rb") as f:
                number = 0
                while line := f.readline(MAX_LINE_BYTES + 1):
                    number += 1
                    where = f"{self.path}:{number}"
                    if len(line) > MAX_LINE_BYTES:
                        raise UsageError(f"{where} has over {MAX_LINE_BYTES:,} bytes; split the prompt")
                    self.sha256.update(line)
                    if not line.strip():
                        continue
                    try:
                        yield parse(line.decode("utf-8"), where)
                    except UnicodeDecodeError as e:
                        raise UsageError(f"{where} is not UTF-8; convert the file") from e
        except OSError as e:
            raise UsageError(f"cannot read {self.path}: {e.strerror}") from e


def _text_prompt(line: str, where: str) -> Prompt:
    return Prompt(where=where, text=line.rstrip("\r\n"))


def _json_prompt(line: str, where: str) -> Prompt:
    wanted = "a string, or an object with text, prompt, messages or token_ids"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{where} is not JSON ({e}); each line is {wanted}") from e
    if isinstance(value, str):
        return Prompt(where=where, text=value)
    if isinstance(value, dict):
        for key in _TEXT_KEYS:
            if isinstance(value.get(key), str):
                return Prompt(where=where, text=value[key])
        messages = value.get("messages")
        if isinstance(messages, list) and messages and all(isinstance(m, dict) for m in messages):
            return Prompt(where=where, messages=tuple(messages))
        for key in _ID_KEYS:
            ids = value.get(key)
            if isinstance(ids, list) and ids and all(type(i) is int and i >= 0 for i in ids):
                return Prompt(where=where, token_ids=tuple(ids))
    raise UsageError(f"{where} is not {wanted}")


def tokenize(
    prompts: Sequence[Prompt],
    tokenizer: Callable[[], Any],
    *,
    vocab_size: int,
    max_tokens: int,
) -> TokenSequences:
    """Token ids of each prompt, cut at ``max_tokens``; prompts of fewer than two tokens are left out.

    Parameters
    ----------
    tokenizer : callable
        Gives a Hugging Face tokenizer; called only if a prompt is text.

    Raises
    ------
    UsageError
        A token id outside the vocabulary, messages without a chat template, or nothing left.
    """
    loaded: Any = None
    sequences: list[tuple[int, ...]] = []
    where: list[str] = []
    truncated = too_short = 0
    for prompt in prompts:
        if prompt.token_ids is not None:
            ids = list(prompt.token_ids)
        else:
            loaded = tokenizer() if loaded is None else loaded
            ids = _encode(loaded, prompt)
        if outside := next((i for i in ids if not 0 <= i < vocab_size), None):
            raise UsageError(
                f"{prompt.where}: token {outside} is outside the model's vocabulary of {vocab_size:,}; "
                "the tokens are of another model"
            )
        truncated += len(ids) > max_tokens
        if len(ids) < 2:
            too_short += 1
            continue
        sequences.append(tuple(ids[:max_tokens]))
        where.append(prompt.where)
    if not sequences:
        raise UsageError("no prompt has two tokens or more; give texts like those to be served")
    return TokenSequences(
        sequences=tuple(sequences), where=tuple(where), truncated=truncated, too_short=too_short
    )


def _encode(tokenizer: Any, prompt: Prompt) -> list[int]:
    if prompt.messages is None:
        return list(tokenizer(prompt.text)["input_ids"])
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(f"{prompt.where} holds messages, and the model has no chat template; give texts")
    try:
        encoded = tokenizer.apply_chat_template(list(prompt.messages), tokenize=True, return_dict=True)
    except Exception as e:
        raise UsageError(f"{prompt.where}: the model's chat template refuses these messages ({e})") from e
    return list(encoded["input_ids"])
