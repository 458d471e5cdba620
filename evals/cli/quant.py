"""``equipoise quant``: what is changed. A file for each subcommand, imported only when it is called.

Some subcommands need torch, which the core environment does not have; none of their modules is
imported to show this group's help, so the others work everywhere.
"""

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import click

from equipoise.evals.errors import UsageError

__all__ = ["SUBCOMMANDS", "needs_modules", "quant"]

F = TypeVar("F", bound=Callable[..., Any])

# name -> (module, attribute, one line of help)
SUBCOMMANDS: dict[str, tuple[str, str, str]] = {
    "calibrate": ("quant_calibrate", "calibrate", "KV scales from data, and what they do."),
    "capacity": ("quant_capacity", "capacity", "How many tokens of KV cache a server holds."),
    "control": ("quant_control", "control", "A checkpoint with a planted fault, to serve beside the others."),
    "convert": ("quant_weights", "convert", "Compress a BF16 checkpoint's weights."),
    "dequantize": ("quant_weights", "dequantize", "Decode a quantized checkpoint to BF16."),
    "explain": ("quant_explain", "explain_command", "What a server will do with its KV cache."),
    "geometry": ("quant_geometry", "geometry", "A model's dimensions and KV bytes per token."),
    "lossless": ("quant_lossless", "lossless", "What lossless BF16 compression saves."),
    "verify": ("quant_weights", "verify", "Prove that a converted checkpoint is what it should be."),
    "variants": ("quant_variants", "variants", "The production models' variants and how to launch them."),
}


class _LazyGroup(click.Group):
    """A group whose subcommands are imported when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        module, attribute, _ = SUBCOMMANDS[cmd_name]
        command = getattr(import_module(f"equipoise.evals.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup)
def quant() -> None:
    """Geometry, capacity and compressed variants of a model."""


def needs_modules(*modules: str) -> Callable[[F], F]:
    """Refuse, with the remedy, to run a subcommand whose packages are not installed.

    Put it below ``errors_exit`` and import those packages inside the command.

    Raises
    ------
    UsageError
        When called without one of ``modules``; names it and the extra ``equipoise[quant]``.
    """

    def decorate(f: F) -> F:
        @wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if missing := [m for m in modules if find_spec(m) is None]:
                name = click.get_current_context().info_name
                raise UsageError(
                    f"quant {name} needs {', '.join(missing)}, not installed here; install equipoise[quant], "
                    "or run this with the server environment's Python: "
                    f".venv-sglang/bin/python -m equipoise.evals.cli quant {name}"
                )
            return f(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate
