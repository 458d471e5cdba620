"""Instructions about the form of an answer: lists, sections, titles, JSON, quotation.

Every function takes the instruction's arguments and the answer, and says whether it was followed and what was
found. Linear in the answer's length: answers are hostile.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from equipoise.tasks.graders.ifeval.relation import Found

__all__ = [
    "bullets",
    "constrained",
    "highlights",
    "json_format",
    "paragraphs",
    "placeholders",
    "postscript",
    "quotation",
    "sections",
    "title",
    "two_responses",
]

_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_HIGHLIGHT = re.compile(r"\*([^\n*]*)\*")
_DOUBLE_HIGHLIGHT = re.compile(r"\*\*([^\n*]*)\*\*")
_DIVIDER = re.compile(r"\s?\*\*\*\s?")
_POSTSCRIPTS = {"P.S.": re.compile(r"p\.\s?s\."), "P.P.S": re.compile(r"p\.\s?p\.\s?s")}
_FENCES = ("```json", "```Json", "```JSON", "```")


def _count(found: int, wanted: int, what: str, *, exactly: bool = False) -> Found:
    return found == wanted if exactly else found >= wanted, f"{found} {what}, wanted {wanted}"


def placeholders(args: Mapping[str, Any], answer: str) -> Found:
    """At least so many ``[placeholders]``, each on one line."""
    found = 0
    for line in answer.split("\n"):
        at = line.find("[")
        while at >= 0 and (end := line.find("]", at)) >= 0:
            found += 1
            at = line.find("[", end)
    return _count(found, args["num_placeholders"], "placeholders")


def bullets(args: Mapping[str, Any], answer: str) -> Found:
    """Exactly so many lines that begin with ``*`` (but not ``**``) or ``-``.

    A star alone takes the next line for its text, as in the reference.
    """
    lines = [line.lstrip() for line in answer.split("\n")]
    found = sum(line.startswith("-") for line in lines)
    taken = False
    for line, last in zip(lines, [False] * (len(lines) - 1) + [True], strict=True):
        alone = line == "*" and not taken and not last
        found += not taken and (alone or (line.startswith("*") and line[1:2] not in ("", "*")))
        taken = alone
    return _count(found, args["num_bullets"], "bullets", exactly=True)


def constrained(args: Mapping[str, Any], answer: str) -> Found:
    """Says one of the three options."""
    found = next((o for o in _OPTIONS if o in answer), None)
    return found is not None, f"says {found!r}" if found else "says none of the options"


def highlights(args: Mapping[str, Any], answer: str) -> Found:
    """At least so many ``*highlighted*`` or ``**highlighted**`` parts."""
    found = sum(
        bool(m[1].strip()) for pattern in (_HIGHLIGHT, _DOUBLE_HIGHLIGHT) for m in pattern.finditer(answer)
    )
    return _count(found, args["num_highlights"], "highlights")


def sections(args: Mapping[str, Any], answer: str) -> Found:
    """At least so many headings of the word and a number, such as ``Section 1``."""
    word = args["section_spliter"].strip()
    found = sum(1 for _ in re.finditer(re.escape(word) + r"\s?\d+", answer))
    return _count(found, args["num_sections"], f"of {word!r} with a number")


def paragraphs(args: Mapping[str, Any], answer: str) -> Found:
    """Exactly so many paragraphs between ``***`` dividers; only the first and last may be empty."""
    parts = [bool(p.strip()) for p in _DIVIDER.split(answer)]
    if not all(parts[1:-1]):
        return False, "an empty paragraph between two dividers"
    return _count(sum(parts), args["num_paragraphs"], "paragraphs", exactly=True)


def postscript(args: Mapping[str, Any], answer: str) -> Found:
    """Has a postscript with this marker."""
    marker = args["postscript_marker"].strip()
    pattern = _POSTSCRIPTS.get(marker)
    low = answer.lower()
    followed = pattern.search(low) is not None if pattern else marker.lower() in low
    return followed, f"{'a' if followed else 'no'} postscript {marker!r}"


def json_format(args: Mapping[str, Any], answer: str) -> Found:
    """All of it is one JSON value, perhaps in a code fence."""
    text = answer.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError) as e:
        return False, f"not JSON ({str(e)[:60]})"
    return True, "JSON"


def title(args: Mapping[str, Any], answer: str) -> Found:
    """Has a ``<<title>>`` on one line."""
    followed = any(_titles(answer))
    return followed, f"{'a' if followed else 'no'} title"


def _titles(answer: str) -> Iterator[bool]:
    """Whether each ``<<...>>`` has something in it; a line's is from its first ``<<`` to its last ``>>``."""
    for line in answer.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if start >= 0 and end >= start + 3:
            yield bool(line[start : end + 2].lstrip("<").rstrip(">").strip())


def two_responses(args: Mapping[str, Any], answer: str) -> Found:
    """Two different responses with ``******`` between them, none of the inner parts empty."""
    parts = [p.strip() for p in answer.split("******")]
    if not all(parts[1:-1]):
        return False, "an empty response between two separators"
    found = [p for p in parts if p]
    if len(found) != 2:
        return False, f"{len(found)} responses, wanted 2"
    return found[0] != found[1], "two responses" if found[0] != found[1] else "the same response twice"


def quotation(args: Mapping[str, Any], answer: str) -> Found:
    """Wrapped in double quotation marks."""
    text = answer.strip()
    followed = len(text) > 1 and text[0] == text[-1] == '"'
    return followed, "quoted" if followed else "not in double quotation marks"
