"""An explanation as text for a terminal."""

import textwrap

from equipoise.quant.explain.model import Explanation, Finding, ScaleRow, layer_ranges

__all__ = ["as_text"]

_FIRST, _SECOND = 14, 22  # widths of the first two columns


def as_text(explanation: Explanation, *, width: int = 80, with_rules: bool = False) -> str:
    """The table, the findings, and with ``with_rules`` every rule cited with its source."""
    e = explanation
    side = f", {e.disaggregation_mode} side" if e.disaggregation_mode != "null" else ""
    head = f"{e.model} ({e.architecture}) on {e.tp_size} x {e.hardware}{side}, sglang {e.sglang_version}"
    lines = [*textwrap.wrap(head, width), ""]
    for row in e.rows:
        cited = f" [{', '.join(row.rules)}]" if row.rules else ""
        lines += _row(row.what, row.value, f"{row.why}{cited}".strip(), width)
    tokens = f"{e.capacity_tokens:,} tokens" if e.capacity_tokens is not None else "not computed"
    lines += _row("capacity", tokens, e.capacity_note, width)
    for scale in e.scales:
        lines += _scale(scale, width)
    for title, findings in (("PROBLEMS", e.problems), ("Notes", e.notes)):
        if findings:
            lines += ["", title]
            for f in findings:
                lines += _finding(f, width)
    if e.unread:
        said = f"Not looked at: {', '.join(e.unread)}"
        lines += ["", *textwrap.wrap(said, width, subsequent_indent="  ", break_on_hyphens=False)]
    if not e.problems:
        lines += ["", "No problem found."]
    if with_rules:
        lines += ["", "Rules"]
        for rule in e.rules:
            lines += textwrap.wrap(
                f"{rule.id}: {rule.statement}", width, initial_indent="  ", subsequent_indent="    "
            )
            lines += textwrap.wrap(
                f"{rule.version}, {rule.source} ({rule.evidence})",
                width,
                initial_indent="    ",
                subsequent_indent="      ",
                break_on_hyphens=False,
            )
    return "\n".join(line.rstrip() for line in lines)


def _row(what: str, value: str, why: str, width: int) -> list[str]:
    """Three columns; a long value takes a line of its own."""
    start = " " * _FIRST
    head = f"{what:<{_FIRST}}{value}"
    rest = width - _FIRST - _SECOND
    told = textwrap.wrap(why, rest, break_on_hyphens=False) if why else []
    indent = " " * (_FIRST + _SECOND)
    if len(value) >= _SECOND:
        values = textwrap.wrap(value, width - _FIRST, break_on_hyphens=False)
        lines = [f"{what:<{_FIRST}}{values[0]}", *(start + v for v in values[1:])]
        return [*lines, *(indent + t for t in told)]
    if not told:
        return [head]
    return [f"{head:<{_FIRST + _SECOND}}{told[0]}", *(indent + t for t in told[1:])]


def _scale(scale: ScaleRow, width: int) -> list[str]:
    who = "MTP layers" if scale.role == "draft" else "layers"
    source = scale.k_source if scale.k_source == scale.v_source else f"{scale.k_source}; v {scale.v_source}"
    used = f"on write {_used(scale.on_write, '/ s')}, on read {_used(scale.on_read, '* s')}"
    values = "" if scale.k is None or scale.v is None else f"; k {_span(scale.k)}, v {_span(scale.v)}"
    cited = f" [{', '.join(scale.rules)}]" if scale.rules else ""
    return _row("scales", f"{who} {layer_ranges(scale.layers)}", f"{source}{values}; {used}{cited}", width)


def _used(used: bool | None, sign: str) -> str:
    return "not known" if used is None else f"x {sign}" if used else "x as it is"


def _span(values: tuple[float, float]) -> str:
    low, high = values
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _finding(f: Finding, width: int) -> list[str]:
    lines = textwrap.wrap(
        f"{f.kind}: {f.message} [{f.rule}]",
        width,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )
    if f.remedy:
        lines += textwrap.wrap(
            f"-> {f.remedy}",
            width,
            initial_indent="    ",
            subsequent_indent="       ",
            break_on_hyphens=False,
        )
    return lines
