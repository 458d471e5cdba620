"""What every command shares: errors that exit with their code, plans by name, consoles."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from equipoise.evals.errors import EquipoiseError, UsageError
from equipoise.evals.plan import Plan, load_plan

__all__ = [
    "INTERRUPTED",
    "console",
    "data_dir_option",
    "errors_exit",
    "find_plan",
    "overridden_plan",
    "plan_overrides",
    "read_plan",
    "suites_folder",
]

INTERRUPTED = 130
F = TypeVar("F", bound=Callable[..., Any])


def errors_exit(f: F) -> F:
    """Turn our own errors into one line on stderr and their exit code; anything else is a bug and shows."""

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except EquipoiseError as e:
            click.echo(f"error: {e}", err=True)
            sys.exit(e.exit_code)

    return wrapper  # type: ignore[return-value]


def find_plan(name: str) -> Path:
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


def suites_folder() -> Path:
    """Where the suites that ship are."""
    return Path(str(files("equipoise.tasks") / "suites"))


def read_plan(name: str) -> Plan:
    """The plan of this name or path, with its suite's tasks."""
    return load_plan(find_plan(name), suites=suites_folder())


def _use_data_dir(_: click.Context, __: click.Parameter, value: Path | None) -> None:
    if value is None:
        return
    if not value.is_dir():
        raise click.BadParameter(f"{value} is not a directory")
    os.environ["EQUIPOISE_DATA"] = str(value.resolve())


#: Sets EQUIPOISE_DATA, which tasks read.
data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    expose_value=False,
    callback=_use_data_dir,
    help="Read data sets from this directory instead of the hub (EQUIPOISE_DATA).",
)

_OVERRIDES = [
    click.option("--baseline", metavar="VARIANT|URL", help="Use this as the baseline arms' source."),
    click.option("--candidate", metavar="VARIANT|URL", help="Use this as the candidate's source."),
    click.option("--control", metavar="VARIANT|URL", help="Use this as the gross control's source."),
    click.option(
        "--seed", type=click.IntRange(min=0), metavar="N", help="Draw other items: the plan's item seed."
    ),
]


def plan_overrides(f: F) -> F:
    for option in (data_dir_option, *reversed(_OVERRIDES)):
        f = option(f)
    return f


def overridden_plan(
    name: str, baseline: str | None, candidate: str | None, control: str | None, seed: int | None
) -> Plan:
    plan = read_plan(name)
    if any(x is not None for x in (baseline, candidate, control, seed)):
        plan = plan.with_changes(
            baseline=baseline, candidate=candidate, gross_control=control, item_seed=seed
        )
    return plan


def console(*, err: bool = False) -> Console:
    """Standard output, or standard error for what is not the result."""
    return Console(stderr=err)
