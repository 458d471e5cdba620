"""The report for a terminal: the verdict first and last, what it rests on in between."""

import os
import shutil
import sys

from rich.box import ASCII, ROUNDED
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text

from equipoise.reports import logprob_tables, secondary_tables, sources, tables
from equipoise.reports.escape import cut, one_line
from equipoise.reports.flips import Flip
from equipoise.reports.forest import Glyphs, axis, bar, half_range
from equipoise.reports.format import count
from equipoise.reports.model import ModelReport, Report
from equipoise.reports.terminal_layout import MIN_WIDTH, Layout, printed
from equipoise.reports.wording import checks, notes, verdict_sentences, verdict_word

__all__ = ["render"]

PROSE_WIDTH = 110  # longer lines are hard to read
INLINE_FOREST_WIDTH = 124  # from here on the forest plot has a column of its own
FLIP_CHARS = 160
MAX_ROWS = 60  # of a list that may be long; the rest is counted


def render(
    report: Report,
    *,
    width: int | None = None,
    colour: bool | None = None,
    ascii_only: bool | None = None,
    flips: int = 3,
) -> str:
    """Render for ``width`` columns (default: the terminal's; at least 60).

    Colour is used only where standard output is a terminal and NO_COLOR is unset or empty;
    otherwise no escape code is written. ``ascii_only`` (default: where standard output cannot
    encode the line-drawing characters) replaces every character beyond ASCII. ``flips`` is the
    number shown of each direction and model.
    """
    if width is None:
        width = shutil.get_terminal_size((100, 40)).columns
    if colour is None:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if ascii_only is None:
        ascii_only = not _encodes_lines(getattr(sys.stdout, "encoding", None))
    layout = Layout(width=max(width, MIN_WIDTH), ascii_only=ascii_only)
    return printed(_document(report, layout, flips), layout, colour=colour)


def _encodes_lines(encoding: str | None) -> bool:
    try:
        "─├┤●│┊◂▸╭✔✘".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _document(report: Report, layout: Layout, flips: int) -> list[RenderableType]:
    parts: list[RenderableType] = [_verdict(report, layout)]
    parts += _bullets("Why", report.run.reasons, layout)
    for model in report.models:
        parts += _model(model, layout, flips)
    parts += _provenance(report, layout)
    parts += _bullets("What this report does not claim", report.run.limits, layout)
    parts += [Text(), _verdict(report, layout)]
    return parts


def _verdict(report: Report, layout: Layout) -> RenderableType:
    word = verdict_word(report)
    said = Text(word, style=f"bold {layout.style(word)}")
    said.append(f"   exit code {report.run.exit_code}", style="dim")
    lines = [said, *(layout.text(sentence, max_chars=600) for sentence in verdict_sentences(report))]
    return Panel(
        Group(*lines),
        box=ASCII if layout.ascii_only else ROUNDED,
        border_style=layout.style(word),
        width=min(layout.width, PROSE_WIDTH),
    )


def _bullets(title: str, items: tuple[str, ...], layout: Layout) -> list[RenderableType]:
    if not items:
        return []
    mark = "-" if layout.ascii_only else "•"
    shown = [layout.hanging(mark, item) for item in items[:MAX_ROWS]]
    rest = [Text(f"  … and {count(len(items) - MAX_ROWS)} more")] if len(items) > MAX_ROWS else []
    return [Text(), Text(title, style="bold"), *shown, *rest]


def _model(model: ModelReport, layout: Layout, flips: int) -> list[RenderableType]:
    name = Text(f"{layout.fit(model.name, 30).rstrip()}  ", style="bold")
    name.append(model.verdict or "NO VERDICT", style=f"bold {layout.style(model.verdict or '')}")
    rule = Rule(name, align="left", characters="-" if layout.ascii_only else "─", style="dim")
    parts: list[RenderableType] = [Text(), rule, layout.text(model.sentence, max_chars=600)]
    parts += [Text(), *_results(model, layout)]
    noted = [layout.hanging("", note.text, label=note.name) for note in notes(model)]
    parts += [Text(), *noted[:MAX_ROWS]] if noted else []
    found = checks(model)
    parts += [Text(), Text("Could this run have said no?", style="bold")] if found else []
    for check in found:
        mark, style = layout.mark(check.ok)
        parts.append(layout.hanging(mark, check.text, label=check.name, mark_style=style))
    for table in (
        tables.tests(model),
        *secondary_tables.all_of(model),
        logprob_tables.logprobs(model),
        logprob_tables.divergences(model),
        logprob_tables.positions(model),
        logprob_tables.divergences_by_position(model),
        tables.noise(model),
        tables.controls(model),
        tables.power(model),
        tables.exclusions(model),
    ):
        parts += layout.table(table, max_rows=MAX_ROWS)
    return parts + _errors(model, layout) + _flips(model, layout, flips)


