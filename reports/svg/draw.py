"""Draw a `Plot`: wide with its words beside the bars, or narrow with them above."""

import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.cells import cell_len, set_cell_size

from equipoise.reports.escape import one_line
from equipoise.reports.svg.plot import Plot, Row

__all__ = ["COLOURS", "Drawing", "Paint", "by_class", "by_colour", "draw", "inline"]

Layout = Literal["wide", "narrow"]
Kind = Literal["fill", "stroke"]
Paint = Callable[[str, Kind], Mapping[str, str]]

#: For files: the page's light colours.
COLOURS = {
    "ink": "#1c1b19",
    "muted": "#615d57",
    "rule": "#e4e0d9",
    "band": "#ece8e0",
    "edge": "#8f887d",
    "good": "#17693f",
    "warn": "#8a5300",
    "bad": "#b3261e",
    "invalid": "#6a3fa0",
    "plain": "#3d5a80",
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


def by_class(role: str, kind: Kind) -> Mapping[str, str]:
    """Colours by the page's style sheet, which knows light and dark."""
    return {"class": f"{kind[0]}-{role}"}


def by_colour(role: str, kind: Kind) -> Mapping[str, str]:
    """Colours in the element itself, for a file."""
    return {"fill": COLOURS[role]} if kind == "fill" else {"stroke": COLOURS[role], "fill": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measures:
    """Pixels. ``words`` is how far a row's words reach down when they stand above its bar."""

    width: int
    left: int
    right: int  # where the plot ends
    row: int
    words: int
    heading: int
    heading_left: int
    label_cells: int
    note_cells: int


_MEASURES: Mapping[Layout, _Measures] = {
    "wide": _Measures(
        width=880,
        left=222,
        right=652,
        row=42,
        words=0,
        heading=36,
        heading_left=0,
        label_cells=27,
        note_cells=32,
    ),
    "narrow": _Measures(
        width=340,
        left=6,
        right=334,
        row=66,
        words=36,
        heading=34,
        heading_left=6,
        label_cells=20,
        note_cells=26,
    ),
}
TICKS_HEIGHT, MARK_HEIGHT = 46, 18
WORD_CELLS = 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    element: ET.Element  # a group
    width: int
    height: int


@dataclass(slots=True, kw_only=True)
class _Canvas:
    paint: Paint
    group: ET.Element = field(default_factory=lambda: ET.Element("g"))

    def rect(self, x: float, y: float, width: float, height: float, role: str) -> None:
        at = {"x": _n(x), "y": _n(y), "width": _n(width), "height": _n(height)}
        ET.SubElement(self.group, "rect", {**at, **self.paint(role, "fill")})

    def line(
        self, x1: float, y1: float, x2: float, y2: float, role: str, *, width: float = 1, dash: str = ""
    ) -> None:
        at = {"x1": _n(x1), "y1": _n(y1), "x2": _n(x2), "y2": _n(y2), "stroke-width": _n(width)}
        dashes = {"stroke-dasharray": dash} if dash else {}
        ET.SubElement(self.group, "line", {**at, **dashes, **self.paint(role, "stroke")})

    def shape(self, corners: Sequence[tuple[float, float]], role: str) -> None:
        points = " ".join(f"{_n(x)},{_n(y)}" for x, y in corners)
        ET.SubElement(self.group, "polygon", {"points": points, **self.paint(role, "fill")})

    def dot(self, x: float, y: float, role: str) -> None:
        ET.SubElement(
            self.group, "circle", {"cx": _n(x), "cy": _n(y), "r": "4.5", **self.paint(role, "fill")}
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        role: str,
        *,
        size: int = 13,
        bold: bool = False,
        anchor: str = "start",
    ) -> None:
        look = {"font-size": str(size), **({"font-weight": "600"} if bold else {})}
        where = {"x": _n(x), "y": _n(y), **({"text-anchor": anchor} if anchor != "start" else {})}
        ET.SubElement(self.group, "text", {**where, **look, **self.paint(role, "fill")}).text = text


def _n(x: float) -> str:
    return f"{x:.1f}".removesuffix(".0")


def _fit(text: str, cells: int) -> str:
    line = one_line(text, 200)
    return line if cell_len(line) <= cells else set_cell_size(line, cells - 1).rstrip() + "…"


def draw(plot: Plot, layout: Layout, paint: Paint) -> Drawing:
    """The plot as a group with its size in pixels; ``paint`` says how it is coloured."""
    m, canvas = _MEASURES[layout], _Canvas(paint=paint)
    heights = [m.heading if row.heading else m.row for row in plot.rows]
    top = MARK_HEIGHT * len(plot.marks)
    bottom = top + sum(heights)
    scale = _Scale(plot, m)
    tops = [float(top + sum(heights[:i])) for i in range(len(heights))]
    for row, y, height in zip(plot.rows, tops, heights, strict=True):
        if not row.heading:
            _ground(canvas, row, y + m.words, y + height, scale)
    middle = (m.left + m.right) / 2
    # In this order no name crosses the line of another.
    places = sorted((x if (x := scale(mark.at)) < middle else -x, mark.text) for mark in plot.marks)
    for i, (place, name) in enumerate(places):
        x, side, shift = (place, "start", 5) if place > 0 else (-place, "end", -5)
        canvas.text(x + shift, MARK_HEIGHT * i + 12, one_line(name, 40), "muted", size=11, anchor=side)
        canvas.line(x, MARK_HEIGHT * i + 2, x, top, "edge", dash="4 3")
        for y, height in zip(tops, heights, strict=True):
            canvas.line(x, y + m.words, x, y + height, "edge", dash="4 3")
    for row, y in zip(plot.rows, tops, strict=True):
        if y > top:
            canvas.line(0, y, m.width, y, "rule")
        _row(canvas, row, y, scale, layout)
    _axis(canvas, plot, bottom, m, scale)
    return Drawing(element=canvas.group, width=m.width, height=bottom + TICKS_HEIGHT)


def _ground(canvas: _Canvas, row: Row, top: float, bottom: float, scale: "_Scale") -> None:
    """What a bar is held against: the margin's band, a limit, zero."""
    if row.band is not None:
        left, right = scale(-row.band), scale(row.band)
        canvas.rect(left, top, right - left, bottom - top, "band")
        for x in (left, right):
            canvas.line(x, top, x, bottom, "edge", dash="2 3")
    if row.limit is not None:
        canvas.line(scale(row.limit), top, scale(row.limit), bottom, "bad", dash="4 3")
    canvas.line(scale(0.0), top, scale(0.0), bottom, "muted")


class _Scale:
    """From a value to pixels; what lies beyond the axis is put at its end."""

    def __init__(self, plot: Plot, m: _Measures) -> None:
        self.lo, self.hi, self._m = plot.axis.lo, plot.axis.hi, m

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.lo), self.hi)
        return self._m.left + (inside - self.lo) / (self.hi - self.lo) * (self._m.right - self._m.left)


