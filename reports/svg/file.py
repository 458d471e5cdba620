"""The forest plots of a report as one SVG file, with the verdict above; colours as on white paper."""

import xml.etree.ElementTree as ET

from equipoise.reports.escape import one_line
from equipoise.reports.model import Report
from equipoise.reports.svg.draw import COLOURS, FONT, Drawing, by_colour, draw
from equipoise.reports.svg.plot import Plot, tone_of
from equipoise.reports.svg.plots import forest
from equipoise.reports.wording import verdict_sentences, verdict_word

__all__ = ["render"]

EDGE = 28
LINE_CHARS = 118


def render(report: Report) -> str:
    """A standalone SVG document; a run without results has its verdict alone."""
    root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": FONT, "role": "img"})
    title = f"Equipoise: {one_line(report.run.plan_name, 80)}: {verdict_word(report)}"
    ET.SubElement(root, "title").text = title
    description = ET.SubElement(root, "desc")
    paper = ET.SubElement(root, "rect", {"fill": "#ffffff"})
    body = ET.SubElement(root, "g", {"transform": f"translate({EDGE} {EDGE})"})
    y = _head(report, body)
    width = 0
    words = [" ".join(verdict_sentences(report))]
    for model in report.models:
        plot = forest(model)
        if plot is None:
            continue
        y = _place(body, model.name, plot, y, drawing := draw(plot, "wide", by_colour))
        width = max(width, drawing.width)
        words.append(f"{model.name}: {plot.words}")
    description.text = one_line(" ".join(words), 50_000)
    size = {"width": str((width or 880) + 2 * EDGE), "height": str(round(y) + EDGE)}
    for name, value in size.items():
        root.set(name, value)
        paper.set(name, value)
    root.set("viewBox", f"0 0 {size['width']} {size['height']}")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _head(report: Report, body: ET.Element) -> float:
    word = verdict_word(report)
    attributes = {"x": "0", "y": "22", "font-size": "24", "font-weight": "700"}
    ET.SubElement(body, "text", {**attributes, "fill": COLOURS[tone_of(report.run.verdict)]}).text = word
    y = 46.0
    for line in _lines(verdict_sentences(report)[0]):
        ET.SubElement(
            body, "text", {"x": "0", "y": f"{y:g}", "font-size": "14", "fill": COLOURS["ink"]}
        ).text = line
        y += 19
    return y


def _lines(sentence: str) -> list[str]:
    """At most two lines; SVG does not wrap."""
    text = one_line(sentence, 2 * LINE_CHARS)
    if len(text) <= LINE_CHARS:
        return [text]
    cut = text.rfind(" ", 0, LINE_CHARS)
    cut = LINE_CHARS if cut <= 0 else cut
    return [text[:cut], text[cut:].strip()[: LINE_CHARS + 40]]


def _place(body: ET.Element, name: str, plot: Plot, y: float, drawing: Drawing) -> float:
    """Put a model's plot below what is there; where it ends."""
    look = {"x": "0", "y": f"{y + 24:g}", "font-size": "15", "font-weight": "600", "fill": COLOURS["ink"]}
    ET.SubElement(body, "text", look).text = f"{one_line(name, 60)}: {plot.title}"
    group = ET.SubElement(body, "g", {"transform": f"translate(0 {y + 40:g})"})
    group.append(drawing.element)
    return y + 40 + drawing.height