def _results(model: ModelReport, layout: Layout) -> list[RenderableType]:
    table = tables.results(model)
    rows = model.rows
    half = half_range(model)
    if half is None:
        return [Text("No task has a result.")]
    glyphs = Glyphs.choose(ascii_only=layout.ascii_only)
    inline = layout.width >= INLINE_FOREST_WIDTH
    if inline:
        plot_width = min(61, layout.width - 97)
        plots = [Text(bar(row, half, plot_width, glyphs), style=layout.style(row.verdict)) for row in rows]
        return layout.table(table, extra=(axis(half, plot_width), plots), max_rows=MAX_ROWS, title=False)
    label_width = max(min(max(len(row[0]) for row in table.rows), 20), 8)
    plot_width = min(layout.width - label_width - 3, 61)
    plot = Text()
    plot.append(f"{'':{label_width}}  {axis(half, plot_width)}\n", style="dim")
    for row, cells in list(zip(rows, table.rows, strict=True))[:MAX_ROWS]:
        plot.append(layout.fit(cells[0], label_width) + "  ")
        plot.append(bar(row, half, plot_width, glyphs) + "\n", style=layout.style(row.verdict))
    plot.append(
        f"{'':{label_width}}  points; {glyphs.margin} margin, {glyphs.zero} no difference", style="dim"
    )
    return [*layout.table(table, max_rows=MAX_ROWS, title=False), Text(), Padding(plot, (0, 0, 0, 1))]


def _errors(model: ModelReport, layout: Layout) -> list[RenderableType]:
    if not model.errors_total:
        return []
    title = f"Requests that failed for good: {count(model.errors_total)} (never scored)"
    parts: list[RenderableType] = [Text(), Text(title, style="bold")]
    for error in model.errors[:5]:
        parts.append(layout.hanging("", error.message, label=f"{error.arm} {error.item_id}", label_width=24))
    return parts


def _flips(model: ModelReport, layout: Layout, limit: int) -> list[RenderableType]:
    if model.flips is None:
        return []
    shown = [
        flip
        for direction in ("lost", "gained")
        for flip in [f for f in model.flips.shown if f.direction == direction][:limit]
    ]
    title = f"Flips: {count(model.flips.lost)} lost, {count(model.flips.gained)} gained"
    title += f" (showing {len(shown)})" if len(shown) < model.flips.lost + model.flips.gained else ""
    parts: list[RenderableType] = [Text(), Text(title, style="bold")]
    for flip in shown:
        parts += _flip(flip, layout)
    return parts


def _flip(flip: Flip, layout: Layout) -> list[RenderableType]:
    style = "red" if flip.direction == "lost" else "green"
    head = Text(f" {flip.direction}  ", style=f"bold {style}")
    head.append(layout.line(f"{flip.task}  {flip.item_id}", 120))
    fields = (
        ("prompt", flip.prompt, ""),
        ("target", flip.target, ""),
        ("baseline", flip.baseline, flip.baseline_finish),
        ("candidate", flip.candidate, flip.candidate_finish),
    )
    parts: list[RenderableType] = [head]
    for label, excerpt, finish in fields:
        said = one_line(cut(excerpt, FLIP_CHARS), 2 * FLIP_CHARS, ascii_only=layout.ascii_only)
        said += f"  ({layout.line(finish, 20)})" if finish else ""
        parts.append(layout.hanging("", said, label=label, label_width=11))
    return parts


def _provenance(report: Report, layout: Layout) -> list[RenderableType]:
    rule = Rule(Text("Provenance", style="bold"), align="left", characters="-" if layout.ascii_only else "─")
    parts: list[RenderableType] = [Text(), rule]
    for name, value in sources.facts(report)[:MAX_ROWS]:
        parts.append(layout.hanging("", value, label=name))
    if sources.servers(report.provenance):
        said = "their commands are in the markdown and JSON reports"
        parts.append(layout.hanging("", said, label="servers"))
    for table in sources.tables(report):
        parts += layout.table(table, max_rows=MAX_ROWS)
    return parts
