"""What `equipoise run` and `equipoise report` write for readers: the page, its flips beside it, plots."""

import functools
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cli_runs import cli, error_of, plan_file, record_run

from equipoise.reports import html


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two tasks with repeated answers, in which more flips than the JSON report shows."""
    root = tmp_path_factory.mktemp("run")
    every = {"B": 4, "P": 2}
    arms = record_run(
        root / "recorded",
        {"copy": 150, "sort": 150},
        lambda arm, _, i: i % every[arm] != 1 if arm in every else True,
    )
    tasks = [{"name": t, "critical": True, "items": 150, "margin": 0.1} for t in ("copy", "sort")]
    cli("run", plan_file(root / "p.toml", arms, tasks), "--out", root / "out")
    return root / "out"


def flips_in(page: str) -> list[dict[str, object]]:
    found = re.search(r'(?s)id="flip-data">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


def test_a_run_leaves_a_page_with_every_flip_and_names_it_last(run: Path) -> None:
    result = cli("report", run, "--format", "json")
    (model,) = json.loads(result.stdout)["models"]
    page = (run / "report.html").read_text()
    assert len(flips_in(page)) == model["flips"]["lost"] + model["flips"]["gained"] == 76
    assert len(model["flips"]["shown"]) == 40
    assert not (run / "report-flips.jsonl").exists()


def test_the_page_is_the_same_whoever_makes_it_again(run: Path, tmp_path: Path) -> None:
    result = cli("report", run, "--format", "html", "--output", tmp_path / "again.html")
    assert result.exit_code == 1
    assert (tmp_path / "again.html").read_text() == (run / "report.html").read_text()
    assert cli("report", run, "--format", "html").stdout == (run / "report.html").read_text()


def test_flips_that_make_the_page_too_large_lie_beside_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(html, "page", functools.partial(html.page, flip_bytes=20_000))
        cli("report", run, "--format", "html", "--output", tmp_path / "r.html")
    beside = (tmp_path / "r-flips.jsonl").read_text().splitlines()
    inside = flips_in((tmp_path / "r.html").read_text())
    assert len(inside) + len(beside) == 76
    assert len({(f["task"], f["id"]) for f in [*inside, *map(json.loads, beside)]}) == 76
    cli("report", run, "--format", "html", "--output", tmp_path / "r.html")
    assert not (tmp_path / "r-flips.jsonl").exists()


def test_the_plot_is_written_as_svg_and_as_png(run: Path, tmp_path: Path) -> None:
    svg = cli("report", run, "--format", "svg")
    assert ET.fromstring(svg.stdout.encode()).tag.endswith("svg")
    assert "DEGRADED" in svg.stdout
    pytest.importorskip("resvg_py", reason="resvg-py is not installed")
    picture = cli("report", run, "--format", "png", "--output", tmp_path / "r.png")
    if "found no font" in picture.stderr:
        pytest.skip(picture.stderr)
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_is_not_printed_and_a_file_that_cannot_be_is_named(run: Path, tmp_path: Path) -> None:
    assert "--output FILE.png" in error_of(cli("report", run, "--format", "png"), code=2)
    place = tmp_path / "no" / "r.html"
    assert str(place) in error_of(cli("report", run, "--format", "html", "--output", place), code=2)


def test_a_comparison_has_a_page_that_never_says_signed_off(run: Path) -> None:
    result = cli("compare", f"{run}:A1", f"{run}:B", "--margin", "0.1", "--format", "html")
    assert '<h1 id="verdict-word">DEGRADED</h1>' in result.stdout
    assert "Not eligible for sign-off" in result.stdout
    assert "equipoise report RUN_DIR" not in result.stdout
