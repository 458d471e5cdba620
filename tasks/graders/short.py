"""Short answers of a known kind: an option, one of two words, a number, brackets, a list of words."""

import string
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import regex

from equipoise.tasks.graders.choice import grade_choice
from equipoise.tasks.graders.final import last_line, read_end, statements
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.number import grade_number, read_number

__all__ = ["ASKED", "VOCABULARIES", "Kind", "grade_short", "kind_of"]

Kind = Literal["letter", "yes/no", "true/false", "valid/invalid", "number", "brackets", "words", "text"]
VOCABULARIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"yes/no": ("Yes", "No"), "true/false": ("True", "False"), "valid/invalid": ("valid", "invalid")}
)
#: How a prompt ends that asks for the kind, behind "ANSWER:".
ASKED: Mapping[Kind, str] = MappingProxyType(
    {
        "letter": '(X)", where X is the letter of the right option.',
        "yes/no": 'W", where W is Yes or No.',
        "true/false": 'W", where W is True or False.',
        "valid/invalid": 'W", where W is valid or invalid.',
        "number": 'N", where N is the result as a number.',
        "brackets": 'B", where B are the missing brackets alone, separated by spaces.',
        "words": 'L", where L are the words in order, separated by spaces.',
        "text": 'T", where T is the answer in the words of the question.',
    }
)
_BRACKETS = "()[]{}<>"
_WORD = regex.compile(r"[A-Za-z]{1,20}")
_OPTION = regex.compile(r"(?m)^\(([A-Z])\) ?(.*)$")


def kind_of(question: str, target: str, expected: Kind) -> tuple[Kind, str]:
    """The kind by which a target is graded, and the target; an option's text becomes its letter.

    Raises
    ------
    ValueError
        The target is not of the expected kind.
    """
    if expected == "letter" and regex.fullmatch(r"\([A-Z]\)", target) is None:
        for letter, text in _OPTION.findall(question):
            if text.strip().casefold() == target.casefold():
                return "letter", f"({letter})"
        return "text", target
    fits = {
        "number": read_number(target) is not None,
        "brackets": bool(target) and set(target) <= {*_BRACKETS, " "},
        "words": bool(target.split()),
    }
    if expected in VOCABULARIES:
        fits[expected] = target.casefold() in [w.casefold() for w in VOCABULARIES[expected]]
    if not fits.get(expected, True):
        raise ValueError(f"the target {target[:80]!r} is not of the kind {expected}")
    return expected, target


def grade_short(answer: str, target: str, kind: Kind) -> Grade:
    """1 if the declared answer, or a last line that is nothing else, is the target."""
    if kind == "letter":
        return grade_choice(answer, target, letters=string.ascii_uppercase)
    if kind == "number":
        return grade_number(answer, target)
    text = read_end(answer)
    declared = [s.text for s in statements(text)]
    if kind in VOCABULARIES:
        found = _word(declared, last_line(text), VOCABULARIES[kind])
    else:
        found = declared[-1] if declared else last_line(text)
        found = "".join(c for c in found if c in _BRACKETS) if kind == "brackets" else _words(found)
    if not found:
        return Grade(value=0.0, extracted=None, reason=f"the answer declares no {kind}")
    wanted = "".join(target.split()) if kind == "brackets" else _words(target)
    return Grade(value=float(found.casefold() == wanted), extracted=found)


def _word(declared: list[str], line: str, vocabulary: tuple[str, str]) -> str:
    """The last declared word of the vocabulary, or the only one in the last line."""
    known = [w.casefold() for w in vocabulary]
    for text in reversed(declared):
        first = _WORD.search(text)
        if first is not None and first[0].casefold() in known:
            return first[0]
    in_line = {w for w in _WORD.findall(line[:500]) if w.casefold() in known}
    return in_line.pop() if len({w.casefold() for w in in_line}) == 1 else ""


def _words(text: str) -> str:
    """The words of a list, in lower case and joined by spaces, whatever separates them."""
    return " ".join(
        w.strip('*`"().:') for w in regex.split(r"[\s,;]+", text) if w.strip('*`"().:')
    ).casefold()
