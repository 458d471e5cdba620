"""Are the arms the same but for what the plan allows? Checked before the first item.

What is compared: the token ids of fixed probe texts, the rendered conversation if a task needs
chat, and every fact the servers give about themselves, less a fixed list of facts that do not bear
on an answer. Two arms on one server must not share pages of the prefix cache. After the run, the
prompt token counts of every item are compared from the journal.
"""

import hashlib
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from equipoise.evals.errors import ParityError, RequestError
from equipoise.evals.sample_json import canonical_json
from equipoise.evals.server_facts import IGNORED_FACTS
from equipoise.evals.types import Backend, Message, Sample

__all__ = [
    "ALWAYS_ALLOWED",
    "ArmFacts",
    "Difference",
    "ParityReport",
    "PromptTokenParity",
    "check_parity",
    "compare_arms",
    "compare_prompt_tokens",
    "probe_arm",
]

#: What may always differ, because it is what is tested. Everything else must be in the plan.
ALWAYS_ALLOWED = frozenset({"kv_cache_dtype", "kv_layout"})
_IGNORED = frozenset(name for names in IGNORED_FACTS.values() for name in names)

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
_MAX_SHOWN = 300  # characters of a fact in a message
#: A namespace may know the first tokens (BOS, a system prompt) from earlier prompts of its own.
_MAX_CACHED_SHARE = 0.25


@runtime_checkable
class _Described(Protocol):
    async def describe(self) -> Mapping[str, Any]: ...


@runtime_checkable
class _Tokenizing(Protocol):
    async def tokenize(self, text: str) -> tuple[int, ...]: ...
    async def tokenize_chat(self, messages: Sequence[Message]) -> tuple[int, ...]: ...


@runtime_checkable
class _Counting(Protocol):
    async def count_prompt_tokens(self, text: str) -> int: ...
    async def count_chat_tokens(self, messages: Sequence[Message]) -> int: ...


