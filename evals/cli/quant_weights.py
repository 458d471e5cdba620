"""``equipoise quant convert``, ``dequantize`` and ``verify``: weights on disk."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as SpeedColumn
from rich.table import Table
from rich.text import Text

from equipoise.evals.cli.numbers import SIZE
from equipoise.evals.cli.quant import needs_modules
from equipoise.evals.cli.shell import console, errors_exit
from equipoise.quant.weights.names import FORMAT_NAMES

if TYPE_CHECKING:
    from equipoise.quant.weights.convert import Conversion
    from equipoise.quant.weights.verify import Verification

__all__ = ["convert", "dequantize", "verify"]

_WORKERS = click.option("--workers", type=SIZE, metavar="N", help="Processes.  [default: one a core]")
_RESUME = click.option("--resume", is_flag=True, help="Continue an unfinished run (DST.partial).")
_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option("--format", "format_name", type=click.Choice(FORMAT_NAMES), required=True)
@click.option(
    "--ignore",
    multiple=True,
    metavar="PATTERN",
    help="Keep these layers too: a name, its end, or re: and a regular expression. Must match.",
)
@_WORKERS
@_RESUME
@_JSON
@errors_exit
@needs_modules("torch")
def convert(
    *,
    source: str,
    target: Path,
    format_name: str,
    ignore: tuple[str, ...],
    workers: int | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Compress the weights of SRC, a BF16 checkpoint, into DST, which must not exist.

    Attention, routers, heads and the like stay in BF16 as the family's releases have it. SRC is only read;
    memory is bounded whatever its size. DST appears when it is whole.
    """
    from equipoise.quant.weights.convert import convert as run

    with _progress(f"to {format_name}") as progress:
        result = run(
            _folder(source),
            target,
            format_name=format_name,
            ignore=ignore,
            workers=workers,
            resume=resume,
            progress=progress,
        )
    _print_conversion(result, as_json)


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@_WORKERS
@_RESUME
@_JSON
@errors_exit
@needs_modules("torch")
def dequantize(*, source: str, target: Path, workers: int | None, resume: bool, as_json: bool) -> None:
    """Decode SRC, a quantized checkpoint, to BF16 in DST, which must not exist.

    Reads what convert writes, and the official FP8 block, FP8 channel, Kimi INT4, NVFP4, MXFP4 and MXFP8
    releases.
    """
    from equipoise.quant.weights.convert import dequantize as run

    with _progress("to BF16") as progress:
        result = run(_folder(source), target, workers=workers, resume=resume, progress=progress)
    _print_conversion(result, as_json)


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@_WORKERS
@click.option("--all", "everything", is_flag=True, help="A row for each tensor.")
@_JSON
@errors_exit
@needs_modules("torch")
def verify(*, source: str, target: str, workers: int | None, everything: bool, as_json: bool) -> None:
    """Read SRC and DST again and compare them; exits 0 if DST is proved right, 1 if not.

    DST is a conversion of SRC, or SRC decoded. What stays must be identical; each quantized value must be
    within half a step of its format; config and tensors must agree.
    """
    from equipoise.quant.weights.verify import verify as run

    with _progress("comparing") as progress:
        result = run(_folder(source), _folder(target), workers=workers, progress=progress)
    if as_json:
        click.echo(json.dumps(_verification_json(result), indent=2, allow_nan=False))
    else:
        _print_verification(result, everything)
    sys.exit(0 if result.passed else 1)


def _folder(name: str) -> Path:
    """A folder, or embedded:NAME."""
    from equipoise.evals.experiment.checkpoints import resolve_model

    return Path(resolve_model(name)) if name.startswith("embedded:") else Path(name).expanduser()


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, if that is a terminal."""
    out = console(err=True)
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), SpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_conversion(result: "Conversion", as_json: bool) -> None:
    seconds = result.outcome.seconds
    if as_json:
        value: dict[str, Any] = {
            "source": str(result.source),
            "target": str(result.target),
            "format": result.format,
            "converted": result.converted,
            "kept": result.kept,
            "dropped": list(result.dropped),
            "source_bytes": result.source_bytes,
            "target_bytes": result.target_bytes,
            "counts": asdict(result.counts),
            "not_copied": list(result.not_copied),
            "notes": list(result.notes),
            "shards": len(result.outcome.records),
            "shards_resumed": result.outcome.resumed,
            "seconds": seconds,
            "idle_rss_bytes": result.outcome.idle_rss_bytes,
            "peak_rss_bytes": result.outcome.peak_rss_bytes,
        }
        click.echo(json.dumps(value, indent=2, allow_nan=False))
        return
    ratio = result.target_bytes / result.source_bytes if result.source_bytes else 1.0
    lines = [
        f"{result.target}: {result.format}, {result.converted:,} tensors converted, {result.kept:,} kept",
        f"{result.source_bytes / 1e9:,.3f} GB -> {result.target_bytes / 1e9:,.3f} GB ({ratio:.1%}), "
        f"{seconds:,.1f} s",
    ]
    counts = result.counts
    if counts.n:
        lines.append(
            f"of {counts.n:,} values {counts.flushed_to_zero:,} became zero, {counts.saturated:,} saturated, "
            f"{counts.nan:,} are NaN"
        )
    if result.outcome.resumed:
        lines.append(f"{result.outcome.resumed:,} shards were found done")
    if result.dropped:
        lines.append(
            f"{len(result.dropped):,} scales of activations or the KV cache were dropped, e.g. "
            f"{result.dropped[0]}"
        )
    if result.not_copied:
        lines.append(f"not copied: {', '.join(result.not_copied)}")
    lines += [f"note: {note}" for note in result.notes]
    for line in lines:
        console().print(Text(line), soft_wrap=True)


def _verification_json(result: "Verification") -> dict[str, Any]:
    return {
        "source": str(result.source),
        "target": str(result.target),
        "format": result.format,
        "passed": result.passed,
        "problems": list(result.problems),
        "tensors": [asdict(check) for check in result.checks],
    }


def _print_verification(result: "Verification", everything: bool) -> None:
    out = console()
    quantized = [check for check in result.checks if check.kind == "quantized"]
    figures = sorted(check.sqnr_db for check in quantized if check.sqnr_db is not None)
    rows = [c for c in result.checks if everything or c.problem]
    if rows:
        table = Table(box=None, pad_edge=False)
        for heading in ("tensor", "kind", "values", "SQNR, dB", "worst / bound", "problem"):
            table.add_column(heading, overflow="fold")
        for c in rows:
            sqnr = "" if c.sqnr_db is None else f"{c.sqnr_db:.2f}"
            worst = f"{c.worst:.3f}" if c.kind == "quantized" else ""
            table.add_row(Text(c.name), c.kind, f"{c.n:,}", sqnr, worst, Text(c.problem))
        out.print(table)
    for problem in result.problems:
        out.print(Text(f"problem: {problem}"), soft_wrap=True)
    kinds = {
        kind: sum(c.kind == kind for c in result.checks) for kind in ("quantized", "decoded", "identical")
    }
    counted = ", ".join(f"{n:,} {kind}" for kind, n in kinds.items() if n)
    failed = len(result.problems) + sum(bool(c.problem) for c in result.checks)
    verdict = "verified" if result.passed else f"NOT verified: {failed:,} problems"
    lines = [f"{result.target} against {result.source} ({result.format}): {verdict}", f"tensors: {counted}"]
    if figures:
        worst_share = max(c.worst for c in quantized)
        lines.append(
            f"SQNR {figures[0]:.2f} to {figures[-1]:.2f} dB, median {figures[len(figures) // 2]:.2f}; the "
            f"largest error is {worst_share:.3f} of what the format allows"
        )
    for line in lines:
        out.print(Text(line), soft_wrap=True)
