"""``equipoise tasks``: what can be asked is listed, shown and held against its own data."""

import json
import os
from pathlib import Path

import pytest
from cli_runs import cli, error_of

from equipoise.tasks.card import Carded
from equipoise.tasks.registry import TASKS

ROWS = '{"q": "1 + 1?", "a": "2"}\n{"q": "2 + 2?", "a": "4"}\n'
TASK = 'data = "rows.jsonl"\nprompt = "{q}"\ntarget = "{a}"\nlicence = "CC0"\n'


@pytest.fixture(autouse=True)
def _data_dir_ends_with_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", os.environ.get("EQUIPOISE_DATA", ""))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    path = tmp_path / "sums.toml"
    path.write_text(TASK)
    return path


def test_every_shipped_task_is_listed_with_its_card() -> None:
    rows = json.loads(cli("tasks", "list", "--json").stdout)
    assert [r["name"] for r in rows] == list(TASKS)
    for name, task in TASKS.items():
        assert isinstance(task, Carded), name
        assert task.card.licence and task.card.title and task.card.group, name


def test_a_task_is_shown_with_an_item_as_it_is_asked(own: Path) -> None:
    shown = json.loads(cli("tasks", "show", own, "--json").stdout)
    assert (shown["licence"], shown["items"], shown["example"]["user"]) == ("CC0", 2, "2 + 2?")
    assert "sums-0000" in cli("tasks", "show", own).stdout
    assert "24 to 56" not in cli("tasks", "show", "copy").stdout


def test_a_task_without_its_data_says_how_to_get_it(tmp_path: Path) -> None:
    shown = cli("tasks", "show", "arc_easy", "--data-dir", tmp_path).stdout.replace("\n", "")
    assert "arc_easy.jsonl" in shown and "EQUIPOISE_DATA" in shown
    message = error_of(cli("tasks", "validate", "arc_easy", "--data-dir", tmp_path), code=2)
    assert "arc_easy.jsonl" in message


def test_what_log_likelihood_can_say_of_a_cache_is_said_with_the_task(tmp_path: Path) -> None:
    def warning(name: str) -> str:
        return str(json.loads(cli("tasks", "show", name, "--json", "--data-dir", tmp_path).stdout)["warning"])

    assert "says nothing of an FP8 cache" in warning("arc_challenge")
    assert "says nothing of an FP8 cache" in warning("logprob_text")
    assert warning("gsm8k") == ""


def test_validation_counts_items_and_answers(own: Path) -> None:
    found = json.loads(cli("tasks", "validate", own, "copy", "--json").stdout)
    sums, copy = found["tasks"][1], found["tasks"][0]
    if copy["task"] != "copy":
        sums, copy = copy, sums
    assert (sums["items"], sums["right"], sums["wrong"], sums["ok"]) == (2, 2, 2, True)
    assert (copy["items"], copy["right"], copy["ok"]) == (200, 200, True)


def test_a_grader_that_takes_anything_fails_validation(own: Path) -> None:
    own.write_text(TASK + 'grader = "regex"\npattern = "x"\n')
    result = cli("tasks", "validate", own)
    assert result.exit_code == 1
    assert "a right answer scored 0.0: the pattern matches nothing" in result.stdout


def test_an_unknown_task_names_the_nearest_and_a_lost_file_is_named() -> None:
    assert "did you mean 'copy'?" in error_of(cli("tasks", "show", "cpoy"), code=2)
    assert "gone.toml: no such file" in error_of(cli("tasks", "validate", "gone.toml"), code=2)
    assert "say --all" in error_of(cli("tasks", "validate"), code=2)


def test_a_data_directory_that_is_not_there_is_refused() -> None:
    result = cli("tasks", "show", "copy", "--data-dir", "nowhere")
    assert result.exit_code == 2
    assert "nowhere is not a directory" in result.stderr
