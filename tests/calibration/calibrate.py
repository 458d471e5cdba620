"""Error rates of the statistics engine, by exact enumeration and simulation, as a page of tables.

    python tests/calibration/calibrate.py [--small] [--seed N] [--out PAGE]

Exits with 1 if a rate that must hold does not.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click
from alarms import alarm_cells
from binary import binary_cells
from clustered import clustered_cells
from logits import logit_cells
from montecarlo import Cell, Row, Scale, finished_cells
from repeats import repeats_cells
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from suite import suite_cells
from table import Provenance, failures, render

FULL = Scale(small=False, tables=20_000, runs=2_000, resamples=999)
SMALL = Scale(small=True, tables=1_500, runs=120, resamples=399)

PAGE = Path(__file__).with_name("calibration.md")
_ROWS_A_LINE = 20


def cells_of(scale: Scale) -> list[Cell]:
    """Every row of every table, in the order of the report."""
    parts = (binary_cells, repeats_cells, clustered_cells, suite_cells, alarm_cells, logit_cells)
    return [cell for part in parts for cell in part(scale)]


def run(scale: Scale, *, seed: int, processes: int, console: Console) -> list[tuple[Cell, Row]]:
    """All cells and their rows, in order."""
    cells = cells_of(scale)
    rows: dict[int, Row] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("Simulating", total=len(cells))
        for index, row in finished_cells(cells, scale, seed=seed, processes=processes):
            rows[index] = row
            progress.advance(bar)
            if not console.is_terminal and len(rows) % _ROWS_A_LINE == 0:
                console.print(f"{len(rows)} of {len(cells)} rows")  # a log shows no moving bar
            if not row.holds:
                broken = ", ".join(c.text for c in row.claims if not c.holds)
                progress.console.print(f"does not hold ({broken}): {cells[index].section.title}, row {index}")
    return [(cell, rows[i]) for i, cell in enumerate(cells)]


@click.command(help=__doc__)
@click.option("--small", is_flag=True, help="Few cells, few runs: seconds.")
@click.option("--seed", default=1, show_default=True, help="Every row draws from its own child of it.")
@click.option("--processes", default=os.cpu_count() or 1, show_default=True, type=click.IntRange(1))
@click.option("--out", type=click.Path(path_type=Path), help="Page to write; --small alone prints it.")
def main(small: bool, seed: int, processes: int, out: Path | None) -> None:
    console = Console(stderr=True)
    page = out or (None if small else PAGE)
    start = time.perf_counter()
    scale = SMALL if small else FULL
    results = run(scale, seed=seed, processes=processes, console=console)
    text = render(
        results,
        Provenance(
            command=_command(small=small, seed=seed, out=out),
            seed=seed,
            date=datetime.now(UTC).date().isoformat(),
            versions=_versions(("equipoise", "numpy", "scipy")),
            minutes=(time.perf_counter() - start) / 60.0,
            processes=processes,
            scale=scale,
        ),
    )
    if page is None:
        click.echo(text)
    else:
        page.write_text(text, encoding="utf-8")
        console.print(f"written to {page}")
    broken = failures(results)
    console.print(f"{len(broken)} rows do not hold" if broken else "every rate holds")
    sys.exit(1 if broken else 0)


def _command(*, small: bool, seed: int, out: Path | None) -> str:
    parts = ["python tests/calibration/calibrate.py", "--small" if small else "", f"--seed {seed}"]
    return " ".join([*filter(None, parts), *([f"--out {out}"] if out else [])])


def _versions(packages: Iterable[str]) -> str:
    return ", ".join([f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in packages)])


if __name__ == "__main__":
    # One process a core: threads of the linear algebra would only compete.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
