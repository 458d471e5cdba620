"""Which instructions an answer follows: strictly as it stands, or loosely without its frame.

Loosely, an instruction is followed if it is in any of eight variants of the answer: with or without
asterisks, its first line (an introduction) and its last (a closing remark).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.ifeval import layout, wording
from equipoise.tasks.graders.ifeval.relation import RELATIONS, Found

__all__ = ["KINDS", "Instruction", "Kind", "follow", "instructions_of"]

Check = Callable[[Mapping[str, Any], str], Found]
_MAX_REASON = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """``args`` names the arguments and their types; a relation is "at least" or "less than"."""

    check: Check
    args: Mapping[str, type] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    kind: str
    args: Mapping[str, Any]


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "change_case:capital_word_frequency": Kind(
            check=wording.capital_words, args={"capital_relation": str, "capital_frequency": int}
        ),
        "change_case:english_capital": Kind(check=wording.all_capitals),
        "change_case:english_lowercase": Kind(check=wording.all_lowercase),
        "combination:repeat_prompt": Kind(check=wording.repeat_prompt, args={"prompt_to_repeat": str}),
        "combination:two_responses": Kind(check=layout.two_responses),
        "detectable_content:number_placeholders": Kind(
            check=layout.placeholders, args={"num_placeholders": int}
        ),
        "detectable_content:postscript": Kind(check=layout.postscript, args={"postscript_marker": str}),
        "detectable_format:constrained_response": Kind(check=layout.constrained),
        "detectable_format:json_format": Kind(check=layout.json_format),
        "detectable_format:multiple_sections": Kind(
            check=layout.sections, args={"section_spliter": str, "num_sections": int}
        ),
        "detectable_format:number_bullet_lists": Kind(check=layout.bullets, args={"num_bullets": int}),
        "detectable_format:number_highlighted_sections": Kind(
            check=layout.highlights, args={"num_highlights": int}
        ),
        "detectable_format:title": Kind(check=layout.title),
        "keywords:existence": Kind(check=wording.keywords, args={"keywords": list}),
        "keywords:forbidden_words": Kind(check=wording.forbidden_words, args={"forbidden_words": list}),
        "keywords:frequency": Kind(
            check=wording.keyword_frequency, args={"relation": str, "keyword": str, "frequency": int}
        ),
        "keywords:letter_frequency": Kind(
            check=wording.letter_frequency, args={"let_relation": str, "letter": str, "let_frequency": int}
        ),
        "language:response_language": Kind(check=wording.language, args={"language": str}),
        "length_constraints:nth_paragraph_first_word": Kind(
            check=wording.first_word, args={"num_paragraphs": int, "nth_paragraph": int, "first_word": str}
        ),
        "length_constraints:number_paragraphs": Kind(check=layout.paragraphs, args={"num_paragraphs": int}),
        "length_constraints:number_sentences": Kind(
            check=wording.sentences, args={"relation": str, "num_sentences": int}
        ),
        "length_constraints:number_words": Kind(
            check=wording.words, args={"relation": str, "num_words": int}
        ),
        "punctuation:no_comma": Kind(check=wording.no_comma),
        "startend:end_checker": Kind(check=wording.end_phrase, args={"end_phrase": str}),
        "startend:quotation": Kind(check=layout.quotation),
    }
)


def instructions_of(kinds: Sequence[str], args: Sequence[Mapping[str, Any]]) -> tuple[Instruction, ...]:
    """A row's instructions; arguments that are None (as the hub has them) are left out.

    Raises
    ------
    ValueError
        An unknown kind, or arguments that are missing, unknown or of another type.
    """
    if len(kinds) != len(args) or not kinds:
        raise ValueError(f"{len(kinds)} instruction ids with {len(args)} sets of kwargs")
    return tuple(_instruction(kind, given) for kind, given in zip(kinds, args, strict=True))


def _instruction(kind: str, given: Mapping[str, Any]) -> Instruction:
    known = KINDS.get(kind)
    if known is None:
        raise ValueError(f"unknown instruction id {kind!r}")
    args = {k: v for k, v in given.items() if v is not None}
    if args.keys() != known.args.keys():
        raise ValueError(f"{kind} takes {sorted(known.args)}, not {sorted(args)}")
    for name, wanted in known.args.items():
        value = args[name]
        # Numbers of a column with gaps come back from the hub as floats.
        if wanted is int and isinstance(value, float) and value.is_integer():
            args[name] = value = int(value)
        if type(value) is not wanted or (
            isinstance(value, list) and not all(isinstance(v, str) for v in value)
        ):
            raise ValueError(f"{kind}: {name} is {value!r}")
        if name.endswith("relation") and value not in RELATIONS:
            raise ValueError(f"{kind}: {name} must be one of {RELATIONS}, not {value!r}")
    return Instruction(kind=kind, args=args)


def follow(instructions: Iterable[Instruction], answer: str, *, loose: bool = False) -> Grade:
    """1 if every instruction is followed; the reason tells of each one."""
    variants = _variants(answer) if loose else [answer]
    variants = [v for v in variants if v.strip()]
    told: list[tuple[bool, str]] = []
    for instruction in instructions:
        followed, what = _first(instruction, variants)
        told.append((followed, f"{'+' if followed else '-'} {instruction.kind} ({what})"))
    right = sum(followed for followed, _ in told)
    return Grade(
        value=float(right == len(told)),
        extracted=answer.strip() or None,
        reason=f"{right}/{len(told)} followed: {'; '.join(text for _, text in told)}"[:_MAX_REASON],
    )


def _first(instruction: Instruction, variants: Sequence[str]) -> Found:
    """What was found in the first variant that follows, else in the answer as it stands."""
    check = KINDS[instruction.kind].check
    as_it_stands: Found = (False, "an empty answer")
    for at, variant in enumerate(variants):
        found = check(instruction.args, variant)
        if found[0]:
            return found
        if at == 0:
            as_it_stands = found
    return as_it_stands


def _variants(answer: str) -> list[str]:
    lines = answer.split("\n")
    cut = [answer, *("\n".join(lines[part]).strip() for part in (slice(1, None), slice(-1), slice(1, -1)))]
    return [*cut, *(text.replace("*", "") for text in cut)]
