"""The Python in an answer: a fenced block, bare code, or the body of a function that was begun for it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FoundCode", "code_of"]

_FENCE = re.compile(r"[ \t]{0,8}(`{3,}|~{3,})[ \t]*([A-Za-z0-9_+.-]{0,20})[^`\n]{0,200}$")
_PYTHON = frozenset({"", "python", "python3", "py", "py3", "python2", "pycon"})
_CODE_LINE = re.compile(
    r"(?:from|import|def|class|async|@|#|if|for|while|try|with|[A-Za-z_][\w.]{0,80}\s*[=(\[:])"
)
_BEGINNING = re.compile(
    r"^(?:from\s+\S+\s+import\b|import\s+\w|def\s+\w|class\s+\w|async\s+def\b|@\w)", re.MULTILINE
)
_MAX_FENCE_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCode:
    """``code`` as it was found; ``is_body``: it continues a function that was begun for it."""

    code: str
    is_body: bool = False


def code_of(answer: str, *, names: Sequence[str] = (), body_allowed: bool = False) -> FoundCode | None:
    """The code of an answer; None if there is none.

    The last Python block that defines all of ``names`` counts (else the last one that defines any, else the
    last). Without a block, code is what begins like Python and goes on until prose does. With
    ``body_allowed`` indented text, or a block that defines nothing, continues the prompt's function.
    """
    blocks = _blocks(answer)
    if blocks:
        scored = [(sum(_defines(code, name) for name in names), at) for at, code in enumerate(blocks)]
        code = blocks[max(scored)[1]]
        return FoundCode(code=code, is_body=body_allowed and not _BEGINNING.search(code))
    lines = answer.splitlines()
    first = next((at for at, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return None
    start = next((at for at, line in enumerate(lines) if _BEGINNING.match(line)), None)
    if body_allowed and lines[first][:1] in (" ", "\t") and (start is None or not _any(lines, names)):
        return FoundCode(code=_until_prose(lines, first), is_body=True)
    return None if start is None else FoundCode(code=_until_prose(lines, start))


def _blocks(answer: str) -> list[str]:
    """Fenced blocks of Python, or without a language; the last may lack its end.

    A fence that is indented by four more than the first belongs to the code, such as to a docstring
    (CommonMark 0.31, 4.5), unless the block has no other end.
    """
    found, ended = _read_blocks(answer, inner=4)
    return found if ended else _read_blocks(answer, inner=_MAX_FENCE_CHARS)[0]


def _read_blocks(answer: str, *, inner: int) -> tuple[list[str], bool]:
    """The blocks, and whether the last one ended; ``inner``: how far a fence within code is indented."""
    found: list[str] = []
    fence, is_python, margin = "", False, 0
    lines: list[str] = []
    for line in answer.splitlines():
        match = _FENCE.match(line) if len(line) <= _MAX_FENCE_CHARS else None
        indent = len(line) - len(line.lstrip())
        if not fence and match:
            fence, is_python, lines = match[1], match[2].lower() in _PYTHON, []
            margin = indent  # of a block in a list, whose lines are indented too
        elif fence and match and match[1].startswith(fence) and not match[2] and indent < margin + inner:
            if is_python and any(x.strip() for x in lines):
                found.append("\n".join(lines) + "\n")
            fence = ""
        elif fence:
            lines.append(line[min(margin, indent) :])
    if fence and is_python and any(x.strip() for x in lines):
        found.append("\n".join(lines) + "\n")
    return found, not fence


def _defines(code: str, name: str) -> bool:
    return f"def {name}(" in code or f"class {name}" in code


def _any(lines: Sequence[str], names: Sequence[str]) -> bool:
    return any(_defines(line, name) for line in lines for name in names)


def _until_prose(lines: Sequence[str], start: int) -> str:
    """Lines from ``start`` on, up to the first one at the margin that is no Python."""
    kept: list[str] = []
    for at in range(start, len(lines)):
        line = lines[at]
        if at > start and line[:1].strip() and line[0] not in ")]}'\"" and not _CODE_LINE.match(line):
            break
        kept.append(line)
    return "\n".join(kept) + "\n"
