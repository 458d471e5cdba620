"""``equipoise serve`` and ``equipoise doctor``: what this machine can run, and running it."""

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from equipoise.evals.cli.shell import console, errors_exit
from equipoise.evals.errors import UsageError
from equipoise.quant.production import find_arm, is_production
from equipoise.quant.production_launch import described, production_launch

if TYPE_CHECKING:
    from equipoise.evals.doctor import Check

__all__ = ["doctor", "serve"]


@click.command()
@click.argument("what", metavar="MODEL@VARIANT")
@click.option("--print", "show", is_flag=True, help="Print the command and its environment.")
@click.option("--start", is_flag=True, help="Start it and wait until Ctrl-C.")
@click.option("--port", type=click.IntRange(1, 65535), default=30000, show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--gpu", metavar="NAME", help="Of a production variant: H200 or B200.  [default: H200]")
@click.option("--revision", metavar="COMMIT", help="Of a production variant: pin its checkpoint.")
@errors_exit
def serve(
    *, what: str, show: bool, start: bool, port: int, device: str, gpu: str | None, revision: str | None
) -> None:
    """Serve MODEL with a VARIANT: embedded:kimi_tiny@fp8_e4m3, kimi-k2.6@w=int4-g32,kv=fp8_e4m3.

    Those of the production models (equipoise quant variants) are printed only, for a machine with the GPUs.
    """
    if show == start:
        raise UsageError("serve needs one of --print and --start")
    if is_production(what):
        if start:
            raise UsageError(f"{what} is printed, not started here: take --print and run it on the GPUs")
        launch = production_launch(find_arm(what), (gpu or "H200").upper(), port=port, revision=revision)
        click.echo("\n".join([*(f"# {line}" for line in described(launch)), launch.as_shell]))
        return
    if gpu is not None or revision is not None:
        raise UsageError("--gpu and --revision are of production variants: see `equipoise quant variants`")
    from equipoise.evals.experiment import serving

    command = serving.launch_for(what, port=port, device=device)
    if show:
        click.echo(serving.as_shell(command))
        return
    try:
        asyncio.run(serving.serve_until_interrupted(command, console(err=True)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("server ended", err=True)


@click.command()
@errors_exit
def doctor() -> None:
    """What this machine can run, and the remedy for what it cannot. Exits 0 if nothing is broken."""
    from equipoise.evals.doctor import examine
    from equipoise.quant.variants import resolve_server_python

    python, problem = None, ""
    try:
        python = Path(resolve_server_python(os.environ))
    except FileNotFoundError as e:
        problem = str(e)
    out = console()
    checks = [*examine(python, problem), _sandbox()]
    for item in checks:
        mark = {True: "[green]ok  [/]", False: "[red]FAIL[/]", None: "[yellow]note[/]"}[item.ok]
        out.print(f"{mark} {item.what}: {escape(item.found)}", highlight=False, soft_wrap=True)
        if item.remedy:
            out.print(f"     -> {escape(item.remedy)}", highlight=False, soft_wrap=True)
    sys.exit(1 if any(c.ok is False for c in checks) else 0)


def _sandbox() -> "Check":
    """How well code of models is kept apart here, found by trying."""
    from equipoise.evals.doctor import Check
    from equipoise.tasks.sandbox.sandbox import shared_sandbox
    from equipoise.tasks.sandbox.types import Isolation

    sandbox = shared_sandbox()
    try:
        probe = sandbox.probe()
    finally:
        sandbox.close()
    good = probe.isolation is Isolation.FULL
    remedy = "" if good else "tasks that run code say so in every score; see tasks/sandbox/README.md"
    return Check(what="sandbox for code", ok=True if good else None, found=str(probe), remedy=remedy)
