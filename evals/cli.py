"""The command line: parse, call, render, exit.

Exit codes: 0 signed off, 1 degraded, 3 inconclusive, 4 invalid or no verdict, 2 usage,
130 interrupted.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.markup import escape

from equipoise import __version__
from equipoise.evals.errors import EquipoiseError, UsageError
from equipoise.evals.plan import Plan, load_plan

__all__ = ["main"]

INTERRUPTED = 130
F = TypeVar("F", bound=Callable[..., Any])


def _errors_exit(f: F) -> F:
    """Turn our own errors into one line on stderr and their exit code; anything else is a bug and shows."""

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except EquipoiseError as e:
            click.echo(f"error: {e}", err=True)
            sys.exit(e.exit_code)

    return wrapper  # type: ignore[return-value]


def _find_plan(name: str) -> Path:
    """A path, or the name of a plan that ships in tasks/plans/."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return path
    shipped = Path(str(files("equipoise.tasks") / "plans"))
    candidate = shipped / f"{name}.toml"
    if candidate.is_file():
        return candidate
    known = ", ".join(sorted(p.stem for p in shipped.glob("*.toml")))
    raise UsageError(f"no plan {name!r}: give a path to a TOML file, or one of {known}")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="equipoise")
def main() -> None:
    """Is a quantized SGLang release statistically indistinguishable from its BF16 original?"""


_OVERRIDES = [
    click.option("--baseline", metavar="VARIANT|URL", help="Use this as the baseline arms' source."),
    click.option("--candidate", metavar="VARIANT|URL", help="Use this as the candidate's source."),
    click.option("--control", metavar="VARIANT|URL", help="Use this as the gross control's source."),
    click.option("--seed", type=int, metavar="N", help="Draw other items: the plan's item seed."),
]


def _overrides(f: F) -> F:
    for option in reversed(_OVERRIDES):
        f = option(f)
    return f


def _plan(
    name: str, baseline: str | None, candidate: str | None, control: str | None, seed: int | None
) -> Plan:
    plan = load_plan(_find_plan(name))
    if any(x is not None for x in (baseline, candidate, control, seed)):
        plan = plan.with_changes(
            baseline=baseline, candidate=candidate, gross_control=control, item_seed=seed
        )
    return plan


@main.command()
@click.argument("plan")
@_overrides
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
@_errors_exit
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
) -> None:
    """Run PLAN (a path, or a shipped plan's name), decide, and exit by the verdict."""
    from equipoise.evals.experiment.run import RunOptions, run_sync
    from equipoise.reports import terminal

    options = RunOptions(
        out=out, resume=resume, device=device, servers=servers, command=" ".join(["equipoise", *sys.argv[1:]])
    )
    try:
        result = run_sync(_plan(plan, baseline, candidate, control, seed), options, _console(err=True))
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("interrupted: what was answered is saved; add --resume to continue. No verdict.", err=True)
        sys.exit(INTERRUPTED)
    click.echo(_render(terminal.render, result.report), nl=False)
    click.echo(f"run directory: {result.directory}", err=True)
    sys.exit(result.report.run.exit_code)


@main.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_",
    type=click.Choice(["terminal", "markdown", "json"]),
    default="terminal",
    show_default=True,
)
@click.option("--output", type=click.Path(path_type=Path), help="Write to a file instead of standard output.")
@_errors_exit
def report(run_dir: Path, format_: str, output: Path | None) -> None:
    """Analyse the journal in RUN_DIR again and print its report; exits by the verdict."""
    from equipoise.evals.experiment.results import analyse_run
    from equipoise.reports import json as json_report
    from equipoise.reports import markdown, terminal

    render = {"terminal": terminal.render, "markdown": markdown.render, "json": json_report.render}[format_]
    result = analyse_run(run_dir)
    if output is None:
        click.echo(_render(render, result), nl=False)
    else:
        output.write_text(render(result), encoding="utf-8")
        click.echo(f"wrote {output}", err=True)
    sys.exit(result.run.exit_code)


@main.group()
def plan() -> None:
    """Look at a plan before it is run."""


@plan.command()
@click.argument("plan_name", metavar="PLAN")
@_overrides
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@_errors_exit
def check(
    *,
    plan_name: str,
    baseline: str | None,
    candidate: str | None,
    control: str | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Validate PLAN; print its hash, predicted power, worst-case size, and what it could detect."""
    from equipoise.evals.experiment.plan_check import check_plan, print_plan_check

    result = check_plan(_plan(plan_name, baseline, candidate, control, seed))
    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=2))
    else:
        print_plan_check(result, _console())
    sys.exit(0 if result.ok else UsageError.exit_code)


@main.command()
@click.argument("what", metavar="MODEL@VARIANT")
@click.option("--print", "show", is_flag=True, help="Print the command and its environment.")
@click.option("--start", is_flag=True, help="Start it and wait until Ctrl-C.")
@click.option("--port", type=click.IntRange(1, 65535), default=30000, show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@_errors_exit
def serve(what: str, show: bool, start: bool, port: int, device: str) -> None:
    """Serve MODEL with a KV-cache VARIANT, e.g. embedded:kimi_tiny@fp8_e4m3."""
    if show == start:
        raise UsageError("serve needs one of --print and --start")
    from equipoise.evals.experiment import serving

    launch = serving.launch_for(what, port=port, device=device)
    if show:
        click.echo(serving.as_shell(launch))
        return
    try:
        asyncio.run(serving.serve_until_interrupted(launch, _console(err=True)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("server ended", err=True)


@main.command()
@_errors_exit
def doctor() -> None:
    """What this machine can run, and the remedy for what it cannot. Exits 0 if nothing is broken."""
    from equipoise.evals.doctor import examine
    from equipoise.quant.variants import resolve_server_python

    python, problem = None, ""
    try:
        python = Path(resolve_server_python(os.environ))
    except FileNotFoundError as e:
        problem = str(e)
    console = _console()
    checks = examine(python, problem)
    for item in checks:
        mark = {True: "[green]ok  [/]", False: "[red]FAIL[/]", None: "[yellow]note[/]"}[item.ok]
        console.print(f"{mark} {item.what}: {escape(item.found)}", highlight=False)
        if item.remedy:
            console.print(f"     -> {escape(item.remedy)}", highlight=False)
    sys.exit(1 if any(c.ok is False for c in checks) else 0)


@main.command()
@click.argument("plan_name", metavar="PLAN")
@click.option(
    "--seeds", type=click.IntRange(2, 1000), default=20, show_default=True, help="How many item seeds."
)
@click.option("--first", type=int, default=1, show_default=True, help="The first item seed.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/seeds"), show_default=True)
@_errors_exit
def seeds(plan_name: str, seeds: int, first: int, out: Path) -> None:
    """Repeat PLAN over item seeds: does the pass fraction agree with the predicted power?"""
    from equipoise.evals.experiment.seeds import run_seeds

    try:
        agrees = asyncio.run(
            run_seeds(load_plan(_find_plan(plan_name)), range(first, first + seeds), out, _console())
        )
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("interrupted: run the same command again to continue", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(0 if agrees else 1)


def _console(*, err: bool = False) -> Console:
    return Console(stderr=err)


def _render(render: Callable[..., str], report: Any) -> str:
    return render(report)


if __name__ == "__main__":
    main()
