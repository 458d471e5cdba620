"""Many runs side by side: by model and time, the broken and the lost among them, and nothing pooled."""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from cli_runs import cli, error_of
from signoffs import make_run

WRONG: dict[str, dict[str, float]] = {"first": {}, "second": {"B": 0.6}, "third": {"P": 0.1}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three runs of different verdicts, each registered in the one ledger beside them."""
    root = tmp_path_factory.mktemp("history")
    for name, wrong in WRONG.items():
        where = root / f"of-{name}"
        make_run(where, wrong=wrong)
    runs = root / "runs"
    runs.mkdir()
    for name in WRONG:
        cli("run", root / f"of-{name}" / "plan.toml", "--out", runs / name)
    return runs


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs", symlinks=True))


def told(*args: str | Path) -> Any:
    result = cli("history", *args, "--format", "json")
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_runs_of_a_model_are_listed_by_time_with_the_numbers_of_their_reports(runs: Path) -> None:
    (model,) = told(runs)["models"]
    assert model["model"] == "m"
    assert [(r["run"], r["verdict"]) for r in model["runs"]] == [
        ("first", "SIGNED OFF"), ("second", "DEGRADED"), ("third", "INVALID"),
    ]  # fmt: skip
    for past in model["runs"]:
        report = json.loads((runs / past["run"] / "report.json").read_text())
        assert past["pooled"] == report["models"][0]["pooled"]
        assert past["plan_hash"] == report["run"]["plan_hash"]
        assert (past["attempt"], past["max_attempts"], past["notes"]) == (1, 1, [])


def test_runs_and_reports_may_be_named_one_by_one(runs: Path) -> None:
    told_once = told(runs / "first", runs / "first" / "report.json", runs / "first")
    assert [r["run"] for r in told_once["models"][0]["runs"]] == ["first", "first", "second", "third"]
    assert [bool(r["pooled"]) for r in told_once["models"][0]["runs"]] == [True, True, False, False]


def test_every_model_has_a_history_of_its_own(runs: Path, tmp_path: Path) -> None:
    data = json.loads((runs / "first" / "report.json").read_text())
    data["models"][0]["name"] = "other"
    renamed = tmp_path / "report.json"
    renamed.write_text(json.dumps(data))
    assert [m["model"] for m in told(runs, renamed)["models"]] == ["m", "other"]


def test_broken_and_empty_places_are_listed_with_the_reason(runs: Path, tmp_path: Path) -> None:
    (runs / "first" / "report.json").write_text("{")
    (runs / "no-journal").mkdir()
    (runs / "no-journal" / "journal.sqlite").write_text("x")
    (tmp_path / "empty").mkdir()
    found = told(runs, tmp_path / "empty")
    reasons = {Path(u["path"]).name: u["reason"] for u in found["unread"]}
    assert "is not JSON" in reasons["first"]
    assert "damaged or not a journal" in reasons["no-journal"]
    assert reasons["empty"] == "no run in it"
    assert [r["run"] for r in found["models"][0]["runs"]] == ["second", "third"]
    text = cli("history", runs).stdout
    assert "Not read" in text
    assert "no-journal" in text


def test_an_unfinished_run_is_listed_without_a_verdict(runs: Path) -> None:
    (runs / "first" / "report.json").unlink()
    db = sqlite3.connect(runs / "first" / "journal.sqlite", isolation_level=None)
    db.execute("DELETE FROM samples WHERE item_id = 'copy-1-00003'")
    db.close()
    first = told(runs)["models"][0]["runs"][0]
    assert (first["run"], first["verdict"], first["pooled"]) == ("first", None, None)
    assert first["notes"][0].startswith("incomplete: the run is not finished")


def test_an_attempt_whose_run_is_gone_is_not_forgotten(runs: Path) -> None:
    shutil.rmtree(runs / "second")
    past = told(runs)["models"][0]["runs"]
    assert [(r["run"], r["verdict"], r["pooled"] is None) for r in past] == [
        ("first", "SIGNED OFF", False), ("second", "DEGRADED", True), ("third", "INVALID", False),
    ]  # fmt: skip
    assert past[1]["notes"] == ["in the ledger, and its run directory is not among these"]


def test_a_report_that_the_ledger_tells_otherwise_is_noted(runs: Path) -> None:
    data = json.loads((runs / "second" / "report.json").read_text())
    good = json.loads((runs / "first" / "report.json").read_text())
    data["models"], data["run"] = (
        good["models"],
        good["run"] | {key: data["run"][key] for key in ("run_id", "plan_hash", "attempts")},
    )
    (runs / "second" / "report.json").write_text(json.dumps(data))
    assert told(runs)["models"][0]["runs"][1]["notes"] == ["the ledger says DEGRADED, this report SIGNED OFF"]
    again = told(runs, "--recompute")["models"][0]["runs"][1]
    assert (again["verdict"], again["notes"]) == ("DEGRADED", [])


def test_a_report_of_another_run_than_its_journal_is_refused(runs: Path) -> None:
    shutil.copy(runs / "first" / "report.json", runs / "second" / "report.json")
    (broken,) = told(runs)["unread"]
    assert "is of another plan than the journal beside it" in broken["reason"]


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_it_says_that_nothing_is_pooled_and_shows_every_run(runs: Path, form: str) -> None:
    text = cli("history", runs, "--format", form).stdout
    flat = " ".join(text.replace("\\", "").split())
    assert "Nothing is pooled over runs and no trend is tested" in flat
    for name in WRONG:
        assert len([line for line in text.splitlines() if name in line]) >= 2  # in the table and the plot


def test_output_goes_to_a_file(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "h.md"
    assert cli("history", runs, "--format", "markdown", "--output", out).exit_code == 0
    assert out.read_text() == cli("history", runs, "--format", "markdown").stdout
    missing = cli("history", runs, "--output", tmp_path / "no" / "h.md")
    assert "cannot be written" in error_of(missing, code=2)


def test_no_run_at_all_is_a_usage_error(tmp_path: Path) -> None:
    assert "no such file" in error_of(cli("history", tmp_path / "x"), code=2)
    assert "no run in" in error_of(cli("history", tmp_path), code=2)
