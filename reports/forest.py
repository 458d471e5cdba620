"""A forest plot in characters: each delta with its interval, against its margin and zero."""

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.reports.evidence import PooledRow, TaskRow
from equipoise.reports.model import ModelReport

__all__ = ["Glyphs", "axis", "bar", "half_range", "half_range_of"]

CLIP_MARGINS = 4.0  # the axis never shows more than this many margins, or the margin band disappears


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    line: str
    left: str
    right: str
    point: str
    zero: str
    margin: str
    crossing: str  # zero or a margin inside an interval
    beyond_left: str
    beyond_right: str

    @classmethod
    def choose(cls, *, ascii_only: bool) -> "Glyphs":
        marks = "-[]o|:+<>" if ascii_only else "─├┤●│┊┼◂▸"
        names = (
            "line",
            "left",
            "right",
            "point",
            "zero",
            "margin",
            "crossing",
            "beyond_left",
            "beyond_right",
        )
        return cls(**dict(zip(names, marks, strict=True)))


def half_range(model: ModelReport) -> float | None:
    """Half the axis, a round number as a fraction; None if there is nothing to draw."""
    return half_range_of(model.rows)


def half_range_of(rows: Sequence[TaskRow | PooledRow]) -> float | None:
    """The same for rows from anywhere."""
    if not rows:
        return None
    margin = max(row.margin for row in rows)
    ends = [
        abs(x) for row in rows if row.interval for x in (row.interval.lo, row.interval.hi) if x is not None
    ]
    need = min(max([1.25 * margin, *(1.05 * end for end in ends)]), CLIP_MARGINS * margin)
    step = next(s for k in range(-5, 1) for s in (10.0**k, 2.0 * 10**k, 5.0 * 10**k) if 10 * s >= need)
    return next(n * step for n in range(1, 12) if n * step >= need)


def bar(row: TaskRow | PooledRow, half: float, width: int, glyphs: Glyphs) -> str:
    """One row of ``width`` characters; what lies beyond the axis ends in an arrow."""
    cells = [" "] * width

    def column(x: float) -> int:
        return min(max(round((x + half) / (2 * half) * (width - 1)), 0), width - 1)

    for x in (-row.margin, row.margin):
        cells[column(x)] = glyphs.margin
    cells[column(0.0)] = glyphs.zero
    lo, hi = (row.interval.lo, row.interval.hi) if row.interval else (None, None)
    if lo is not None and hi is not None:
        first, last = column(lo), column(hi)
        cells[first : last + 1] = [
            glyphs.line if c == " " else glyphs.crossing for c in cells[first : last + 1]
        ]
        cells[first] = glyphs.beyond_left if lo < -half else glyphs.left
        cells[last] = glyphs.beyond_right if hi > half else glyphs.right
    if row.delta is not None:
        if abs(row.delta) <= half:
            cells[column(row.delta)] = glyphs.point
        else:
            cells[column(row.delta)] = glyphs.beyond_left if row.delta < 0 else glyphs.beyond_right
    return "".join(cells)


def axis(half: float, width: int) -> str:
    """The scale in points: both ends and zero."""
    end = f"{100 * half:g}"
    left, right = f"-{end}", f"+{end}"
    middle = round((width - 1) / 2)
    return f"{left:<{middle}}0{right:>{width - middle - 1}}"