def _row(canvas: _Canvas, row: Row, y: float, scale: "_Scale", layout: Layout) -> None:
    m = _MEASURES[layout]
    if row.heading:
        canvas.text(m.heading_left, y + m.heading - 11, _fit(row.label, 46), "ink", bold=True)
        return
    label, note = _fit(row.label, m.label_cells), _fit(row.note, m.note_cells)
    tone = row.tone if row.word else "plain"
    if layout == "wide":
        middle = y + m.row / 2
        canvas.text(0, middle + (-3 if note else 4), label, "ink", bold=row.pooled)
        canvas.text(0, middle + 12, note, "muted", size=11)
        canvas.text(m.right + 14, middle + (-3 if row.word else 4), row.said, "ink", bold=row.pooled)
        canvas.text(m.right + 14, middle + 12, _fit(row.word, WORD_CELLS), tone, size=11, bold=True)
    else:
        middle = y + m.words + (m.row - m.words) / 2 - 2
        canvas.text(m.left, y + 16, label, "ink", bold=row.pooled)
        canvas.text(m.right, y + 16, row.said, "ink", size=12, bold=row.pooled, anchor="end")
        canvas.text(m.left, y + 31, note, "muted", size=11)
        canvas.text(m.right, y + 31, _fit(row.word, 22), tone, size=11, bold=True, anchor="end")
    _bar(canvas, row, middle, tone, scale)


def _bar(canvas: _Canvas, row: Row, y: float, tone: str, scale: "_Scale") -> None:
    """The interval with its ends, an arrow where one lies beyond the axis, and the point."""
    if row.lo is not None and row.hi is not None:
        canvas.line(scale(row.lo), y, scale(row.hi), y, tone, width=2)
        for value, out in ((row.lo, -1), (row.hi, 1)):
            x = scale(value)
            if scale.lo <= value <= scale.hi:
                canvas.line(x, y - 5, x, y + 5, tone, width=2)
            else:
                canvas.shape([(x + 2 * out, y), (x - 6 * out, y - 5), (x - 6 * out, y + 5)], tone)
    if row.point is None or not scale.lo <= row.point <= scale.hi:
        return  # the arrow says where
    x = scale(row.point)
    if row.pooled:
        canvas.shape([(x - 7, y), (x, y - 7), (x + 7, y), (x, y + 7)], tone)
    else:
        canvas.dot(x, y, tone)


def _axis(canvas: _Canvas, plot: Plot, y: float, m: _Measures, scale: _Scale) -> None:
    canvas.line(m.left, y, m.right, y, "edge")
    for at, label in plot.axis.ticks:
        x = scale(at)
        canvas.line(x, y, x, y + 5, "edge")
        canvas.text(x, y + 18, label, "muted", size=11, anchor="middle")
    loss, gain = ("worse", "better") if plot.better else ("better", "worse")
    canvas.text(m.left, y + 36, f"← {loss}", "muted", size=11)
    canvas.text(m.right, y + 36, f"{gain} →", "muted", size=11, anchor="end")
    canvas.text((m.left + m.right) / 2, y + 36, plot.axis.name, "muted", size=11, anchor="middle")


def inline(plot: Plot, layout: Layout, ident: str) -> str:
    """The plot as an ``svg`` element of a page; ``ident`` is unique in it. The words are its alternative."""
    drawing = draw(plot, layout, by_class)
    root = ET.Element(
        "svg",
        {
            "viewBox": f"0 0 {drawing.width} {drawing.height}",
            "width": str(drawing.width),
            "height": str(drawing.height),
            "role": "img",
            "aria-labelledby": f"{ident}-t {ident}-d",
        },
    )
    ET.SubElement(root, "title", {"id": f"{ident}-t"}).text = plot.title
    ET.SubElement(root, "desc", {"id": f"{ident}-d"}).text = one_line(plot.words, 20_000)
    root.append(drawing.element)
    return ET.tostring(root, encoding="unicode")
