"""The calibration in small: error rates hold within their Monte-Carlo error, and a broken rule is caught."""

from dataclasses import replace
from pathlib import Path

import calibrate
import numpy as np
import pytest
from binary import others_row, size_row
from calibrate import SMALL, cells_of
from click.testing import CliRunner
from montecarlo import Cell, Claim, Rate, Row, Section, at_most, finished_cells
from repeats import random_items_row
from simulate import GPQA, GREEDY, GSM8K, Mechanism, ask, clustered_population, population, sample_clusters
from table import Provenance, failures, render

SEED = 20_240_229


@pytest.fixture(scope="module")
def results() -> list[tuple[Cell, Row]]:
    cells = cells_of(SMALL)
    rows = dict(finished_cells(cells, SMALL, seed=SEED, processes=1))
    return [(cell, rows[i]) for i, cell in enumerate(cells)]


def test_every_rate_that_must_hold_does(results: list[tuple[Cell, Row]]) -> None:
    broken = [(c.section.title, c.arguments, row.values, row.claims) for c, row in failures(results)]
    assert not broken
    assert sum(bool(row.claims) for _, row in results) >= 15


def test_rules_of_others_break_the_bounds_that_ours_keeps(results: list[tuple[Cell, Row]]) -> None:
    single = next(r for c, r in results if c.section.title.startswith("K = 1: the rules"))
    assert _rate(single, "t 97.5").lower > 0.15  # nominal .025
    assert _rate(single, "tolerance").lower > 0.5
    assert _rate(single, "unpaired z").lower > 0.9
    assert _rate(single, "ours").upper < 0.055
    repeated = next(r for c, r in results if c.section.title == "K > 1: hard cases")
    assert _rate(repeated, "pooled repeats").lower > 0.15


def test_an_engine_that_drops_resamples_without_spread_would_fail() -> None:
    """The claims can say no: judged by another rule's passes, the same row does not hold."""
    row = random_items_row(
        benchmark=GREEDY,
        repeats=8,
        mechanism=Mechanism.FEW,
        margin=0.01,
        losses=1.0,
        rng=np.random.default_rng(SEED),
        scale=SMALL,
        bound=0.07,
    )
    assert row.holds
    assert not at_most(_rate(row, "drops zero SE"), 0.07).holds
    assert not at_most(_rate(row, "percentile"), 0.07).holds


def test_bounds_reject_a_rate_clearly_above_them() -> None:
    assert at_most(Rate(hits=16, draws=200), 0.055).holds  # .08 of 200: not excluded
    assert not at_most(Rate(hits=160, draws=2_000), 0.055).holds
    assert Rate(hits=0, draws=100).standard_error > 0.0
    assert Rate(hits=5, draws=100).lower < 0.05 < Rate(hits=5, draws=100).upper


def test_t_on_paired_deltas_passes_what_exact_enumeration_says() -> None:
    """.2207 exactly at n = 100, m = .01, p_d = .02: zero discordance is taken for certainty."""
    row = others_row(margin=0.01, p_d=0.02, n=100, losses=1.0, rng=np.random.default_rng(SEED), scale=SMALL)
    rate = _rate(row, "t 97.5")
    assert rate.share == pytest.approx(0.2207, abs=3 * rate.standard_error)


def test_size_row_reproduces_the_published_worst_case() -> None:
    row = size_row(margin=0.02, n=133, rng=np.random.default_rng(0), scale=SMALL)
    assert row.values["worst over all p_d"] == pytest.approx(0.0681, abs=2e-4)
    assert row.holds


@pytest.mark.parametrize("mechanism", list(Mechanism))
@pytest.mark.parametrize("benchmark", [GPQA, GSM8K], ids=lambda b: b.name)
def test_populations_lose_exactly_what_they_should(benchmark, mechanism) -> None:  # type: ignore[no-untyped-def]
    items = population(benchmark, mechanism, 0.02)
    assert items.loss == pytest.approx(0.02, abs=1e-9)
    assert np.all((items.candidate >= 0.0) & (items.candidate <= 1.0))
    baseline, candidate = ask(items, 4, np.random.default_rng(SEED), n=200_000)
    assert baseline.mean() - candidate.mean() == pytest.approx(0.02, abs=0.003)
    p_d = np.mean(baseline[:, 0] != candidate[:, 0])
    assert p_d == pytest.approx(items.p_d, abs=0.005)
    spread = np.var(candidate.mean(axis=1) - baseline.mean(axis=1))
    assert spread == pytest.approx(items.variance_of_difference(4), rel=0.03)


def test_clusters_share_difficulty_and_lose_exactly_what_they_should() -> None:
    items = clustered_population(GPQA, 0.05, hit_clusters=0.3)
    assert items.loss == pytest.approx(0.05, abs=1e-9)
    baseline, candidate, labels = sample_clusters(items, 5_000, 1, np.random.default_rng(SEED))
    assert labels.size == baseline.shape[0] == candidate.shape[0]
    assert np.all(np.diff(labels) >= 0)
    assert np.unique(labels).size == 5_000
    assert baseline.mean() - candidate.mean() == pytest.approx(0.05, abs=0.02)


def test_an_impossible_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        population(GSM8K, Mechanism.FEW, 0.99)
    with pytest.raises(ValueError, match="more than"):
        population(GSM8K, Mechanism.HARD, 0.99)


def test_rows_do_not_depend_on_the_number_of_processes() -> None:
    cells = [c for c in cells_of(SMALL) if c.section.title == "K = 1: power"]
    alone = dict(finished_cells(cells, SMALL, seed=3, processes=1))
    assert alone == dict(finished_cells(cells, SMALL, seed=3, processes=2))


def test_the_page_names_what_does_not_hold(results: list[tuple[Cell, Row]]) -> None:
    cell, row = results[0]
    page = render(
        [(cell, replace(row, claims=(Claim(text="<= 0", holds=False),)))],
        Provenance(
            command="x", seed=1, date="2026-01-01", versions="", minutes=1.0, processes=1, scale=SMALL
        ),
    )
    assert "0 of 1 rows that must hold do. Not: " + cell.section.title in page
    assert "**no**" in page


def test_the_script_writes_a_page_and_fails_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Cell(section=Section(title="T", note="N"), function=_row_that, arguments={"holds": True})
    broken = Cell(section=held.section, function=_row_that, arguments={"holds": False})
    for cells, code in (([held], 0), ([held, broken], 1)):
        monkeypatch.setattr(calibrate, "cells_of", lambda _, cells=cells: cells)
        out = tmp_path / "page.md"
        outcome = CliRunner().invoke(calibrate.main, ["--small", "--processes", "1", "--out", str(out)])
        assert outcome.exit_code == code
        assert "| 1 | claim |" in out.read_text()
    assert Claim(text="claim", holds=False) in _row_that(rng=None, scale=None, holds=False).claims


def _row_that(*, rng: object, scale: object, holds: bool) -> Row:
    return Row(values={"x": 1}, claims=(Claim(text="claim", holds=holds),))


def _rate(row: Row, name: str) -> Rate:
    value = row.values[name]
    assert isinstance(value, Rate)
    return value
