"""A plan may take its tasks from a suite and from files; what they say is part of what is registered."""

from pathlib import Path

import pytest

from equipoise.evals.errors import PlanError
from equipoise.evals.plan import GenerationSpec, Plan, load_plan

PLAN = """
schema_version = 1
name = "p"
{more}
[decision]
suite_margin = 0.05
[[models]]
name = "m"
path = "x"
[[arms]]
name = "A1"
role = "baseline"
url = "http://h:1"
[[arms]]
name = "B"
role = "candidate"
url = "http://h:2"
{tasks}
"""
SUITE = """
[[tasks]]
name = "copy"
items = 100
margin = 0.05
critical = true
[[tasks]]
name = "sort"
items = 50
margin = 0.1
"""
OWN = '[[tasks]]\nname = "sort"\nitems = 80\n[[tasks]]\nname = "addition"\nitems = 9\nmargin = 0.2\n'


def write(folder: Path, more: str = 'suite = "small"', tasks: str = "") -> Path:
    (folder / "suites").mkdir(exist_ok=True)
    (folder / "suites" / "small.toml").write_text(SUITE)
    path = folder / "p.toml"
    path.write_text(PLAN.format(more=more, tasks=tasks))
    return path


def load(path: Path) -> Plan:
    return load_plan(path, suites=path.parent / "suites")


def test_a_suite_gives_its_tasks_and_the_plan_has_the_last_word(tmp_path: Path) -> None:
    assert [(t.name, t.items) for t in load(write(tmp_path)).tasks] == [("copy", 100), ("sort", 50)]
    plan = load(write(tmp_path, tasks=OWN))
    assert [(t.name, t.items, t.margin) for t in plan.tasks] == [
        ("copy", 100, 0.05),
        ("sort", 80, 0.1),
        ("addition", 9, 0.2),
    ]


def test_a_changed_suite_is_another_plan(tmp_path: Path) -> None:
    path = write(tmp_path)
    before = load(path).content_hash
    (tmp_path / "suites" / "small.toml").write_text(SUITE.replace("items = 50", "items = 60"))
    assert load(path).content_hash != before


def test_an_unknown_suite_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"p\.toml: unknown suite 'smal'; did you mean 'small'\?"):
        load(write(tmp_path, more='suite = "smal"'))


def test_a_task_file_is_pinned_by_its_content(tmp_path: Path) -> None:
    tasks = '[[tasks]]\nname = "mine"\nitems = 1\nmargin = 0.1\ncritical = true\nfile = "mine.toml"\n'
    path = write(tmp_path, more="", tasks=tasks)
    with pytest.raises(PlanError, match=r"task 'mine': cannot read .*mine\.toml"):
        load(path)
    (tmp_path / "mine.toml").write_text("a")
    first = load(path)
    assert first.tasks[0].file == str(tmp_path / "mine.toml")
    (tmp_path / "mine.toml").write_text("b")
    assert load(path).content_hash != first.content_hash
    path.write_text(path.read_text() + f'file_sha256 = "{first.tasks[0].file_sha256}"\n')
    with pytest.raises(PlanError, match="not file_sha256"):
        load(path)


def test_a_tasks_generation_is_laid_over_the_plans(tmp_path: Path) -> None:
    more = '[generation]\nthinking = "on"\ntop_k = 20\ntemplate_kwargs = {a = 1}'
    tasks = OWN.replace("items = 80", "items = 80\nmargin = 0.1\ncritical = true\ntemperature = 0.6") + (
        '[tasks.generation]\nthinking = "off"\nmax_new_tokens = 9\ntemplate_kwargs = {b = true}\n'
    )
    plan = load(write(tmp_path, more=more, tasks=tasks))
    assert plan.generation_of(plan.tasks[0]) == GenerationSpec(
        thinking="on", top_k=20, template_kwargs={"a": 1}, temperature=0.6
    )
    assert plan.generation_of(plan.tasks[1]) == GenerationSpec(
        thinking="off", top_k=20, template_kwargs={"a": 1, "b": True}, max_new_tokens=9
    )
