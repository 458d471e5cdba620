"""What a plot shows, before it is drawn: rows of a point with its interval on one scale."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Axis", "Mark", "Plot", "Row", "Tone", "axis_over", "tone_of"]

Tone = Literal["good", "warn", "bad", "invalid", "plain"]

_TONES: dict[str, Tone] = {
    "SIGNED OFF": "good",
    "GATES PASSED": "good",
    "EQUIVALENT": "good",
    "NON-INFERIOR": "good",
    "DEGRADED": "bad",
    "SUSPECT": "warn",
    "INCONCLUSIVE": "warn",
    "DETECTED-WITHIN-MARGIN": "warn",
    "INVALID": "invalid",
}


def tone_of(verdict: str | None) -> Tone:
    """The colour of what begins with a verdict; it is never the only sign of it."""
    return next((tone for word, tone in _TONES.items() if (verdict or "").startswith(word)), "plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A point with its interval, or with neither a heading.

    ``said`` are the numbers in words; ``band`` is half the width of the margin's band around zero.
    """

    label: str
    note: str = ""
    point: float | None = None
    lo: float | None = None
    hi: float | None = None
    said: str = ""
    word: str = ""
    tone: Tone = "plain"
    band: float | None = None
    limit: float | None = None  # a bound on one side
    pooled: bool = False
    heading: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line through all rows, with its name."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """From ``lo`` to ``hi``; ``ticks`` are places and their labels."""

    lo: float
    hi: float
    ticks: tuple[tuple[float, str], ...]
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    title: str
    rows: tuple[Row, ...]
    axis: Axis
    marks: tuple[Mark, ...] = ()
    better: bool = True  # larger values are better, so that the left side is the loss

    @property
    def words(self) -> str:
        """The text alternative: every row with its numbers."""
        said, group = [], ""
        for row in self.rows:
            if row.heading:
                group = f"{row.label}, "
                continue
            parts = (row.note, row.said, row.word)
            said.append(f"{group}{row.label}: {', '.join(part for part in parts if part)}.")
        said += [f"Line at {mark.text}." for mark in self.marks]
        return " ".join(said)


def axis_over(values: Iterable[float], *, scale: float, name: str, around_zero: bool = False) -> Axis:
    """A scale that holds all values and zero, with round ticks; labels are ``scale`` times the place."""
    ends = [0.0, *values]
    lo, hi = min(ends), max(ends)
    if around_zero:
        lo, hi = -max(-lo, hi), max(-lo, hi)
    if lo == hi:
        lo, hi = -1.0 / scale, 1.0 / scale
    span = hi - lo
    step = _step(span / 6)
    pad = 0.03 * span
    first, last = math.ceil((lo - pad) / step), math.floor((hi + pad) / step)
    ticks = tuple((i * step, f"{scale * i * step:+.6g}" if i else "0") for i in range(first, last + 1))
    return Axis(lo=lo - pad, hi=hi + pad, ticks=ticks, name=name)


def _step(least: float) -> float:
    """The smallest of 1, 2, 5, 10 ... times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= least * (1 - 1e-9))
