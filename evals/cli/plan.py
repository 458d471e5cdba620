"""``equipoise plan``: look at a plan before it is run."""

import json
import sys
from math import isnan
from pathlib import Path

import click

from equipoise.evals.cli.numbers import ALPHA, LOSS, MARGIN, POWER, SEED, SHARE, SIZE, Number
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


RATE = Number("a rate", 0, 1e9)


@plan.command()
@click.option("--from", "run_dir", type=click.Path(path_type=Path), help="Size from this run's A/A answers.")
@click.option(
    "--margin", type=MARGIN, help="Largest tolerated loss of a task (default with --from: the plan's)."
)
@click.option("--power", type=POWER, default=0.9, show_default=True, help="Wanted in each task.")
@click.option("--p-d", type=SHARE, help="Assumed share of discordant answers (with --from: the plan's).")
@click.option("--noise-p-d", type=SHARE, help="The same of the baseline asked twice (with --from: measured).")
@click.option("--loss", type=LOSS, help="Assumed true loss (default 0, or the plan's).")
@click.option("--equivalence", is_flag=True, help="Size the equivalence test instead of non-inferiority.")
@click.option("--alpha", type=ALPHA, help="One-sided alpha (default .05, or the plan's).")
@click.option("--tasks", type=SIZE, help="How many such critical tasks (default 1).")
@click.option("--suite-margin", type=MARGIN, help="Of the pooled mean (default --margin, or the plan's).")
@click.option("--repeats", type=SIZE, help="Answers an item in each arm (default: the fewest that pay).")
@click.option(
    "--tokens-per-item",
    type=Number("a mean number of tokens", 0, 1e9),
    help="Of one answer, prompt and completion.",
)
@click.option("--requests-per-s", type=RATE, help="Of one arm's server (with --from: as seen).")
@click.option("--tokens-per-s", type=RATE, help="Of one arm's server, prompt and completion.")
@click.option("--arms", type=SIZE, help="How many arms are asked (default 4, or the plan's).")
@click.option(
    "--simulate",
    type=click.IntRange(0, 100_000),
    default=200,
    show_default=True,
    help="Whole analyses simulated for tasks with repeats.",
)
@click.option("--seed", type=SEED, default=1, show_default=True, help="Of all simulations.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
def size(
    *,
    run_dir: Path | None,
    margin: float | None,
    power: float,
    p_d: float | None,
    noise_p_d: float | None,
    loss: float | None,
    equivalence: bool,
    alpha: float | None,
    tasks: int | None,
    suite_margin: float | None,
    repeats: int | None,
    tokens_per_item: float | None,
    requests_per_s: float | None,
    tokens_per_s: float | None,
    arms: int | None,
    simulate: int,
    seed: int,
    as_json: bool,
) -> None:
    """Items, repeats, tokens and server time for a wanted power.

    From assumed rates, or from a run's baseline asked twice: the candidate's answers are not looked at.
    """
    from equipoise.evals.experiment.plan_size import Assumption, Rates, SizeGoal, assumptions_of, size_plan
    from equipoise.evals.experiment.plan_size_text import plan_size_dict, print_plan_size

    if requests_per_s is not None and tokens_per_s is not None:
        raise UsageError(
            "--requests-per-s and --tokens-per-s both say how fast a server is; give one of them"
        )
    common = {"power": power, "equivalence": equivalence, "repeats": repeats, "draws": simulate, "seed": seed}
    if run_dir is not None:
        measured = {"--noise-p-d": noise_p_d, "--tasks": tasks, "--tokens-per-item": tokens_per_item}
        given = next((name for name, value in measured.items() if value is not None), None)
        if given is not None:
            raise UsageError(f"{given} does not go with --from, which takes it from the run; leave one out")
        from equipoise.evals.experiment.run_noise import noise_of_run

        noise = noise_of_run(run_dir)
        d = noise.plan.decision
        assumed = assumptions_of(noise, margin=margin, p_d=p_d, loss=loss)
        goal = SizeGoal(
            suite_margin=suite_margin if suite_margin is not None else d.suite_margin,
            alpha=alpha if alpha is not None else d.effective_alpha,
            allow_detected=d.allow_detected,
            **common,  # type: ignore[arg-type]
        )
        if requests_per_s is None and tokens_per_s is None and not isnan(noise.requests_per_s):
            requests_per_s = noise.requests_per_s
        n_arms, models = len(noise.plan.arms), len(noise.plan.models)
    else:
        for name, value in (("--margin", margin), ("--p-d", p_d)):
            if value is None:
                raise UsageError(f"{name} is missing: give --margin and --p-d, or a run with --from")
        assert margin is not None
        assert p_d is not None
        if tokens_per_s is not None and tokens_per_item is None:
            raise UsageError("--tokens-per-s needs --tokens-per-item, the mean tokens of one answer")
        assumed = [
            Assumption(
                name="task" if tasks in (None, 1) else f"task {i + 1}",
                margin=margin,
                p_d=p_d,
                noise_p_d=noise_p_d if noise_p_d is not None else 0.0,
                loss=loss if loss is not None else 0.0,
                tokens_per_answer=tokens_per_item,
            )
            for i in range(tasks if tasks is not None else 1)
        ]
        goal = SizeGoal(
            suite_margin=suite_margin if suite_margin is not None else margin,
            alpha=alpha if alpha is not None else 0.05,
            **common,  # type: ignore[arg-type]
        )
        n_arms, models = 4, 1
    rates = Rates(
        requests_per_s=requests_per_s,
        tokens_per_s=tokens_per_s,
        arms=arms if arms is not None else n_arms,
        models=models,
    )
    found = size_plan(assumed, goal, rates)
    if as_json:
        click.echo(json.dumps(plan_size_dict(found), indent=2, allow_nan=False))
    else:
        print_plan_size(found, console())
