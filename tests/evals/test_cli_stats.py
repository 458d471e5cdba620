"""``equipoise stats``: reference values through the command line, and what it refuses."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cli_runs import cli, error_of

VECTORS = json.loads((Path(__file__).parent / "statistics" / "vectors.json").read_text())
_KEYS = {
    "tango": "tango_ci",
    "newcombe10": "newcombe_ci",
    "bonett_price": "bonett_price_ci",
    "wald": "wald_ci",
}
INTERVALS = [v for v in VECTORS["paired_difference_ci"] if "table" in v]
MCNEMAR = [v for v in VECTORS["mcnemar"] if "table" in v]


def stats(*args: object) -> dict[str, Any]:
    result = cli("stats", *map(str, args), "--json")
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("vector", INTERVALS, ids=lambda v: f"{v['source']}:{v['table']}")
def test_paired_gives_the_published_intervals_of_candidate_minus_baseline(vector: dict[str, Any]) -> None:
    found = stats("paired", *vector["table"], "--level", vector["level"])
    for name, key in _KEYS.items():
        if name in vector:
            low, high = vector[name]  # of (b - c) / n: ours is its negative, reversed
            assert found[key] == pytest.approx([-high, -low], abs=5.1e-4)


def test_arms_that_change_places_mirror_every_result() -> None:
    one, other = stats("paired", 59, 6, 16, 80), stats("paired", 59, 16, 6, 80)
    assert one["delta"] == -other["delta"]
    for key in ("tango_ci", "newcombe_ci"):
        assert one[key] == pytest.approx([-x for x in reversed(other[key])], abs=1e-12)
    assert (one["lower"], one["upper"]) == pytest.approx((-other["upper"], -other["lower"]), abs=1e-12)


@pytest.mark.parametrize("vector", MCNEMAR, ids=lambda v: str(v["table"]))
def test_paired_gives_the_published_mcnemar_p_values(vector: dict[str, Any]) -> None:
    found = stats("paired", *vector["table"])
    assert found["mcnemar_exact_p"] == pytest.approx(vector["exact_two_sided"], abs=6e-7)
    assert found["mcnemar_mid_p"] == pytest.approx(vector["mid_p"], abs=6e-7)


def test_noninferiority_p_matches_its_reference() -> None:
    (vector,) = VECTORS["tango_noninferiority"]
    both, candidate_only, baseline_only, neither = vector["table"]  # its first arm is the candidate
    found = stats("paired", both, baseline_only, candidate_only, neither, "--margin", 0.1)
    assert found["noninferiority_p"] == pytest.approx(vector["p"], abs=6e-6)
    assert found["equivalence_p"] >= found["noninferiority_p"]
    assert found["reason"] is None


@pytest.mark.parametrize("vector", [v for v in VECTORS["paired_difference_ci"] if "zero_discordant_n" in v])
def test_zero_discordance_gives_an_interval_with_width(vector: dict[str, Any]) -> None:
    found = stats("paired", vector["zero_discordant_n"], 0, 0, 0)
    half_width = vector["tango_half_width"]
    assert found["tango_ci"] == pytest.approx([-half_width, half_width], abs=2e-5)
    assert found["mcnemar_exact_p"] == 1.0


def test_zero_discordance_passes_two_points_on_198_items_and_not_one() -> None:
    assert stats("paired", 150, 0, 0, 48, "--margin", 0.02)["noninferior"] is True
    assert stats("paired", 150, 0, 0, 48, "--margin", 0.01)["noninferior"] is False


def test_the_tests_agree_with_the_limits_at_the_same_alpha() -> None:
    for table in ((300, 12, 9, 79), (300, 25, 9, 66), (100, 0, 0, 100)):
        for margin in (0.01, 0.03, 0.05):
            found = stats("paired", *table, "--margin", margin, "--alpha", 0.025)
            assert found["noninferior"] == (found["lower"] > -margin)
            assert found["equivalent"] == (found["lower"] > -margin and found["upper"] < margin)


def test_without_a_margin_the_p_values_are_null_with_the_reason() -> None:
    found = stats("paired", 59, 6, 16, 80)
    assert (found["noninferiority_p"], found["equivalence_p"]) == (None, None)
    assert "--margin" in found["reason"]
    assert "add --margin M" in cli("stats", "paired", "59", "6", "16", "80").stdout


@pytest.mark.parametrize("vector", VECTORS["sample_size"], ids=lambda v: f"{v['kind']}:{v['p_d']}")
def test_size_gives_the_reference_numbers_and_the_exact_ones_beside(vector: dict[str, Any]) -> None:
    kind = ("--equivalence",) if vector["kind"] == "equivalence" else ()
    args = [f"--margin={vector['margin']}", f"--power={vector['power']}", f"--p-d={vector['p_d']}", *kind]
    found = stats("size", *args)
    assert found["n"] == vector["n"]
    assert found["n_exact"] >= vector["n"]  # the formula never asks for too many
    if vector["p_d"] >= 3 * vector["margin"]:
        assert found["n_exact"] == pytest.approx(vector["n"], rel=0.02)
    assert found["power_exact"] >= vector["power"]


def test_adjust_gives_the_reference_values() -> None:
    (vector,) = VECTORS["multiplicity"]
    for method in ("holm", "bh"):
        assert stats("adjust", "--method", method, *vector["p"])["adjusted"] == pytest.approx(vector[method])


@pytest.mark.parametrize(
    "args",
    [
        ("paired", "59", "6", "16", "80", "--margin", ".02"),
        ("size", "--margin", ".01", "--power", ".8", "--p-d", ".05"),
        ("adjust", "--method", "holm", *(["0.0123456"] * 12)),
    ],
    ids=lambda a: a[0],
)
def test_piped_output_is_plain_within_80_columns_and_cites_its_method(args: tuple[str, ...]) -> None:
    lines = cli("stats", *args).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    text = " ".join(line.strip() for line in lines)
    assert any(source in text for source in ("Tango T (1998)", "Holm S (1979)"))


@pytest.mark.parametrize(
    ("args", "named", "remedy"),
    [
        ("paired -1 2 3 4", "'A'", "a whole number from 0"),
        ("paired 1 2 3 x", "'D'", "a whole number from 0"),
        ("paired 1 2 3 4.5", "'D'", "a whole number from 0"),
        ("paired 1 2 3", "'D'", "Usage:"),
        ("paired 1 2 3 4 --margin 2", "'--margin'", "above 0 and below 1"),
        ("paired 1 2 3 4 --margin nan", "'--margin'", "above 0 and below 1"),
        ("paired 1 2 3 4 --level 95", "'--level'", "from 0.01 up to 0.999999"),
        ("paired 1 2 3 4 --level .9999999999999999", "'--level'", "from 0.01 up to 0.999999"),
        ("paired 1 2 3 4 --level 1e-300", "'--level'", "from 0.01 up to 0.999999"),
        ("paired 1 2 3 4 --alpha 1e-300", "'--alpha'", "from 1e-09 and below 0.5"),
        ("size --margin .01 --power .8 --p-d .05 --alpha 1e-300", "'--alpha'", "from 1e-09"),
        ("paired 1 2 3 4 --alpha .5", "'--alpha'", "from 1e-09 and below 0.5"),
        ("size --margin .01 --power 1 --p-d .05", "'--power'", "above 0 and below 1"),
        ("size --margin .01 --power .8 --p-d 5", "'--p-d'", "from 0 up to 1"),
        ("adjust --method holm .1 nan", "'P...'", "from 0 up to 1"),
        ("adjust --method holm .1 -.2", "'P...'", "from 0 up to 1"),
        ("adjust --method sidak .1", "'--method'", "'holm', 'bh'"),
    ],
)
def test_bad_numbers_are_refused_by_name_with_what_is_accepted(args: str, named: str, remedy: str) -> None:
    result = cli("stats", *args.split())
    assert result.exit_code == 2
    assert named in result.stderr
    assert remedy in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ("paired 0 0 0 0", ["A, B, C and D", "give the counts"]),
        ("size --margin .01 --power .8 --p-d .05 --loss .02", ["--loss", "--margin"]),
        ("size --margin .01 --power .8 --p-d .05 --loss -.02 --equivalence", ["--loss", "--margin"]),
        ("size --margin .1 --power .8 --p-d .01 --loss .02", ["--loss", "--p-d"]),
        ("size --margin 1e-5 --power .8 --p-d .3", ["--margin", "10,000,000", "widen"]),
        ("adjust --method bh", ["P", "list them"]),
    ],
)
def test_what_cannot_be_computed_is_refused_with_its_remedy(args: str, named: list[str]) -> None:
    message = error_of(cli("stats", *args.split()), code=2)
    assert all(word in message for word in named), message


def test_adjusted_p_values_keep_the_order_of_the_raw_ones() -> None:
    adjusted = stats("adjust", "--method", "holm", 0.001, 0.002, 0.01, 0.2, 0.9)["adjusted"]
    assert all(a <= b for a, b in pairwise(adjusted))
