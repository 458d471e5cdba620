"""``equipoise run`` and ``equipoise report``."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.evals.cli.shell import (
    INTERRUPTED,
    console,
    data_dir_option,
    errors_exit,
    overridden_plan,
    plan_overrides,
)
from equipoise.evals.errors import UsageError

if TYPE_CHECKING:
    from equipoise.evals.experiment.results import AllFlips
    from equipoise.reports.model import Report

__all__ = ["report", "run"]


@click.command()
@click.argument("plan")
@plan_overrides
@click.option("--out", type=click.Path(path_type=Path), help="Run directory (default: runs/PLAN-TIME).")
@click.option("--resume", is_flag=True, help="Continue the run in --out (default: the latest run).")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option(
    "--servers",
    type=click.Choice(["auto", "together", "one-by-one"]),
    default="auto",
    show_default=True,
    help="Whether a model's servers run at the same time (arms interleaved) or one after another.",
)
@click.option(
    "--ledger",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="EQUIPOISE_LEDGER",
    help="Ledger of attempts (default: ledger.jsonl beside the run directory; EQUIPOISE_LEDGER).",
)
@errors_exit
def run(
    *,
    plan: str,
    baseline: str | None,
    candidate: str | None,
    control: str | None,
    seed: int | None,
    out: Path | None,
    resume: bool,
    device: str,
    servers: str,
    ledger: Path | None,
) -> None:
    """Run PLAN (a path, or a shipped plan's name), decide, and exit by the verdict."""
    from equipoise.evals.cli.step_summary import append_step_summary
    from equipoise.evals.experiment.run import RunOptions, run_sync
    from equipoise.reports import terminal

    options = RunOptions(
        out=out,
        resume=resume,
        device=device,
        servers=servers,
        command=" ".join(["equipoise", *sys.argv[1:]]),
        ledger=ledger,
    )
    try:
        result = run_sync(
            overridden_plan(plan, baseline, candidate, control, seed), options, console(err=True)
        )
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("interrupted: what was answered is saved; add --resume to continue. No verdict.", err=True)
        sys.exit(INTERRUPTED)
    click.echo(terminal.render(result.report), nl=False)
    append_step_summary(result.report)
    click.echo(f"run directory: {result.directory}", err=True)
    click.echo(f"report to open in a browser: {result.page}", err=True)
    sys.exit(result.report.run.exit_code)


def _print_schema(context: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from equipoise.reports.schema import render

    click.echo(render(), nl=False)
    context.exit()


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON Schema of the JSON report, and exit.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["terminal", "markdown", "html", "json", "junit", "svg", "png"]),
    default="terminal",
    show_default=True,
)
@click.option("--output", type=click.Path(path_type=Path), help="Write to a file instead of standard output.")
@data_dir_option
@errors_exit
def report(run_dir: Path, format_: str, output: Path | None) -> None:
    """Analyse the journal in RUN_DIR again and print its report; exits by the verdict."""
    from equipoise.evals.cli.step_summary import append_step_summary
    from equipoise.evals.experiment.results import analyse_with_flips

    if format_ == "png" and output is None:
        raise UsageError("--format png is not text: give --output FILE.png")
    result, flips = analyse_with_flips(run_dir)
    try:
        _write_report(result, flips, format_, output)
    except OSError as e:
        raise UsageError(f"--output {output} cannot be written ({e.strerror}); give another file") from e
    append_step_summary(result)
    sys.exit(result.run.exit_code)


def _write_report(result: "Report", flips: "AllFlips", format_: str, output: Path | None) -> None:
    from equipoise.evals.experiment.report_files import write_page
    from equipoise.reports import html, junit, markdown, svg, terminal
    from equipoise.reports import json as json_report
    from equipoise.reports.svg.png import png

    render = {
        "terminal": terminal.render,
        "markdown": markdown.render,
        "html": lambda report: html.page(report, flips).html,
        "json": json_report.render,
        "junit": junit.render,
        "svg": svg.render,
        "png": svg.render,
    }[format_]
    if output is None:
        click.echo(render(result), nl=False)
        return
    if format_ == "html":
        write_page(output, result, flips)
    elif format_ == "png":
        output.write_bytes(png(render(result)))
    else:
        output.write_text(render(result), encoding="utf-8")
    click.echo(f"wrote {output}", err=True)
