r"""Is a mathematical answer equal to the reference? As text, as numbers, and at last by computer algebra.

The last is math-verify in a process of its own, under limits (see math_process.py): what it cannot compare
within them is wrong, and says so.
"""

from fractions import Fraction

import regex

from equipoise.tasks.graders.final import read_end, statements
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.math_process import Comparer
from equipoise.tasks.graders.number import last_number

__all__ = ["final_expression", "grade_math"]

MAX_EXPRESSION_CHARS = 500
_COMPARER = Comparer()
_INLINE = regex.compile(r"\$\$?([^$]{1,500})\$|\\\(([^$]{1,500}?)\\\)|\\\[([^$]{1,500}?)\\\]")
_DROPPED = regex.compile(
    r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle|\\[!,;: ]|\\\$|\^\{?\\circ\}?|[\s$]|\{,\}"
)
_WORDS = regex.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox)\{([^{}]{0,200})\}")
_FRACTION = regex.compile(r"(-?)\\[dt]?frac\{(-?\d{1,60})\}\{(\d{1,60})\}")
_NUMBER = regex.compile(r"-?(?:\d{1,60}|\d{1,3}(?:,\d{3}){1,20})?(?:\.\d{1,60})?")


def grade_math(answer: str, target: str) -> Grade:
    """1 if the answer's final expression equals ``target``, which is LaTeX."""
    found = final_expression(answer)
    if found is None:
        return Grade(value=0.0, extracted=None, reason="the answer has no expression")
    if len(found) > MAX_EXPRESSION_CHARS:
        reason = f"not compared: more than {MAX_EXPRESSION_CHARS} characters"
        return Grade(value=0.0, extracted=found, reason=reason)
    mine, theirs = _as_text(found), _as_text(target)
    if mine == theirs:
        return Grade(value=1.0, extracted=found)
    numbers = _as_number(mine), _as_number(theirs)
    if None not in numbers:
        return Grade(value=float(numbers[0] == numbers[1]), extracted=found)
    reply = _COMPARER.compare(target, found)
    if "failed" in reply:
        return Grade(value=0.0, extracted=found, reason=reply["failed"])
    reason = "" if reply["read"] else "the answer is not LaTeX that can be read"
    return Grade(value=float(reply["equal"]), extracted=found, reason=reason)


def final_expression(answer: str) -> str | None:
    r"""The declared result, or else the last formula, or else the last number."""
    text = read_end(answer)
    declared = statements(text)
    if declared:
        found = declared[-1].text.strip().strip("*_` ")
        inline = _INLINE.match(found)
        found = _group(inline) if inline is not None else found
        return found.removesuffix(".").removesuffix("。").strip() or None
    formulas = list(_INLINE.finditer(text[-4 * MAX_EXPRESSION_CHARS :]))
    if formulas:
        return _group(formulas[-1])
    number = last_number(text)
    return None if number is None else number[0]


def _group(match: regex.Match[str]) -> str:
    return next((g for g in match.groups() if g is not None), "").strip().removesuffix(".").strip()


def _as_text(expression: str) -> str:
    """Without what only sets type: spaces, sizes, units in words keep their words."""
    text = _WORDS.sub(r"\1", expression)
    text = _DROPPED.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return text.rstrip(".").casefold()


def _as_number(text: str) -> Fraction | None:
    fraction = _FRACTION.fullmatch(text)
    if fraction is not None:
        top, bottom = int(fraction[2]), int(fraction[3])
        return None if bottom == 0 else Fraction(-top if fraction[1] else top, bottom)
    if text and any(c.isdigit() for c in text) and _NUMBER.fullmatch(text):
        return Fraction(text.replace(",", ""))
    return None
