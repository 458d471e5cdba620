"""A history for a terminal, as markdown and as JSON."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from equipoise.reports.escape import clean, md_block, md_code, md_text
from equipoise.reports.forest import Glyphs, axis, bar, half_range_of
from equipoise.reports.history import History, ModelHistory, runs_table, unread_table
from equipoise.reports.markdown import pipe_table
from equipoise.reports.node import Node
from equipoise.reports.tables import Table
from equipoise.reports.terminal_layout import MIN_WIDTH, Layout, printed

__all__ = ["render_json", "render_markdown", "render_terminal"]

MAX_ROWS = 500  # of one model; the JSON form has every run
LABEL_CHARS = 34
PLOT_WIDTH = 57


def render_json(history: History) -> str:
    """Strict, ASCII-only JSON; nothing is rounded."""
    return json.dumps(_plain(history), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Node):
        fields = dataclasses.fields(value)  # type: ignore[arg-type]  # every Node is a dataclass
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def render_terminal(history: History, *, width: int, colour: bool, ascii_only: bool) -> str:
    """Tables and plots for ``width`` columns (at least 60)."""
    layout = Layout(width=max(width, MIN_WIDTH), ascii_only=ascii_only)
    return printed(_parts(history, layout), layout, colour=colour).strip("\n") + "\n"


def _parts(history: History, layout: Layout) -> Iterator[RenderableType]:
    for model in history.models:
        yield from layout.table(runs_table(model), max_rows=MAX_ROWS)
        plot = _plot(model, min(PLOT_WIDTH, layout.width - LABEL_CHARS - 3), ascii_only=layout.ascii_only)
        if plot:
            yield Text()
            yield from (Text(layout.fit(line, layout.width - 1)) for line in plot)
        for name, note in _notes(model):
            yield layout.hanging("!", f"{name}: {note}", mark_style="yellow")
    yield from layout.table(unread_table(history.unread), max_rows=MAX_ROWS)
    yield Text()
    for text in (history.source, history.caveat):
        yield layout.hanging("", text)


def _plot(model: ModelHistory, width: int, *, ascii_only: bool) -> list[str]:
    """A forest of the runs over time, each against its own margin; empty where no run has numbers."""
    rows = [(run, run.pooled) for run in model.runs[:MAX_ROWS] if run.pooled is not None]
    half = half_range_of([row for _, row in rows])
    if half is None:
        return []
    glyphs = Glyphs.choose(ascii_only=ascii_only)
    lines = [f" {'':{LABEL_CHARS}} {axis(half, width)}"]
    for run, row in rows:
        label = clean(f"{run.started[:10]} {run.run}", keep="", ascii_only=ascii_only)[:LABEL_CHARS]
        lines.append(f" {label:{LABEL_CHARS}} {bar(row, half, width, glyphs)}".rstrip())
    lines.append(f" {'':{LABEL_CHARS}} points; {glyphs.margin} margin, {glyphs.zero} no difference")
    return lines


def _notes(model: ModelHistory) -> Iterator[tuple[str, str]]:
    for run in model.runs[:MAX_ROWS]:
        yield from ((run.run, note) for note in run.notes)


def render_markdown(history: History) -> str:
    """GitHub-flavoured markdown."""
    parts: list[str] = []
    for model in history.models:
        parts += _table(runs_table(model))
        plot = _plot(model, PLOT_WIDTH, ascii_only=False)
        parts += [md_block("\n".join(plot))] if plot else []
        notes = [f"- {md_code(name)}: {md_text(note)}" for name, note in _notes(model)]
        parts += ["\n".join(notes)] if notes else []
    parts += _table(unread_table(history.unread))
    parts += [md_text(text, 2_000) for text in (history.source, history.caveat) if text]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> list[str]:
    if not table.rows:
        return []
    more = len(table.rows) - MAX_ROWS
    rest = [f"*and {more} more; the JSON form has them*"] if more > 0 else []
    caption = [f"<sub>{md_text(table.caption)}</sub>"] if table.caption else []
    return [f"## {md_text(table.title)}", pipe_table(table, max_rows=MAX_ROWS), *rest, *caption]
