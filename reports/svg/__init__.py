"""Plots of a report as SVG: intervals against their margin, what could have been seen, trends.

`plots` makes a `Plot` of rows from a model's report, with the numbers as every rendering writes them;
`inline` draws it for a page (colours by CSS classes), `render` the forest plots of a report as a file.
"""

from equipoise.reports.svg.draw import inline
from equipoise.reports.svg.file import render
from equipoise.reports.svg.plots import by_length, by_position, forest, power

__all__ = ["by_length", "by_position", "forest", "inline", "power", "render"]
