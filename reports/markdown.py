"""The report as GitHub-flavoured markdown, for a pull request or a step summary; under 200 KB."""

from collections.abc import Iterable

from equipoise.reports import logprob_tables, secondary_tables, sources, tables
from equipoise.reports.escape import clean, cut, html_text, md_block, md_code, md_text
from equipoise.reports.flips import Flip
from equipoise.reports.forest import Glyphs, axis, bar, half_range
from equipoise.reports.format import count
from equipoise.reports.model import ModelReport, Report
from equipoise.reports.tables import Table
from equipoise.reports.wording import checks, notes, verdict_sentences, verdict_word

__all__ = ["MAX_BYTES", "pipe_table", "render"]

MAX_BYTES = 190_000
PLOT_WIDTH = 49
MAX_ROWS = 60  # of a list that may be long; the rest is counted
FLIP_CHARS = 600
SIGNS = {"SIGNED OFF": "✅", "GATES PASSED": "☑️", "DEGRADED": "❌", "INCONCLUSIVE": "❔", "INVALID": "⛔"}


def render(report: Report) -> str:
    """Render without the flips first, then add as many flips as the size allows, and say how many.

    Parts that still do not fit are left out, and that is stated.
    """
    title, verdict = (
        _title(report),
        " ".join(md_text(sentence, 400) for sentence in verdict_sentences(report)),
    )
    limits = _within(_bullets("What this report does not claim", report.run.limits), MAX_BYTES // 10)
    head = [f"# {title}", verdict, *_bullets("Why", report.run.reasons), *limits]
    for model in report.models:
        head += _model(model)
    tail = [
        *_within(_provenance(report), MAX_BYTES // 5),
        f"---\n\n**{title}**\n\n{verdict}",
    ]
    room = MAX_BYTES - _size(tail) - 1_000
    head = _within(head, room)
    return "\n\n".join([*head, *_flips(report, room - _size(head)), *tail]) + "\n"


def _size(parts: Iterable[str]) -> int:
    return sum(len(part.encode()) + 2 for part in parts)


def _within(parts: list[str], room: int) -> list[str]:
    """The parts that fit into ``room`` bytes; how many did not is said."""
    kept: list[str] = []
    for part in parts:
        if (size := len(part.encode()) + 2) <= room:
            kept.append(part)
            room -= size
    if len(kept) < len(parts):
        kept.append(
            f"*{count(len(parts) - len(kept))} more parts do not fit here; the JSON report has them.*"
        )
    return kept


def _title(report: Report) -> str:
    word = verdict_word(report)
    return f"{SIGNS.get(word, '⏸️')} {word} (exit code {report.run.exit_code})"


def _bullets(title: str, items: tuple[str, ...]) -> list[str]:
    if not items:
        return []
    lines = [f"- {md_text(item)}" for item in items[:MAX_ROWS]]
    lines += [f"- and {count(len(items) - MAX_ROWS)} more"] if len(items) > MAX_ROWS else []
    return [f"## {title}", "\n".join(lines)]


def _model(model: ModelReport) -> list[str]:
    parts = [f"## {md_code(model.name, 60)}: {model.verdict or 'NO VERDICT'}", md_text(model.sentence)]
    parts += _table(tables.results(model), title=False)
    parts += _forest(model)
    noted = [f"- {md_code(note.name)}: {md_text(note.text)}" for note in notes(model)]
    parts += ["\n".join(noted[:MAX_ROWS])] if noted else []
    marks = {True: "✔", False: "✘", None: "·"}
    checked = [f"- {marks[check.ok]} {check.name}: {md_text(check.text)}" for check in checks(model)]
    parts += ["**Could this run have said no?**", "\n".join(checked[:MAX_ROWS])] if checked else []
    details = (
        tables.tests(model),
        logprob_tables.logprobs(model),
        logprob_tables.divergences(model),
        logprob_tables.positions(model),
        logprob_tables.divergences_by_position(model),
        tables.noise(model),
        tables.controls(model),
        tables.power(model),
        tables.exclusions(model),
    )
    for table in details:
        parts += _table(table)
    parts += _details("Endpoints beside accuracy", secondary_tables.all_of(model))
    if model.errors_total:
        parts.append(f"**Requests that failed for good: {count(model.errors_total)} (never scored)**")
        lines = [f"- {md_code(e.arm)} {md_code(e.item_id)}: {md_code(e.message)}" for e in model.errors[:5]]
        parts += ["\n".join(lines)] if lines else []
    return parts


def _details(summary: str, shown: Iterable[Table]) -> list[str]:
    """The tables, folded away: one part, so that it is kept or left out whole."""
    parts = [part for table in shown for part in _table(table)]
    return ["\n\n".join([f"<details>\n<summary>{summary}</summary>", *parts, "</details>"])] if parts else []


def pipe_table(table: Table, *, max_rows: int) -> str:
    """The header and the first rows, as GitHub writes tables."""
    lines = [
        "| " + " | ".join(md_text(column.header) for column in table.columns) + " |",
        "|" + "|".join("---:" if column.kind == "number" else "---" for column in table.columns) + "|",
    ]
    for row in table.rows[:max_rows]:
        cells = (
            md_code(cell) if column.kind == "code" else md_text(cell)
            for column, cell in zip(table.columns, row, strict=True)
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _table(table: Table, *, title: bool = True) -> list[str]:
    if not table.rows:
        return []
    parts = [f"**{md_text(table.title)}**"] if title else []
    parts.append(pipe_table(table, max_rows=MAX_ROWS))
    if len(table.rows) > MAX_ROWS:
        parts.append(f"*and {count(len(table.rows) - MAX_ROWS)} more rows*")
    return [*parts, f"<sub>{md_text(table.caption)}</sub>"] if table.caption else parts


def _forest(model: ModelReport) -> list[str]:
    half = half_range(model)
    if half is None:
        return []
    glyphs = Glyphs.choose(ascii_only=False)
    labels = [row[0][:24] for row in tables.results(model).rows]
    width = max(map(len, labels))
    lines = [f"{'':{width}}  {axis(half, PLOT_WIDTH)}"]
    for label, row in list(zip(labels, model.rows, strict=True))[:MAX_ROWS]:
        lines.append(f"{clean(label, keep=''):{width}}  {bar(row, half, PLOT_WIDTH, glyphs)}".rstrip())
    lines.append(f"{'':{width}}  points; {glyphs.margin} margin, {glyphs.zero} no difference")
    return [md_block("\n".join(lines))]


def _flips(report: Report, room: int) -> list[str]:
    """Each model's flips, in turn, until ``room`` bytes are used; the rest is counted."""
    parts: list[str] = []
    models = [(model, model.flips) for model in report.models if model.flips is not None]
    for i, (model, flips) in enumerate(models):
        total = f"{count(flips.lost)} lost, {count(flips.gained)} gained"
        block = [f"### Flips of {md_code(model.name, 60)}: {total}"]
        if _size(block) > room:
            return [*parts, f"*The flips of {count(len(models) - i)} more models do not fit here.*"]
        for flip in flips.shown:
            part = _flip(flip)
            if _size([*block, part]) > room:
                break
            block.append(part)
        hidden = flips.lost + flips.gained - (len(block) - 1)
        block += [f"*{count(hidden)} more are not shown here.*"] if hidden > 0 else []
        room -= _size(block)
        parts += block
    return parts


def _flip(flip: Flip) -> str:
    head = (
        f"{flip.direction} <code>{html_text(flip.task, 60)}</code> <code>{html_text(flip.item_id, 80)}</code>"
    )
    fields = (
        ("prompt", flip.prompt, ""),
        ("target", flip.target, ""),
        ("baseline", flip.baseline, flip.baseline_finish),
        ("candidate", flip.candidate, flip.candidate_finish),
    )
    blocks = [
        f"{label}{f' ({md_code(finish, 40)})' if finish else ''}\n\n{md_block(cut(excerpt, FLIP_CHARS))}"
        for label, excerpt, finish in fields
    ]
    return f"<details>\n<summary>{head}</summary>\n\n" + "\n\n".join(blocks) + "\n\n</details>"


def _provenance(report: Report) -> list[str]:
    lines = [
        f"- {md_text(name, 100)}: {md_code(value, 400)}" for name, value in sources.facts(report)[:MAX_ROWS]
    ]
    parts = ["## Provenance", "\n".join(lines)]
    for table in sources.tables(report):
        parts += _table(table)
    commands = [
        f"{md_code(name, 100)}\n\n{md_block(cut(command, 4_000))}"
        for name, command in sources.servers(report.provenance)[:MAX_ROWS]
    ]
    if commands:
        block = ["<details>\n<summary>Server commands</summary>", *commands, "</details>"]
        parts.append("\n\n".join(block))  # one part, so that it is kept or left out whole
    return parts
