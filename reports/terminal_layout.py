"""How text and tables are laid out on a terminal of a given width; no content of its own."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from equipoise.reports.escape import one_line
from equipoise.reports.format import count
from equipoise.reports.tables import Column, Table

__all__ = ["MIN_WIDTH", "Layout", "printed"]

MIN_WIDTH = 60

STYLES = {
    "SIGNED OFF": "green",
    "GATES PASSED": "cyan",
    "EQUIVALENT": "green",
    "NON-INFERIOR": "green",
    "DEGRADED": "red",
    "SUSPECT": "yellow",
    "INCONCLUSIVE": "yellow",
    "DETECTED-WITHIN-MARGIN": "yellow",
    "INVALID": "magenta",
}
MIN_TEXT_COLUMN = 11
MAX_TEXT_COLUMN = 44
CELL_CHARS = 160
PROSE_WIDTH = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Measures and styles for one width."""

    width: int
    ascii_only: bool

    def style(self, verdict: str) -> str:
        """The style of a verdict; what is no verdict is cyan."""
        return next((style for word, style in STYLES.items() if verdict.startswith(word)), "cyan")

    def mark(self, ok: bool | None) -> tuple[str, str]:
        """A sign and its style for a condition that holds, fails, or is only reported."""
        if ok is None:
            return ("-" if self.ascii_only else "·"), "dim"
        marks = ("ok", "NO") if self.ascii_only else ("✔", "✘")
        return (marks[0], "green") if ok else (marks[1], "bold red")

    def line(self, text: str, max_chars: int = CELL_CHARS) -> str:
        return one_line(text, max_chars, ascii_only=self.ascii_only)

    def fit(self, text: str, cells: int) -> str:
        """One line cut or padded to exactly ``cells`` columns."""
        line = self.line(text)
        if cell_len(line) > cells:
            mark = "~" if self.ascii_only else "…"
            return set_cell_size(line, cells - 1) + mark
        return set_cell_size(line, cells)

    def text(self, text: str, max_chars: int = 600) -> Text:
        return Text(self.line(text, max_chars), overflow="fold")

    def hanging(
        self, mark: str, text: str, *, label: str = "", label_width: int = 16, mark_style: str = ""
    ) -> RenderableType:
        """``mark label text``, wrapped under itself."""
        grid = Grid.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=2)
        cells = [Text(mark, style=mark_style)]
        if label:
            grid.add_column(width=label_width)
            cells.append(Text(self.line(label, 80), style="dim" if not mark else "", overflow="fold"))
        grid.add_column(overflow="fold")
        cells.append(self.text(text))
        grid.add_row(*cells)
        return Constrain(grid, min(self.width, PROSE_WIDTH))

    def table(
        self,
        table: Table,
        *,
        max_rows: int,
        extra: tuple[str, Sequence[Text]] | None = None,
        title: bool = True,
    ) -> list[RenderableType]:
        """The table with its title and caption; as indented lines where it is too wide; nothing if empty.

        ``extra`` is one more column: its header and its cells.
        """
        if not table.rows:
            return []
        rows = [tuple(self.line(cell) for cell in row) for row in table.rows[:max_rows]]
        head = Text(self.line(table.title), style="bold", overflow="fold")
        parts: list[RenderableType] = [Text(), head] if title else []
        gap = 1 if self.width < 100 else 2
        room = self.width - 1 - gap * len(table.columns) - (cell_len(extra[0]) + gap if extra else 0)
        if sum(self._least(i, column, rows) for i, column in enumerate(table.columns)) <= room:
            parts.append(self._grid(table.columns, rows, gap, extra))
        else:
            parts += [self._card(table.columns, row) for row in rows]
        if len(table.rows) > max_rows:
            parts.append(Text(f" and {count(len(table.rows) - max_rows)} more rows"))
        if table.caption:
            caption = Text(self.line(table.caption, 600), style="dim", overflow="fold")
            parts.append(Constrain(Padding(caption, (0, 0, 0, 1)), min(self.width, PROSE_WIDTH)))
        return parts

    def _least(self, index: int, column: Column, rows: Sequence[tuple[str, ...]]) -> int:
        """The width below which a column is not readable."""
        widest = max(cell_len(text) for text in (column.header, *(row[index] for row in rows)))
        return widest if column.kind == "number" else min(widest, MIN_TEXT_COLUMN + 2)

    def _grid(
        self,
        columns: Sequence[Column],
        rows: Sequence[tuple[str, ...]],
        gap: int,
        extra: tuple[str, Sequence[Text]] | None,
    ) -> RenderableType:
        grid = Grid(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
        for column in columns:
            number = column.kind == "number"
            grid.add_column(
                column.header,
                justify="right" if number else "left",
                no_wrap=number,
                overflow="fold",
                max_width=None if number else MAX_TEXT_COLUMN,
            )
        if extra:
            grid.add_column(extra[0], no_wrap=True)
        for i, row in enumerate(rows):
            cells = [
                self._cell(column, text, narrow=gap == 1) for column, text in zip(columns, row, strict=True)
            ]
            grid.add_row(*cells, *([extra[1][i]] if extra else []))
        return Padding(grid, (0, 0, 0, 1))

    def _cell(self, column: Column, text: str, *, narrow: bool) -> Text:
        if column.kind != "word":
            return Text(text)
        style = self.style(text) if any(text.startswith(word) for word in STYLES) else ""
        if narrow:
            text = text.replace("DETECTED-WITHIN", "DETECTED-\nWITHIN").replace(" (", "\n(")
        return Text(text, style=style)

    def _card(self, columns: Sequence[Column], row: tuple[str, ...]) -> RenderableType:
        lines = [""]
        for c, cell in zip(columns[1:], row[1:], strict=True):
            pair = f"{c.header} {cell}"
            if lines[-1] and cell_len(lines[-1]) + 3 + cell_len(pair) > self.width - 4:
                lines.append(pair)
            elif cell:
                lines[-1] += ("   " if lines[-1] else "") + pair
        body = Text("\n".join(lines), overflow="fold")
        return Group(Text(" " + row[0], overflow="fold"), Padding(body, (0, 0, 0, 4)))


def printed(parts: Iterable[RenderableType], layout: Layout, *, colour: bool) -> str:
    """The parts as text of the layout's width; without colour no escape code and no trailing space."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=layout.width,
        height=1_000,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        _environ={},
    )
    console.print(Group(*parts))
    lines = stream.getvalue().splitlines()
    return "\n".join(line if colour else line.rstrip() for line in lines) + "\n"
