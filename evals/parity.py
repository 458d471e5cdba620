"""Are the arms the same but for what the plan allows? Checked before the first item.

What is compared: the token ids of fixed probe texts and of real items' prompts as the servers render
them, and every fact the servers give about themselves, less a fixed list of facts that do not bear
on an answer. Two arms on one server must not share pages of the prefix cache. After the run, the
prompt token counts of every item are compared from the journal.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from equipoise.evals.errors import ParityError, RequestError
from equipoise.evals.parity_probes import PROBE_TEXTS, ArmFacts, Probes, RenderedPrompt, probe_arm
from equipoise.evals.sample_json import canonical_json
from equipoise.evals.server_facts import IGNORED_FACTS
from equipoise.evals.types import Backend, Sample

__all__ = [
    "ALWAYS_ALLOWED",
    "Difference",
    "ParityReport",
    "PromptTokenParity",
    "check_parity",
    "compare_arms",
    "compare_prompt_tokens",
    "facts_changed",
    "is_same_process",
]

#: What may always differ, because it is what is tested. Everything else must be in the plan.
ALWAYS_ALLOWED = frozenset({"kv_cache_dtype", "kv_layout"})
_IGNORED = frozenset(name for names in IGNORED_FACTS.values() for name in names)

_MAX_SHOWN = 300  # characters of a fact in a message
#: A namespace may know the first tokens (BOS, a system prompt) from earlier prompts of its own.
_MAX_CACHED_SHARE = 0.25


@runtime_checkable
class _PrefixCached(Protocol):
    @property
    def label(self) -> str: ...
    async def cached_share(self, text: str) -> float: ...


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
        for name in sorted(baseline.tokens.keys() & other.tokens.keys()):
            a, b = baseline.tokens[name], other.tokens[name]
            if isinstance(a, tuple) != isinstance(b, tuple):  # ids here, a count there
                a, b = (len(x) if isinstance(x, tuple) else x for x in (a, b))
            if a != b:
                found.append(
                    Difference(
                        arm=other.arm, name=name, baseline=_shown(str(a)), value=_shown(str(b)), allowed=False
                    )
                )
        for name in sorted(baseline.prompts.keys() & other.prompts.keys()):
            ours_as, theirs_as = baseline.prompts[name], other.prompts[name]
            if ours_as != theirs_as:
                found.append(
                    Difference(
                        arm=other.arm,
                        name=f"prompt of {name}",
                        baseline=_prompt_shown(ours_as),
                        value=_prompt_shown(theirs_as),
                        allowed=False,
                    )
                )
    return tuple(found)


def _prompt_shown(prompt: RenderedPrompt) -> str:
    return f"{prompt.tokens} tokens" + (f", SHA-256 {prompt.sha256[:12]}" if prompt.sha256 else "")


async def check_parity(
    backends: Mapping[str, Backend],
    *,
    baseline: str,
    allowed: Mapping[str, Collection[str]],
    probes: Probes,
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
            facts[name] = await probe_arm(name, backend, probes)
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


def is_same_process(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether two descriptions are of one running SGLang server, under whatever addresses it was asked."""
    if ours.get("startup_time") is None:
        return False
    names = (ours.keys() | theirs.keys()) - {"internal_states", "kv_events"}  # the live ones
    return all(canonical_json(ours.get(n)) == canonical_json(theirs.get(n)) for n in names)


def facts_changed(before: ArmFacts, now: Mapping[str, Any]) -> tuple[str, ...]:
    """In what an arm's server is no longer what it was, one line a fact."""
    names = sorted((before.facts.keys() | now.keys()) - _IGNORED)
    pairs = ((n, canonical_json(before.facts.get(n)), canonical_json(now.get(n))) for n in names)
    return tuple(f"{n}: {_shown(b)}, before {_shown(a)}" for n, a, b in pairs if a != b)


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
