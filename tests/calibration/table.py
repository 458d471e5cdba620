"""The calibration's tables as markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from montecarlo import Cell, Rate, Row, Scale

__all__ = ["Provenance", "failures", "render"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """How the numbers came about."""

    command: str
    seed: int
    date: str
    versions: str
    minutes: float
    processes: int
    scale: Scale


def failures(results: Sequence[tuple[Cell, Row]]) -> list[tuple[Cell, Row]]:
    """Rows with a claim that does not hold."""
    return [(cell, row) for cell, row in results if not row.holds]


def render(results: Sequence[tuple[Cell, Row]], provenance: Provenance) -> str:
    """One markdown page."""
    claimed = [row for _, row in results if row.claims]
    broken = failures(results)
    scale = provenance.scale
    lines = [
        f"# Calibration of the statistics engine ({provenance.date})",
        "",
        f"`{provenance.command}`, seed {provenance.seed}; {provenance.versions}; "
        f"{provenance.minutes:.1f} minutes, {provenance.processes} processes.",
        "",
        f"{len(claimed) - len(broken)} of {len(claimed)} rows that must hold do."
        + (f" Not: {', '.join(sorted({cell.section.title for cell, _ in broken}))}." if broken else ""),
        "",
        "Simulated shares stand with ± one Monte-Carlo standard error; other numbers are exact. "
        f"{scale.resamples} bootstrap resamples inside simulated runs (reports use 10,000). A row *holds* if "
        "its simulation does not exclude the "
        "bound at 99%, one-sided. m is the margin, p_d the discordant share, K the answers an item and arm; "
        "*ours* is "
        "`estimate_delta` with one-sided 95% limits: non-inferior if the lower limit lies above -m.",
    ]
    for title, group in groupby(results, key=lambda result: result[0].section.title):
        rows = list(group)
        lines += ["", f"## {title}", "", rows[0][0].section.note, "", *_table([row for _, row in rows])]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    names = list(rows[0].values)
    must = any(row.claims for row in rows)
    header = [*names, *(["must", "holds"] if must else [])]
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join('---' for _ in header)}|"]
    for row in rows:
        cells = [_cell(row.values[name]) for name in names]
        if must:
            cells.append(", ".join(claim.text for claim in row.claims))
            cells.append(("yes" if row.holds else "**no**") if row.claims else "")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cell(value: str | int | float | Rate) -> str:
    if isinstance(value, Rate):
        digits = 4 if value.standard_error < 0.00095 else 3
        return f"{value.share:.{digits}f} ± {value.standard_error:.{digits}f}"
    if isinstance(value, float):
        return f"{value:.4f}".rstrip("0").rstrip(".") if value < 10 else f"{value:g}"
    return str(value)
