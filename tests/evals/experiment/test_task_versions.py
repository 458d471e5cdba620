"""How a task asks and grades is registered with the plan; another version later is refused, or told."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runs import cli, plan_file, record_run

from equipoise.evals.errors import JournalError
from equipoise.evals.experiment.questions import Question, questions_of
from equipoise.evals.experiment.registration import registered_journal
from equipoise.evals.experiment.results import plan_of, report_of
from equipoise.evals.journal import Journal
from equipoise.evals.ledger import Ledger
from equipoise.evals.plan import load_plan
from equipoise.tasks.copy import Copy


class Regraded(Copy):
    """The same items under another version."""

    @property
    def version(self) -> str:
        return "2"


def regraded(questions: Sequence[Question]) -> list[Question]:
    return [replace(q, task=Regraded()) for q in questions]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of the task copy."""
    monkeypatch.chdir(tmp_path)
    arms = record_run(tmp_path / "recorded", {"copy": 40}, lambda arm, task, i: i % 4 > 0)
    tasks = [{"name": "copy", "critical": True, "items": 40, "margin": 0.2}]
    plan = plan_file(tmp_path / "p.toml", arms, tasks)
    cli("run", plan, "--out", "out")
    return tmp_path / "out"


def test_a_report_tells_of_graders_that_are_not_the_registered_ones(run: Path) -> None:
    with Journal.read(run / "journal.sqlite") as journal:
        plan = plan_of(journal)
        questions = questions_of(plan)
        before = report_of(journal, plan, questions, run_id="r").run.limits
        after = report_of(journal, plan, regraded(questions), run_id="r").run.limits
    assert set(after) - set(before) == {"task copy was registered at version 1 and is graded at version 2"}


def test_a_run_is_not_resumed_with_another_version_of_a_task(run: Path, tmp_path: Path) -> None:
    plan = load_plan(tmp_path / "p.toml")
    questions = questions_of(plan)
    path, ledger = run / "journal.sqlite", Ledger(tmp_path / "ledger.jsonl")
    registered_journal(path, plan, questions, resume=True, command="", ledger=ledger).close()
    with pytest.raises(JournalError, match=r"task copy was registered at version 1 .* start a new run"):
        registered_journal(path, plan, regraded(questions), resume=True, command="", ledger=ledger)
    registered_journal(path, plan, questions, resume=True, command="", ledger=ledger).close()  # not held
