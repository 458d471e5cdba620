"""Whether a program wrote what it should have: line by line, numbers by their value."""

from decimal import Decimal, InvalidOperation

__all__ = ["difference"]

_SHOWN = 80


def difference(printed: str, expected: str) -> str:
    """Why two outputs differ, or "".

    Space at the ends of lines and of the whole does not count; where lines differ as text they must be equal
    as lists of decimal numbers.
    """
    ours, theirs = _lines(printed), _lines(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} lines of output, not {len(theirs)}"
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True), 1):
        if our != their:
            a, b = _numbers(our), _numbers(their)
            if a is None or a != b:
                return f"line {number} is {our[:_SHOWN]!r}, not {their[:_SHOWN]!r}"
    return ""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _numbers(line: str) -> list[Decimal] | None:
    try:
        return [Decimal(part) for part in line.split()]
    except InvalidOperation:
        return None
