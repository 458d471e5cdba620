"""A task of one's own: rows and a few lines of TOML, or Python where it is allowed; every slip is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise.evals.errors import PlanError, UsageError
from equipoise.evals.experiment.task_source import task_of
from equipoise.evals.plan import TaskSpec
from equipoise.tasks.graders.pattern import PatternGrader
from equipoise.tasks.user_task import fill, load_toml_task
from equipoise.tasks.validate import validate_task

ROWS = [{"q": f"{a} + {a}?", "a": {"sum": a + a}, "page": a // 2, "kind": "even"} for a in range(6)]
LINES = """
data = "rows.jsonl"
prompt = "{q} Number only."
target = "{a.sum}"
cluster = "page"
strata = ["kind"]
"""


def task_file(folder: Path, lines: str = LINES, rows: Any = ROWS) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    path = folder / "sums.toml"
    path.write_text(lines)
    return path


def test_rows_become_items_with_prompt_target_cluster_and_strata(tmp_path: Path) -> None:
    task = load_toml_task(task_file(tmp_path), name="sums")
    items = {i.id: i for i in task.items(6, 1)}
    three = items["sums-00003"]
    assert (three.inputs["prompt"], three.target) == ("3 + 3? Number only.", "6")
    assert (three.cluster_id, three.strata) == ("1", {"kind": "even"})
    found = validate_task(task)
    assert (found.items, found.right, found.wrong, found.ok) == (6, 6, 6, True)


def test_rows_that_ask_the_same_are_one_cluster(tmp_path: Path) -> None:
    lines = LINES.replace('cluster = "page"\n', "")
    items = load_toml_task(task_file(tmp_path, lines, [*ROWS, ROWS[0]]), name="sums").items(7, 1)
    assert len({i.cluster_id for i in items}) == len({i.inputs["prompt"] for i in items}) == 6


def test_a_changed_row_changes_the_version(tmp_path: Path) -> None:
    first = load_toml_task(task_file(tmp_path), name="sums").version
    changed = load_toml_task(task_file(tmp_path, rows=ROWS[1:]), name="sums").version
    assert first != changed


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (LINES + "promt = 'x'\n", "promt: Extra inputs"),
        (LINES.replace("target", "# "), "target: Field required"),
        (LINES + "grader = 'exactly'\n", "no grader 'exactly'; there are exact, contains"),
        (LINES + "grader = 'regex'\n", "pattern goes with grader"),
        (LINES + "grader = 'regex'\npattern = '('\n", "is not a regular expression"),
        (LINES.replace("rows.jsonl", "gone.jsonl"), "gone.jsonl is not a file"),
        ("data =", "not valid TOML"),
        (f"data = {'[' * 100_000}", "not valid TOML"),
        (LINES.replace("{q}", "{ q }"), "prompt names no field"),
    ],
)
def test_a_slip_in_the_file_is_named(tmp_path: Path, lines: str, says: str) -> None:
    with pytest.raises(UsageError, match="task 'sums'") as caught:
        load_toml_task(task_file(tmp_path, lines), name="sums")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"q": None, "a": {"sum": 1}}, "its field 'q' is null"),
        ({"q": "x", "a": {"sum": float("nan")}}, "its field 'a.sum' is NaN"),
        ({"q": "x", "a": {"sum": " "}}, "its target is empty"),
        ({"q": "x", "a": {"sum": "\ud800"}}, "surrogates not allowed"),
    ],
)
def test_a_row_that_cannot_be_asked_or_graded_is_named(tmp_path: Path, row: Any, says: str) -> None:
    rows = [*ROWS, {"page": 1, "kind": "odd", **row}]
    with pytest.raises(UsageError, match="sums row 6 is malformed") as caught:
        load_toml_task(task_file(tmp_path, LINES + "grader = 'contains'\n", rows), name="sums").items(7, 1)
    assert says in str(caught.value)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = task_file(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(load_toml_task(path, name="sums").items(6, 1)) == 6


def test_a_row_without_a_field_is_named_with_its_number(tmp_path: Path) -> None:
    rows = [*ROWS, {"q": "x", "a": {}, "page": 1, "kind": "odd"}]
    with pytest.raises(UsageError, match=r"sums row 6 has no field 'a\.sum'"):
        load_toml_task(task_file(tmp_path, rows=rows), name="sums").items(7, 1)


@pytest.mark.parametrize(
    ("grader", "says"), [("number", "is not a number"), ("choice", "none of the options")]
)
def test_a_target_that_the_grader_cannot_use_is_named_with_its_row(
    tmp_path: Path, grader: str, says: str
) -> None:
    rows = [{"q": "x", "a": {"sum": "about ten"}, "page": 1, "kind": "odd"}]
    task = load_toml_task(task_file(tmp_path, LINES + f"grader = '{grader}'\n", rows=rows), name="sums")
    with pytest.raises(UsageError, match=f"sums row 0 is malformed.*{says}"):
        task.items(1, 1)


def test_templates_fill_fields_and_execute_nothing() -> None:
    row = {"x": "{y}", "y": "{x.__class__}", "n": 1.5}
    assert fill("{{x}} {x} {y} {n}", row) == "{x} {y} {x.__class__} 1.5"
    with pytest.raises(KeyError):
        fill("{x.__class__}", row)


@pytest.mark.parametrize(
    ("pattern", "answer", "found", "value"),
    [
        (r"Answer: (\w+)", "Answer: a\nAnswer: b", "b", 1.0),
        (r"\d+", "there are 7", "7", 0.0),
        (r"Answer: (\w+)", "none", None, 0.0),
        (r"(a+)+$", "a" * 4000 + "!", None, 0.0),
    ],
)
def test_patterns_take_the_last_match_in_bounded_time(
    pattern: str, answer: str, found: str | None, value: float
) -> None:
    grade = PatternGrader(pattern)(answer, "b")
    assert (grade.extracted, grade.value) == (found, value)


def spec(path: Path, **more: Any) -> TaskSpec:
    return TaskSpec(name="mine", items=2, margin=0.1, file=str(path), **more)


PYTHON = """
from equipoise.tasks.copy import Copy

class Mine(Copy):
    @property
    def name(self):
        return "mine"

TASK = Mine()
"""


def test_python_runs_only_where_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PYTHON)
    monkeypatch.delenv("EQUIPOISE_TASK_CODE", raising=False)
    with pytest.raises(PlanError, match=r"task 'mine' is Python code .* EQUIPOISE_TASK_CODE=allow"):
        task_of(spec(path))
    monkeypatch.setenv("EQUIPOISE_TASK_CODE", "allow")
    assert task_of(spec(path)).name == "mine"
    path.write_text("TASK = 1")
    with pytest.raises(PlanError, match="must define TASK with name, version"):
        task_of(spec(path))
    path.write_text("1 / 0")
    with pytest.raises(PlanError, match="failed: ZeroDivisionError"):
        task_of(spec(path))


def test_a_file_that_changed_since_registration_is_refused(tmp_path: Path) -> None:
    path = task_file(tmp_path)
    with pytest.raises(PlanError, match="is not the registered file"):
        task_of(spec(path, file_sha256="0" * 64))


@pytest.mark.parametrize(
    ("options", "says"),
    [({"min_pairs": 2}, "has no option 'min_pairs'; it has none"), ({}, None)],
)
def test_options_that_a_task_does_not_have_are_refused(options: dict[str, Any], says: str | None) -> None:
    entry = TaskSpec(name="copy", items=2, margin=0.1, options=options)
    if says is None:
        assert task_of(entry).name == "copy"
        return
    with pytest.raises(PlanError, match=says):
        task_of(entry)
