r"""Where an answer says what its result is: ``ANSWER: x``, "the answer is x", ``\boxed{x}``, ``#### 5``.

Everything here takes time linear in the text: only its end is read, every repetition is bounded.
"""

from collections import deque
from dataclasses import dataclass

import regex

__all__ = ["Statement", "last_line", "read_end", "statements"]

MAX_CHARS = 100_000
MAX_STATEMENT_CHARS = 2000
MAX_STATEMENTS = 20  # of a kind, the last ones
_DECLARED = regex.compile(
    r"(?i)(?:\banswer|\b(?:correct|right|best)\s(?:option|choice)|答案|(?:正确|最佳)选项|故选|应选|(?:因此|所以)选)"
    r"[*_`\s]{0,6}(?:(?:choice|option|letter)[*_`\s]{0,6})?"
    r"(?:(?<=故选|[应此以]选)|(?:would|should|must)\sbe|is|:|：|=|是|为|為)[*_:：\s]{0,8}"
)
# Of GSM8K; a line of a number alone, or it would be a heading.
_HASHES = regex.compile(r"(?m)(?<!#)#{4}[ \t]{0,8}(?=[^\s\w]{0,3}\d[\d,. ]{0,60}\W{0,3}$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A declared result; ``at`` is where it stands in the text."""

    at: int
    text: str


def read_end(answer: str) -> str:
    """The end of an answer, as long as is read at all."""
    return answer[-MAX_CHARS:].strip()


def last_line(text: str) -> str:
    """The last line that is not blank."""
    return text.rstrip().rpartition("\n")[2].strip()


def statements(text: str) -> list[Statement]:
    """The last declared results in ``text``, by position: the very last is what counts."""
    found = _boxes(text)
    for pattern in (_DECLARED, _HASHES):
        starts = deque((m.end() for m in pattern.finditer(text)), maxlen=MAX_STATEMENTS)
        found += [_to_line_end(text, start) for start in starts]
    return sorted((s for s in found if s.text), key=lambda s: s.at)


def _to_line_end(text: str, start: int) -> Statement:
    end = text.find("\n", start, start + MAX_STATEMENT_CHARS)
    stop = end if end >= 0 else start + MAX_STATEMENT_CHARS
    return Statement(at=start, text=text[start:stop].strip())


def _boxes(text: str) -> list[Statement]:
    r"""The contents of the last ``\boxed{...}``, whose braces must close."""
    found: list[Statement] = []
    at = len(text)
    for _ in range(MAX_STATEMENTS):
        at = text.rfind("\\boxed", 0, at)
        if at < 0:
            break
        start = at + len("\\boxed")
        while text[start : start + 1] == " ":
            start += 1
        if text[start : start + 1] == "{" and (inner := _braced(text, start + 1)) is not None:
            # Placed behind the words that lead to it, so that it and not they are the result.
            found.append(Statement(at=start, text=inner.strip()))
        elif text[start : start + 1].isalnum():
            found.append(Statement(at=start, text=text[start]))
    return found


def _braced(text: str, start: int) -> str | None:
    depth, at = 1, start
    while at < min(len(text), start + MAX_STATEMENT_CHARS):
        char = text[at]
        if char == "\\":
            at += 2
            continue
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[start:at]
        at += 1
    return None
