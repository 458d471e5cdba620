"""``equipoise ledger``: the attempts at every candidate, and whether their record is whole."""

import dataclasses
import datetime
import json
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from equipoise.evals.cli.shell import console, errors_exit

__all__ = ["ledger"]

_PATH = click.argument(
    "path", required=False, type=click.Path(path_type=Path), envvar="EQUIPOISE_LEDGER", metavar="[PATH]"
)


@click.group()
def ledger() -> None:
    """The ledger of attempts; PATH is the file or its directory (default: runs, or EQUIPOISE_LEDGER)."""


@ledger.command()
@_PATH
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
def show(*, path: Path | None, as_json: bool) -> None:
    """Every attempt, in the order of their registration."""
    from equipoise.evals.experiment.ledger_check import ledger_at
    from equipoise.evals.ledger import Ledger

    attempts = Ledger(ledger_at(path)).attempts()
    if as_json:
        rows = [
            dataclasses.asdict(a.registration)
            | {"unix_s": a.unix_s, "outcome": a.outcome, "closed_unix_s": a.closed_unix_s, "sha256": a.sha256}
            for a in attempts
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    table = Table(show_edge=False, pad_edge=False)
    for name in ("registered (UTC)", "run", "model", "candidate", "baseline", "plan", "alpha", "outcome"):
        table.add_column(name, justify="right" if name == "alpha" else "left", overflow="fold")
    for a in attempts:
        r = a.registration
        time = datetime.datetime.fromtimestamp(a.unix_s, datetime.UTC)
        cells = [f"{time:%Y-%m-%d %H:%M}", r.run, r.model, _short(r.candidate), _short(r.baseline)]
        cells += [f"{r.plan} {r.plan_hash[:8]}", f"{r.alpha:.3g} ({r.max_attempts})", a.outcome]
        table.add_row(*map(escape, cells))
    out = console()
    out.print(table)
    out.print(
        "alpha: one-sided, spent by the attempt (attempts that its plan allows). Attempts count together "
        "where candidate and baseline are the same.",
        highlight=False,
    )


@ledger.command()
@_PATH
@errors_exit
def verify(*, path: Path | None) -> None:
    """Check every line, and the runs beside the ledger against it; exits 4 at the first broken line."""
    from equipoise.evals.experiment.ledger_check import check_ledger, ledger_at

    found = check_ledger(ledger_at(path))
    click.echo(
        f"{found.path}: whole: {found.lines} lines, {len(found.attempts)} attempts, "
        f"{found.runs} runs beside it agree; the last line is {found.head}"
    )
    for note in found.notes:
        click.echo(f"note: {note}")


def _short(digest: str) -> str:
    return digest.partition(":")[2][:8]
