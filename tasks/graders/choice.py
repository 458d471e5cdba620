r"""Which option does an answer choose? ``ANSWER: C``, "the answer is (C)", ``\boxed{C}``, or a last line "C".

The last statement counts. A capital letter that nothing declares is never taken for a choice.
"""

import regex

from equipoise.tasks.graders.final import last_line, read_end, statements
from equipoise.tasks.graders.grade import Grade

__all__ = ["LETTERS", "chosen_letter", "grade_choice"]

LETTERS = "ABCDEFGHIJ"
#: Full-width letters and marks, and spaces without width.
_WIDE = {**{0xFF01 + i: 0x21 + i for i in range(94)}, 0x200B: None, 0xFEFF: None}
_OPEN = (
    r"[\s*_`\"'“‘$(\[{]{0,8}(?:\\[(\[][\s*_(]{0,4})?"
    r"(?:\\(?:boxed|text|textbf|textrm|mathrm|mathbf)\{[\s*_(]{0,4}){0,3}"
    r"(?:(?i:option|choice|letter)[\s*_]{1,4})?[\s*_(\"'“]{0,4}"
)
_CLOSE = r"[\s*_`\"'”’$)\]}.:\\]{0,10}"
# "A" and "I" are words too: before another word they are a choice only if that gives a reason.
_WORD = r"(?!['’]?[A-Za-z0-9_])(?!(?<=[AI])\s[a-z](?!ecause|ince|hich|here|s\b|ith|or\b|ue\b|iven))"
_LEADING = regex.compile(rf"{_OPEN}(?:([A-Z]){_WORD}|([a-z])(?={_CLOSE}$))")
_ANOTHER = regex.compile(rf"{_CLOSE}(?:,|/|&|or\b|and\b){_OPEN}([A-Z])(?={_CLOSE}(?:$|,|/|or\b|and\b))")
_CORRECT = regex.compile(
    r"(?<![A-Za-z0-9_'’])\(?([A-Z])\)?[*_\s]{1,4}is[*_\s]{1,4}(?:the[\s*_]{1,4})?(?i:correct|right|best)\b"
)
_ALONE = regex.compile(rf"{_OPEN}([A-Za-z]){_CLOSE}")
_LABELLED = regex.compile(r"(?m)^[ \t>*_#-]{0,6}\(?([A-Z])[).:][*_]{0,3}(?:[ \t]|$)")
_BOLD = regex.compile(r"\*\*\(?([A-Z])(?:[).:][^*\n]{0,200})?\*\*")


def grade_choice(answer: str, target: str, *, letters: str = LETTERS) -> Grade:
    """1 if the chosen option is ``target``, one of ``letters``, with or without brackets.

    Raises
    ------
    ValueError
        The target is none of them: the data is wrong, not the answer.
    """
    right = target.strip().strip("()").upper()
    if len(right) != 1 or right not in letters:
        raise ValueError(f"the target {target[:80]!r} is none of the options {letters}")
    chosen, reason = chosen_letter(answer, letters=letters)
    if chosen is None:
        return Grade(value=0.0, extracted=None, reason=reason)
    return Grade(value=float(chosen == right), extracted=chosen, reason=reason)


def chosen_letter(answer: str, *, letters: str = LETTERS) -> tuple[str | None, str]:
    """The letter of the chosen option, or None and why there is none."""
    text = read_end(answer).translate(_WIDE)
    found: list[tuple[int, str | None]] = []
    as_asked = False
    for statement in statements(text):
        leading = _LEADING.match(statement.text)
        if leading is None or (letter := (leading[1] or leading[2]).upper()) not in letters:
            continue
        another = _ANOTHER.match(statement.text, leading.end())
        several = another is not None and another[1] in letters and another[1] != letter
        found.append((statement.at, None if several else letter))
        as_asked |= text[: statement.at].rstrip("*_ \t\n").endswith((":", "：", "\\boxed"))
    if not as_asked:  # else what an explanation calls correct is no second answer
        found += [(m.start(), m[1]) for m in _CORRECT.finditer(text) if m[1] in letters]
    line = last_line(text)
    if (alone := _ALONE.fullmatch(line[:200])) is not None and alone[1].upper() in letters:
        found.append((len(text), alone[1].upper()))
    if found:
        chosen = max(found, key=lambda f: f[0])[1]
        return chosen, "" if chosen else "the answer names more than one option"
    for pattern, how in (
        (_LABELLED, "the one option that begins a line"),
        (_BOLD, "the one in bold"),
    ):
        marked = {m[1] for m in pattern.finditer(text)} & set(letters)
        if len(marked) == 1:
            return marked.pop(), how
    return None, "the answer declares no option"
