"""Numbers on the command line: refused with the argument's name and what would be accepted."""

import math
from typing import Any

import click

__all__ = ["ALPHA", "COUNT", "LEVEL", "LOSS", "MARGIN", "POWER", "SEED", "SHARE", "SIZE", "Number"]

_MOST = 10**9


class Number(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """A finite number between two bounds; ``closed`` says which of them may be reached.

    Parameters
    ----------
    what
        What it is, for the message: "a margin", "a p-value".
    low, high
        Bounds.
    closed
        "both", "low", "high" or "neither".
    """

    name = "number"

    def __init__(self, what: str, low: float, high: float, *, closed: str = "neither") -> None:
        self.what, self.low, self.high, self.closed = what, low, high, closed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        accepted = (
            f"give {self.what} {'from' if self.closed in ('both', 'low') else 'above'} {self.low:g}"
            + f" {'up to' if self.closed in ('both', 'high') else 'and below'} {self.high:g}"
        )
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number; {accepted}", param, ctx)
        above = number >= self.low if self.closed in ("both", "low") else number > self.low
        below = number <= self.high if self.closed in ("both", "high") else number < self.high
        if not (math.isfinite(number) and above and below):
            self.fail(f"{value} is out of range; {accepted}", param, ctx)
        return number


class Whole(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """A whole number from ``low`` to a thousand million."""

    name = "integer"

    def __init__(self, what: str, low: int) -> None:
        self.what, self.low = what, low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        accepted = f"give {self.what}, a whole number from {self.low:,} to {_MOST:,}"
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number; {accepted}", param, ctx)
        if not self.low <= number <= _MOST:
            self.fail(f"{number:,} is out of range; {accepted}", param, ctx)
        return number


COUNT = Whole("a number of pairs", 0)
SIZE = Whole("how many", 1)
MARGIN = Number("a margin (a fraction, .02 is two points)", 0, 1)
ALPHA = Number("a one-sided alpha", 1e-9, 0.5, closed="low")
LEVEL = Number("a level", 0.01, 0.999999, closed="both")
SEED = click.IntRange(min=0)
POWER = Number("a power", 0, 1)
SHARE = Number("a share of discordant answers", 0, 1, closed="both")
LOSS = Number("a true loss", -1, 1)
