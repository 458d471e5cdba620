"""What an arm is asked about itself before the first item: its facts, its tokenizer, how it renders prompts.

A server that tells token ids is compared by them, any other by its counts of prompt tokens.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from equipoise.evals.errors import ParityError, RequestError
from equipoise.evals.generation import Generation
from equipoise.evals.sample_json import canonical_json
from equipoise.evals.thinking import Thinking
from equipoise.evals.types import Backend, ChatOptions, Message, Request

__all__ = [
    "PROBE_CHAT",
    "PROBE_TEXTS",
    "ArmFacts",
    "Probes",
    "RenderedPrompt",
    "Tokenizing",
    "digest_of",
    "probe_arm",
    "token_ids",
]

#: Spaces, digits, accents, scripts, code and rare bytes: where tokenizers and their settings differ.
PROBE_TEXTS = (
    "The quick brown fox jumps over the lazy dog. 1234567890",
    "  two  spaces\n\tand a tab\r\n\n\nlines ",
    "caf\u00e9 na\u00efve \u00fcber \u6f22\u5b57 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \U0001f600",
    "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": None}  # <s></s> <|im_start|>",
)
PROBE_CHAT = (
    Message(role="user", content="What is 2 + 2?"),
    Message(role="assistant", content="4"),
    Message(role="user", content="And 3 + 3?"),
)
_EFFORTS = (None, "low", "high")  # at least one of them must render otherwise than the plan's


@runtime_checkable
class Described(Protocol):
    async def describe(self) -> Mapping[str, Any]: ...


@runtime_checkable
class Tokenizing(Protocol):
    async def tokenize(self, text: str) -> tuple[int, ...]: ...
    async def tokenize_chat(
        self, messages: Sequence[Message], chat: ChatOptions | None = None
    ) -> tuple[int, ...]: ...


@runtime_checkable
class Counting(Protocol):
    async def count_prompt_tokens(self, text: str) -> int: ...
    async def count_chat_tokens(
        self, messages: Sequence[Message], chat: ChatOptions | None = None
    ) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A prompt as a server makes tokens of it; ``sha256`` of the ids is None where only a count is known."""

    tokens: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What is asked.

    Parameters
    ----------
    needs_text, needs_chat : bool
        Whether plain prompts and conversations are asked; an endpoint may answer only one of them.
    prompts : mapping
        Requests of real items by what messages call them.
    generations : sequence of Generation
        How the plan has conversations rendered; each switch must change the rendered prompt.
    """

    needs_chat: bool
    needs_text: bool = True
    prompts: Mapping[str, Request] = field(default_factory=dict)
    generations: Sequence[Generation] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFacts:
    """What one arm said about itself. ``tokens`` holds ids, or a count where ids cannot be had."""

    arm: str
    label: str
    facts: Mapping[str, Any]
    tokens: Mapping[str, tuple[int, ...] | int]  # by probe
    rendered_chat_sha256: str | None = None  # of the token ids of a conversation
    prompts: Mapping[str, RenderedPrompt] = field(default_factory=dict)


async def probe_arm(arm: str, backend: Backend, probes: Probes) -> ArmFacts | None:
    """Ask an arm about itself; None where there is no server to ask.

    Raises
    ------
    ParityError
        The model has no chat template although a task needs one, or the template does not know a switch.
    RequestError
        The server did not answer.
    """
    if not isinstance(backend, Described):
        return None
    facts = await backend.describe()
    tokens: dict[str, tuple[int, ...] | int] = {}
    chat: tuple[int, ...] | None = None
    for text in PROBE_TEXTS:
        name = f"tokens of {text!r}"
        if isinstance(backend, Tokenizing):
            tokens[name] = await backend.tokenize(text)
        elif isinstance(backend, Counting) and probes.needs_text:
            tokens[name] = await backend.count_prompt_tokens(text)
    if probes.needs_chat:
        found = await _rendered(arm, backend, ChatOptions())
        if found is not None:
            tokens["tokens of a conversation"] = found
            chat = found if isinstance(found, tuple) else None
        for generation in probes.generations:
            await _check_switches(arm, backend, generation)
    prompts: dict[str, RenderedPrompt] = {}
    if isinstance(backend, Tokenizing):
        for name, request in probes.prompts.items():
            ids = await token_ids(backend, request)
            if ids is not None:
                prompts[name] = RenderedPrompt(tokens=len(ids), sha256=digest_of(ids))
    return ArmFacts(
        arm=arm,
        label=backend.label,
        facts=facts,
        tokens=tokens,
        rendered_chat_sha256=None if chat is None else digest_of(chat),
        prompts=prompts,
    )


def digest_of(ids: Sequence[int]) -> str:
    """SHA-256 of token ids."""
    return hashlib.sha256(canonical_json(tuple(ids)).encode()).hexdigest()


async def token_ids(backend: Tokenizing, request: Request) -> tuple[int, ...] | None:
    """The token ids that the server makes of a request; None where the request holds ids itself."""
    if request.messages is not None:
        return await backend.tokenize_chat(request.messages, request.chat)
    if request.text is not None:
        return await backend.tokenize(request.text)
    return None


async def _rendered(arm: str, backend: Backend, chat: ChatOptions) -> tuple[int, ...] | int | None:
    """The probe conversation as ids, as a count, or None where neither can be had."""
    try:
        if isinstance(backend, Tokenizing):
            return await backend.tokenize_chat(PROBE_CHAT, chat)
        if isinstance(backend, Counting):
            return await backend.count_chat_tokens(PROBE_CHAT, chat)
    except RequestError as e:
        if "template" not in str(e):
            raise
        raise ParityError(
            f"arm {arm!r} at {backend.label}: a task needs a chat template and the model has none ({e}); "
            "serve it with --chat-template, or leave out the tasks that need chat"
        ) from e
    return None


async def _check_switches(arm: str, backend: Backend, generation: Generation) -> None:
    """Each switch of the plan must change the rendered prompt, or the plan says what is not so."""
    for name, value, others in _switches(generation):
        ours = await _rendered(arm, backend, generation.chat_options(ChatOptions()))
        if ours is None:
            return
        for other in others:
            if await _rendered(arm, backend, other.chat_options(ChatOptions())) != ours:
                break
        else:
            if isinstance(ours, int):  # as many tokens need not be the same ones
                continue
            raise ParityError(
                f"arm {arm!r} at {backend.label}: the chat template does not know {name}: the prompt is the "
                f"same with {value!r} as without; name the template's own argument in the plan's "
                "generation.template_kwargs, or leave the switch out"
            )


def _switches(generation: Generation) -> Iterator[tuple[str, Any, tuple[Generation, ...]]]:
    if generation.thinking is not None:
        other: Thinking = "off" if generation.thinking == "on" else "on"
        yield "thinking", generation.thinking, (replace(generation, thinking=other),)
    if generation.reasoning_effort is not None:
        others = tuple(replace(generation, reasoning_effort=e) for e in _EFFORTS)
        yield "reasoning_effort", generation.reasoning_effort, others
    for key, value in generation.template_kwargs.items():
        kept = {k: v for k, v in generation.template_kwargs.items() if k != key}
        flipped = [{**kept, key: not value}] if isinstance(value, bool) else []
        others = tuple(replace(generation, template_kwargs=kwargs) for kwargs in (kept, *flipped))
        yield f"template_kwargs.{key}", value, others