@runtime_checkable
class _PrefixCached(Protocol):
    @property
    def label(self) -> str: ...
    async def cached_share(self, text: str) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFacts:
    """What one arm said about itself. ``tokens`` holds ids, or a count where ids cannot be had."""

    arm: str
    label: str
    facts: Mapping[str, Any]
    tokens: Mapping[str, tuple[int, ...] | int]  # by probe
    rendered_chat_sha256: str | None = None  # of the token ids of a conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact in which an arm differs from the baseline."""

    arm: str
    name: str
    baseline: str  # as JSON
    value: str
    allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityReport:
    """All arms against the baseline. ``unchecked`` names arms without a server to ask (replay)."""

    baseline: str
    arms: tuple[ArmFacts, ...]
    differences: tuple[Difference, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def forbidden(self) -> tuple[Difference, ...]:
        return tuple(d for d in self.differences if not d.allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokenParity:
    """Prompt token counts of the same items in two arms. ``examples`` are (task, item, a, b)."""

    compared: int
    mismatched: int
    examples: tuple[tuple[str, str, int, int], ...]


async def probe_arm(
    arm: str, backend: Backend, *, needs_chat: bool, needs_text: bool = True
) -> ArmFacts | None:
    """Ask an arm about itself; None where there is no server to ask.

    ``needs_text`` is for endpoints that only chat: without it no plain prompt is sent.

    Raises
    ------
    ParityError
        The model has no chat template although a task needs one.
    RequestError
        The server did not answer.
    """
    if not isinstance(backend, _Described):
        return None
    facts = await backend.describe()
    tokens: dict[str, tuple[int, ...] | int] = {}
    chat: tuple[int, ...] | None = None
    for text in PROBE_TEXTS if needs_text else ():
        name = f"tokens of {text!r}"
        if isinstance(backend, _Tokenizing):
            tokens[name] = await backend.tokenize(text)
        elif isinstance(backend, _Counting):
            tokens[name] = await backend.count_prompt_tokens(text)
    if needs_chat:
        try:
            if isinstance(backend, _Tokenizing):
                chat = tokens["tokens of a conversation"] = await backend.tokenize_chat(PROBE_CHAT)
            elif isinstance(backend, _Counting):
                tokens["tokens of a conversation"] = await backend.count_chat_tokens(PROBE_CHAT)
        except RequestError as e:
            if "template" not in str(e):
                raise
            raise ParityError(
                f"arm {arm!r} at {backend.label}: a task needs a chat template and the model has none ({e}); "
                "serve it with --chat-template, or leave out the tasks that need chat"
            ) from e
    return ArmFacts(
        arm=arm,
        label=backend.label,
        facts=facts,
        tokens=tokens,
        rendered_chat_sha256=None
        if chat is None
        else hashlib.sha256(canonical_json(chat).encode()).hexdigest(),
    )


def compare_arms(
    baseline: ArmFacts, others: Sequence[ArmFacts], *, allowed: Mapping[str, Collection[str]]
) -> tuple[Difference, ...]:
    """Every fact and token in which an arm differs from the baseline, ignored ones left out.

    Parameters
    ----------
    allowed : mapping
        For each arm, the facts in which it may differ beyond ``ALWAYS_ALLOWED``. Token ids may
        never differ.
    """
    found: list[Difference] = []
    for other in others:
        may = ALWAYS_ALLOWED | frozenset(allowed.get(other.arm, ()))
        for name in sorted((baseline.facts.keys() | other.facts.keys()) - _IGNORED):
            ours, theirs = (canonical_json(f.facts.get(name)) for f in (baseline, other))
            if ours != theirs:
                found.append(
                    Difference(
                        arm=other.arm,
                        name=name,
                        baseline=_shown(ours),
                        value=_shown(theirs),
                        allowed=name in may,
                    )
                )
        for name in sorted(baseline.tokens.keys() | other.tokens.keys()):
            a, b = baseline.tokens.get(name), other.tokens.get(name)
            if isinstance(a, tuple) != isinstance(b, tuple):  # ids here, a count there
                a, b = (len(x) if isinstance(x, tuple) else x for x in (a, b))
            if a != b:
                found.append(
                    Difference(
                        arm=other.arm, name=name, baseline=_shown(str(a)), value=_shown(str(b)), allowed=False
                    )
                )
    return tuple(found)


async def check_parity(
    backends: Mapping[str, Backend],
    *,
    baseline: str,
    allowed: Mapping[str, Collection[str]],
    needs_chat: bool,
    needs_text: bool = True,
) -> ParityReport:
    """Compare all arms with the baseline.

    Parameters
    ----------
    backends : mapping
        By the arm's name.
    baseline : str
        The arm that the others are compared with.
    allowed : mapping
        By arm, the facts that may differ; a control's own fault, for example.

    Raises
    ------
    ParityError
        A difference that is not allowed, a missing chat template, or arms that share cache pages.
    RequestError
        An arm did not answer.
    """
    facts: dict[str, ArmFacts | None] = {}
    for name, backend in backends.items():
        try:
            facts[name] = await probe_arm(name, backend, needs_chat=needs_chat, needs_text=needs_text)
        except RequestError as e:
            raise RequestError(
                f"arm {name!r} did not say what it serves: {e}; check the URL and that the server is up, "
                "then continue with --resume",
                retryable=e.retryable,
                unreachable=e.unreachable,
            ) from e
    unchecked = tuple(name for name, f in facts.items() if f is None)
    known = tuple(f for f in facts.values() if f is not None)
    reference = facts[baseline]
    differences: tuple[Difference, ...] = ()
    if reference is not None:
        others = [f for f in known if f.arm != baseline]
        differences = compare_arms(reference, others, allowed=allowed)
    report = ParityReport(baseline=baseline, arms=known, differences=differences, unchecked=unchecked)
    if report.forbidden:
        found = "; ".join(
            f"arm {d.arm!r} {d.name}: {d.value} (baseline {baseline!r}: {d.baseline})"
            for d in report.forbidden
        )
        raise ParityError(
            f"the arms differ in what the plan does not allow: {found}; "
            "start the servers alike, or list the facts in the plan's allowed_differences"
        )
    await _check_cache_namespaces(backends)
    return report


async def _check_cache_namespaces(backends: Mapping[str, Backend]) -> None:
    """Two arms on one server must not read each other's pages of the prefix cache."""
    first: dict[str, tuple[str, str]] = {}
    for arm, backend in backends.items():
        if not isinstance(backend, _PrefixCached):
            continue
        label = backend.label
        if label not in first:
            # New to every namespace, also when the run is resumed.
            first[label] = (arm, f"{uuid.uuid4()} " + PROBE_TEXTS[0] * 5)
            await backend.cached_share(first[label][1])
        else:
            other, text = first[label]
            share = await backend.cached_share(text)
            if share > _MAX_CACHED_SHARE:
                raise ParityError(
                    f"arms {other!r} and {arm!r} at {label} share the prefix cache ({share:.0%} of a "
                    "probe was read from it): the second would only repeat the first; give the backends "
                    "different cache_salt values (SGLang 0.5.23 or newer), or serve the arms separately"
                )


def compare_prompt_tokens(
    baseline: Iterable[Sample], candidate: Iterable[Sample], *, max_examples: int = 5
) -> PromptTokenParity:
    """Whether the servers made the same number of tokens of each item's first prompt.

    Later turns contain answers and may differ. Samples without an output are left out.
    """
    known = {
        (s.key.task, s.key.item_id, s.key.repeat): s.outputs[0].prompt_tokens for s in baseline if s.outputs
    }
    compared = mismatched = 0
    examples: list[tuple[str, str, int, int]] = []
    for s in candidate:
        ours = known.get((s.key.task, s.key.item_id, s.key.repeat))
        if ours is None or not s.outputs:
            continue
        compared += 1
        theirs = s.outputs[0].prompt_tokens
        if theirs != ours:
            mismatched += 1
            if len(examples) < max_examples:
                examples.append((s.key.task, s.key.item_id, ours, theirs))
    return PromptTokenParity(compared=compared, mismatched=mismatched, examples=tuple(examples))


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
