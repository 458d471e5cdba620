"""``equipoise plan``: look at a plan before it is run."""

import json
import sys

import click

from equipoise.evals.cli.shell import console, errors_exit, overridden_plan, plan_overrides
from equipoise.evals.errors import UsageError

__all__ = ["plan"]


@click.group()
def plan() -> None:
    """Look at a plan before it is run."""


@plan.command()
@click.argument("plan_name", metavar="PLAN")
@plan_overrides
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
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

    result = check_plan(overridden_plan(plan_name, baseline, candidate, control, seed))
    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=2))
    else:
        print_plan_check(result, console())
    sys.exit(0 if result.ok else UsageError.exit_code)
