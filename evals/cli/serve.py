"""``equipoise serve`` and ``equipoise doctor``: what this machine can run, and running it."""

import asyncio
import os
import sys
from pathlib import Path

import click
from rich.markup import escape

from equipoise.evals.cli.shell import console, errors_exit
from equipoise.evals.errors import UsageError

__all__ = ["doctor", "serve"]


@click.command()
@click.argument("what", metavar="MODEL@VARIANT")
@click.option("--print", "show", is_flag=True, help="Print the command and its environment.")
@click.option("--start", is_flag=True, help="Start it and wait until Ctrl-C.")
@click.option("--port", type=click.IntRange(1, 65535), default=30000, show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@errors_exit
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
        asyncio.run(serving.serve_until_interrupted(launch, console(err=True)))
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
    checks = examine(python, problem)
    for item in checks:
        mark = {True: "[green]ok  [/]", False: "[red]FAIL[/]", None: "[yellow]note[/]"}[item.ok]
        out.print(f"{mark} {item.what}: {escape(item.found)}", highlight=False)
        if item.remedy:
            out.print(f"     -> {escape(item.remedy)}", highlight=False)
    sys.exit(1 if any(c.ok is False for c in checks) else 0)
