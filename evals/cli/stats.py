"""``equipoise stats``: the tests, sizes and adjustments as calculators, without a run."""

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from equipoise.evals.cli.numbers import ALPHA, COUNT, LEVEL, LOSS, MARGIN, POWER, SHARE, Number
from equipoise.evals.cli.shell import console, errors_exit
from equipoise.evals.errors import UsageError

__all__ = ["stats"]

NO_MARGIN = "needs a margin: add --margin M"
# A count like -1 would otherwise be taken for an option, and the message would not name the argument.
_SIGNED = {"ignore_unknown_options": True}


@click.group()
def stats() -> None:
    """Calculators: a paired table, a sample size, many p-values."""


@stats.command(context_settings=_SIGNED)
@click.argument("both_right", metavar="A", type=COUNT)
@click.argument("baseline_only", metavar="B", type=COUNT)
@click.argument("candidate_only", metavar="C", type=COUNT)
@click.argument("both_wrong", metavar="D", type=COUNT)
@click.option("--level", type=LEVEL, default=0.95, show_default=True, help="Of the intervals.")
@click.option("--margin", type=MARGIN, help="Test against this loss (non-inferiority) and gain.")
@click.option("--alpha", type=ALPHA, default=0.05, show_default=True, help="Of the one-sided limits.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
def paired(
    *,
    both_right: int,
    baseline_only: int,
    candidate_only: int,
    both_wrong: int,
    level: float,
    margin: float | None,
    alpha: float,
    as_json: bool,
) -> None:
    """Compare two arms on the same items.

    A pairs are right under both arms, B under the baseline only, C under the candidate only, D under
    neither. Differences are candidate - baseline.
    """
    from equipoise.evals.statistics.mcnemar import mcnemar_test
    from equipoise.evals.statistics.newcombe import newcombe_interval
    from equipoise.evals.statistics.paired_intervals import bonett_price_interval, wald_interval
    from equipoise.evals.statistics.tango import CITATION, tango_delta_limits, tango_test

    b, c, n = baseline_only, candidate_only, both_right + baseline_only + candidate_only + both_wrong
    if n == 0:
        raise UsageError("A, B, C and D are all 0: there is no pair to compare; give the counts of a table")
    ci_lower, ci_upper = (float(x) for x in tango_delta_limits(b, c, n, 0.5 + level / 2.0))
    lower, upper = (float(x) for x in tango_delta_limits(b, c, n, 1.0 - alpha))
    newcombe = newcombe_interval(both_right, b, c, both_wrong, level=level)
    others = bonett_price_interval(b, c, n, level=level), wald_interval(b, c, n, level=level)
    mcnemar = mcnemar_test(b, c)
    test = tango_test(b, c, n, margin=margin, alpha=alpha) if margin is not None else None
    result: dict[str, Any] = {
        "table": [both_right, b, c, both_wrong],
        "n": n,
        "baseline_accuracy": (both_right + b) / n,
        "candidate_accuracy": (both_right + c) / n,
        "delta": (c - b) / n,
        "level": level,
        "tango_ci": [ci_lower, ci_upper],
        "newcombe_ci": [newcombe.ci_lower, newcombe.ci_upper],
        "bonett_price_ci": [others[0].ci_lower, others[0].ci_upper],
        "wald_ci": [others[1].ci_lower, others[1].ci_upper],
        "alpha": alpha,
        "lower": lower,
        "upper": upper,
        "mcnemar_exact_p": mcnemar.exact_p,
        "mcnemar_mid_p": mcnemar.mid_p,
        "margin": margin,
        "noninferiority_p": test.noninferiority_p if test else None,
        "equivalence_p": test.equivalence_p if test else None,
        "noninferior": test.noninferiority_p <= alpha if test else None,
        "equivalent": test.equivalence_p <= alpha if test else None,
        "reason": None if test else f"noninferiority_p and equivalence_p are null: each {NO_MARGIN}",
        "methods": {
            "tango_ci, lower, upper, noninferiority_p, equivalence_p": CITATION,
            "newcombe_ci": newcombe.citation,
            "bonett_price_ci": others[0].citation,
            "wald_ci": f"{others[1].citation} A point at zero discordance: never gate on it.",
            "mcnemar_exact_p, mcnemar_mid_p": mcnemar.citation,
        },
    }
    if as_json:
        _print_json(result)
        return
    against = f"against a loss of {margin:g}" if margin is not None else NO_MARGIN
    _print_rows(
        f"{n:,} pairs: {both_right:,} both right, {b:,} baseline only, {c:,} candidate only, "
        f"{both_wrong:,} both wrong",
        [
            ("baseline accuracy", f"{result['baseline_accuracy']:.4f}", ""),
            ("candidate accuracy", f"{result['candidate_accuracy']:.4f}", ""),
            ("delta", f"{result['delta']:+.4f}", "candidate - baseline"),
            (f"{100 * level:g}% interval", f"[{ci_lower:+.4f}, {ci_upper:+.4f}]", "Tango score"),
            (
                "",
                f"[{newcombe.ci_lower:+.4f}, {newcombe.ci_upper:+.4f}]",
                "Newcombe hybrid score",
            ),
            ("one-sided limits", f"{lower:+.4f} and {upper:+.4f}", f"Tango, alpha {alpha:g} each"),
            ("any difference", f"p = {_p(mcnemar.exact_p)}", "McNemar exact, two-sided"),
            ("", f"p = {_p(mcnemar.mid_p)}", "McNemar mid-p, two-sided"),
            ("non-inferiority", _decision(result["noninferiority_p"], alpha), against),
            ("equivalence", _decision(result["equivalence_p"], alpha), against if test is None else ""),
        ],
        (CITATION, newcombe.citation, mcnemar.citation),
    )


@stats.command(context_settings=_SIGNED)
@click.option("--margin", type=MARGIN, required=True, help="Largest tolerated loss.")
@click.option("--power", type=POWER, required=True, help="Wanted probability of success.")
@click.option(
    "--p-d",
    type=SHARE,
    required=True,
    help="Assumed share of discordant pairs.",
)
@click.option("--loss", type=LOSS, default=0.0, show_default=True, help="Assumed true loss.")
@click.option("--alpha", type=ALPHA, default=0.05, show_default=True, help="One-sided alpha.")
@click.option("--equivalence", is_flag=True, help="Size the equivalence test instead.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
def size(
    *,
    margin: float,
    power: float,
    p_d: float,
    loss: float,
    alpha: float,
    equivalence: bool,
    as_json: bool,
) -> None:
    """Items that one task needs, one answer an item: by formula, and by exact power."""
    from equipoise.evals.statistics.power import sample_size

    check_rates(margin=margin, p_d=p_d, loss=loss, equivalence=equivalence)
    try:
        found = sample_size(margin, power, p_d, loss=loss, alpha=alpha, equivalence=equivalence)
    except ValueError as e:
        raise UsageError(f"--margin {margin:g} with --p-d {p_d:g} and --loss {loss:g}: {e}") from e
    result = {
        "margin": margin,
        "power": power,
        "p_d": p_d,
        "loss": loss,
        "alpha": alpha,
        "equivalence": equivalence,
        "n": found.n,
        "power_at_n": found.power_at_n,
        "n_exact": found.n_exact,
        "power_exact": found.power_exact,
        "method": found.method,
        "citation": found.citation,
    }
    if as_json:
        _print_json(result)
        return
    _print_rows(
        f"{'equivalence' if equivalence else 'non-inferiority'} at a margin of {margin:g}, one-sided alpha "
        f"{alpha:g}, discordant share {p_d:g}, true loss {loss:g}",
        [
            ("n", f"{found.n:,}", f"by formula; its exact power is {found.power_at_n:.4f}"),
            ("n_exact", f"{found.n_exact:,}", f"exact power {found.power_exact:.4f}, wanted {power:g}"),
        ],
        (found.method, found.citation),
    )


@stats.command(context_settings=_SIGNED)
@click.option("--method", type=click.Choice(["holm", "bh"]), required=True, help="Which adjustment.")
@click.argument("p", metavar="P...", nargs=-1, type=Number("a p-value", 0, 1, closed="both"))
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
def adjust(*, method: str, p: tuple[float, ...], as_json: bool) -> None:
    """Adjust p-values for their number: Holm (family-wise error) or bh (false discovery rate)."""
    from equipoise.evals.statistics.holm import benjamini_hochberg, holm

    if not p:
        raise UsageError("no p-value P was given; list them after the options, e.g. .01 .04 .03")
    found = holm(p) if method == "holm" else benjamini_hochberg(p)
    if as_json:
        result = {"p": found.p, "adjusted": found.adjusted, "method": found.method}
        _print_json(result | {"citation": found.citation})
        return
    rows = [
        (str(i), _p(raw), _p(a)) for i, (raw, a) in enumerate(zip(found.p, found.adjusted, strict=True), 1)
    ]
    _print_rows(found.method, [("", "p", "adjusted p"), *rows], (found.citation,))


def check_rates(*, margin: float, p_d: float, loss: float, equivalence: bool) -> None:
    """Refuse rates that no experiment can have, or that no number of items can decide."""
    if abs(loss) > p_d:
        raise UsageError(
            f"--loss {loss:g} needs a discordant share of at least {abs(loss):g}, and --p-d is {p_d:g}; "
            "raise --p-d or lower --loss"
        )
    if (abs(loss) if equivalence else loss) >= margin:
        raise UsageError(
            f"--loss {loss:g} leaves no room within --margin {margin:g}: no number of items would show it; "
            "lower --loss or raise --margin"
        )


def _p(p: float) -> str:
    if p == 0.0:
        return "below 1e-300"
    return f"{p:.4f}" if p >= 1e-4 else f"{p:.2e}"


def _decision(p: float | None, alpha: float) -> str:
    return "-" if p is None else f"p = {_p(p)}, {'shown' if p <= alpha else 'not shown'}"


def _print_json(result: dict[str, Any]) -> None:
    click.echo(json.dumps(result, indent=2, allow_nan=False))


def _print_rows(title: str, rows: Sequence[tuple[str, str, str]], sources: Sequence[str]) -> None:
    out = console()
    out.print(Text(title))
    table = Table(show_header=False, box=None, pad_edge=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)
    for source in sources:
        out.print(Text(source, style="dim"))
