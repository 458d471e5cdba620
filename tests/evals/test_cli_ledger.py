"""Attempts from end to end: counted, bounded, on record before the first question, and told."""

import json
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cli_runs import cli, error_of, plan_file, record_run, rows, start_cli, url_arms, wait_for_rows
from click.testing import Result
from fake_sglang import FakeSglang, serving, share

from equipoise.evals.ledger import Ledger
from equipoise.evals.plan import load_plan
from equipoise.reports import json as json_report
from equipoise.reports.model import Report

MARGIN = 0.1


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("EQUIPOISE_LEDGER", raising=False)


class Watched(FakeSglang):
    """Calls ``watch`` with the path of every request that arrives, before it is answered."""

    watch: Callable[[str], None] = staticmethod(lambda path: None)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.watch(request.path)
        return await super().answer(request)


class Asked:
    """Endpoints that answer alike beside a control that does not; asked with more or fewer items."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.baseline = Watched(wrong=share(0.1))
        self.candidate = Watched(wrong=share(0.1), kv_cache_dtype="fp8_e4m3")
        self.control = Watched(wrong=share(0.9))

    def plan(self, name: str, items: int, **sections: Any) -> Path:
        arms = url_arms(A1=self.baseline.url, A2=self.baseline.url, B=self.candidate.url, P=self.control.url)
        tasks = [{"name": "copy", "critical": True, "items": items, "margin": MARGIN}]
        return plan_file(self.tmp_path / f"{name}.toml", arms, tasks, **sections)

    def run(self, name: str, items: int, *args: str, **sections: Any) -> Result:
        return cli("run", self.plan(name, items, **sections), "--out", name, *args)


@pytest.fixture
def asked(tmp_path: Path) -> Any:
    found = Asked(tmp_path)
    with serving(found.baseline, found.candidate, found.control):
        yield found


def reported(directory: str) -> Report:
    return json_report.load((Path(directory) / "report.json").read_text())


def ledger_rows(*args: str) -> list[dict[str, Any]]:
    return list(json.loads(cli("ledger", "show", "ledger.jsonl", "--json", *args).stdout))


FEW, ENOUGH = 12, 100


def test_trying_again_until_it_passes_does_not_sign_off(asked: Asked) -> None:
    first = asked.run("one", FEW)
    assert (first.exit_code, reported("one").run.verdict) == (3, "INCONCLUSIVE")
    assert "warning" not in first.stderr
    assert "attempt 1 of 1 at this candidate" in first.stdout
    assert "Attempts at this candidate" not in first.stdout  # one line is enough for the first

    asked.candidate.asked.clear()
    again = asked.run("two", ENOUGH, seeds={"items": 7})  # another plan, the same candidate
    run = reported("two").run
    assert (again.exit_code, run.verdict, run.indistinguishable) == (3, "INCONCLUSIVE", False)
    (row,) = reported("two").models[0].tasks
    assert row.verdict == "EQUIVALENT"  # the tests themselves passed
    said = (
        "attempt 2 of 1 registered: the chance that a bad release is signed off in any of them is up to 10%"
    )
    assert run.reasons[0].startswith(f"m: {said}")
    assert "max_attempts = 3" in run.would_decide[-1]
    assert f"warning: m: {said}" in again.stderr
    assert "max_attempts = 2 before the next run" in again.stderr  # while it can still be stopped
    assert [(a.run_id, a.number, a.outcome, a.current) for a in run.attempts] == [
        ("one", 1, "INCONCLUSIVE", False),
        ("two", 2, "INCONCLUSIVE", True),
    ]
    assert (run.max_attempts, run.attempts_bound) == (1, 0.1)
    assert "Attempts at this candidate" in again.stdout
    assert "Attempts at this candidate" in Path("two/report.md").read_text()

    allowed = asked.run("three", 2 * ENOUGH, decision={"max_attempts": 3})
    run = reported("three").run
    assert (allowed.exit_code, run.verdict) == (0, "SIGNED OFF")
    assert run.alpha == 0.05 / 3
    assert run.attempts_bound == pytest.approx(0.05 + 0.05 + 0.05 / 3)
    assert "Attempt 3 of 3 at this candidate" in allowed.stdout

    # That decided it: one more run repeats an answer that was given.
    assert asked.run("four", ENOUGH, "--ledger", "ledger.jsonl").exit_code == 3
    outcomes = [r["outcome"] for r in ledger_rows()]
    assert outcomes == ["INCONCLUSIVE", "INCONCLUSIVE", "SIGNED OFF", "INCONCLUSIVE"]


def test_a_second_attempt_that_the_plan_allowed_signs_off_at_half_the_alpha(asked: Asked) -> None:
    asked.run("one", FEW)
    assert asked.run("two", 2 * ENOUGH, decision={"max_attempts": 2}).exit_code == 0
    run = reported("two").run
    (row,) = reported("two").models[0].tasks
    assert row.interval is not None
    assert (run.alpha, row.interval.level) == (0.025, pytest.approx(0.95))


def test_a_sign_off_may_be_repeated(asked: Asked) -> None:
    assert [asked.run(name, ENOUGH).exit_code for name in ("one", "two")] == [0, 0]
    assert [a.number for a in reported("two").run.attempts] == [None, 1]
    assert reported("two").run.attempts_bound == 0.05


@pytest.mark.parametrize(("server", "dtype"), [("candidate", "fp8_e5m2"), ("baseline", "bfloat16")])
def test_another_candidate_or_baseline_has_its_own_count(asked: Asked, server: str, dtype: str) -> None:
    asked.run("one", FEW)
    getattr(asked, server).info["kv_cache_dtype"] = dtype
    assert asked.run("two", ENOUGH).exit_code == 0
    assert [a.number for a in reported("two").run.attempts] == [1]


def test_what_does_not_make_a_candidate_does_not_reset_the_count(asked: Asked) -> None:
    asked.run("one", FEW)
    for server in (asked.baseline, asked.candidate, asked.control):
        server.info |= {
            "port": 31000,
            "log_level": "debug",
            "model_path": "/elsewhere/m",
            "api_key": "s3cret",
        }
    assert asked.run("two", ENOUGH).exit_code == 3
    assert len(reported("two").run.attempts) == 2
    for kept in (Path("ledger.jsonl").read_bytes(), Path("two/journal.sqlite").read_bytes()):
        assert b"s3cret" not in kept
    assert b"/elsewhere" not in Path("ledger.jsonl").read_bytes()


def test_a_worse_candidate_stays_degraded_whatever_its_attempt(asked: Asked) -> None:
    asked.run("one", FEW)
    asked.candidate.wrong = share(0.6)
    assert asked.run("two", ENOUGH).exit_code == 1
    assert reported("two").run.verdict == "DEGRADED"


# -- what is one attempt -----------------------------------------------------------------------


def test_a_run_interrupted_and_resumed_is_one_attempt(asked: Asked) -> None:
    asked.candidate.delay_s = 0.05
    plan = asked.plan("p", ENOUGH, runner={"concurrency": 2})
    process = start_cli("run", plan, "--out", "cut")
    wait_for_rows(process, Path("cut"), 20)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    process.communicate()
    (left,) = ledger_rows()
    assert (left["outcome"], left["run"]) == ("unfinished", "cut")

    # Abandoned with answers, it counts for whoever comes next.
    asked.candidate.delay_s = 0.0
    assert asked.run("other", ENOUGH).exit_code == 3
    assert [a.outcome for a in reported("other").run.attempts] == ["unfinished", "INCONCLUSIVE"]

    # Resumed, it is still the first.
    assert cli("run", plan, "--out", "cut", "--resume").exit_code == 0
    assert [(r["run"], r["outcome"]) for r in ledger_rows()] == [
        ("cut", "SIGNED OFF"),
        ("other", "INCONCLUSIVE"),
    ]
    before = Path("ledger.jsonl").read_bytes()
    assert cli("run", plan, "--out", "cut", "--resume").exit_code == 0
    assert cli("report", "cut").exit_code == 0
    assert Path("ledger.jsonl").read_bytes() == before


def test_report_repeats_the_verdict_whatever_became_of_the_ledger(asked: Asked) -> None:
    asked.run("one", FEW)
    run = asked.run("two", ENOUGH)
    stored = Path("two/report.json").read_text()
    for change in (lambda: asked.run("three", ENOUGH), lambda: Path("ledger.jsonl").unlink()):
        change()
        again = cli("report", "two", "--format", "json")
        assert (again.exit_code, again.stdout) == (run.exit_code, stored)
    assert not Path("ledger.jsonl").exists()


def test_a_run_that_could_not_ask_anything_is_no_attempt(asked: Asked) -> None:
    asked.control.status = 404
    assert asked.run("one", ENOUGH).exit_code == 4
    assert not Path("ledger.jsonl").exists()
    asked.control.status = 200

    class Failing(web.HTTPNotFound):
        pass

    answer = asked.candidate._chat
    asked.candidate._chat = lambda body: (_ for _ in ()).throw(Failing())  # type: ignore[method-assign]
    plan = asked.plan("p", ENOUGH, runner={"max_attempts": 1, "concurrency": 2})
    baseline = asked.baseline._chat
    asked.baseline._chat = asked.control._chat = asked.candidate._chat  # type: ignore[method-assign]
    assert cli("run", plan, "--out", "two").exit_code == 4
    assert [r["outcome"] for r in ledger_rows()] == ["withdrawn"]

    asked.candidate._chat, asked.baseline._chat = answer, baseline  # type: ignore[method-assign]
    del asked.control._chat
    assert cli("run", plan, "--out", "two", "--resume").exit_code == 0
    assert [r["outcome"] for r in ledger_rows()] == ["withdrawn", "SIGNED OFF"]
    assert [a.number for a in reported("two").run.attempts] == [1]


def test_a_resumed_run_that_serves_another_candidate_is_refused(asked: Asked) -> None:
    asked.candidate.delay_s = 0.05
    plan = asked.plan("p", ENOUGH, runner={"concurrency": 2})
    process = start_cli("run", plan, "--out", "cut")
    wait_for_rows(process, Path("cut"), 20)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    before, kept = rows(Path("cut")), Path("ledger.jsonl").read_bytes()
    asked.candidate.delay_s = 0.0
    asked.candidate.info["kv_cache_dtype"] = "fp8_e5m2"
    message = error_of(cli("run", plan, "--out", "cut", "--resume"), code=4)
    assert "model 'm': the candidate is not the one that this run registered" in message
    asked.candidate.info["kv_cache_dtype"] = "fp8_e4m3"
    message = error_of(cli("run", plan, "--out", "cut", "--resume", "--ledger", "fresh.jsonl"), code=4)
    assert "is not in this ledger" in message
    assert (rows(Path("cut")), Path("ledger.jsonl").read_bytes()) == (before, kept)


def test_a_replay_is_another_look_at_what_was_recorded(asked: Asked, tmp_path: Path) -> None:
    asked.run("one", FEW)
    arms = [
        {"name": name, "role": role, "replay": str(tmp_path / "one")}
        for name, role in (
            ("A1", "baseline"),
            ("A2", "baseline_repeat"),
            ("B", "candidate"),
            ("P", "gross_control"),
        )
    ]
    tasks = [{"name": "copy", "critical": True, "items": FEW, "margin": 0.4}]  # a margin that it meets
    plan = plan_file(tmp_path / "again.toml", arms, tasks, decision={"suite_margin": 0.4})
    result = cli("run", plan, "--out", "again")
    assert [a.run_id for a in reported("again").run.attempts] == ["one", "again"]
    assert result.exit_code != 0
    assert "warning: m: attempt 2 of 1 registered" in result.stderr


def test_recordings_of_unknown_origin_are_told_apart_by_their_answers(tmp_path: Path) -> None:
    tasks = [{"name": "copy", "critical": True, "items": ENOUGH, "margin": MARGIN}]

    def attempt(recorded: str, out: str, wrong: Callable[[str, str, int], bool]) -> int:
        arms = record_run(tmp_path / recorded, {"copy": ENOUGH}, wrong)
        cli("run", plan_file(tmp_path / f"{out}.toml", arms, tasks), "--out", out)
        return len(reported(out).run.attempts)

    def right(arm: str, task: str, index: int) -> bool:
        return arm != "P" or index % 2 == 0

    assert attempt("r1", "one", right) == 1
    assert attempt("r2", "two", right) == 2  # recorded again, the same answers
    assert attempt("r3", "three", lambda arm, task, i: right(arm, task, i) and (arm, i) != ("B", 3)) == 1


# -- before the first question -----------------------------------------------------------------


def test_plan_and_attempt_are_on_disk_before_the_first_question_leaves(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = asked.plan("p", FEW)
    expected = load_plan(plan).content_hash
    seen: list[tuple[str, bool, list[str]]] = []

    def watch(path: str) -> None:
        db = sqlite3.connect("file:out/journal.sqlite?mode=ro", uri=True)
        (stored,) = db.execute("SELECT value FROM meta WHERE name = 'plan_hash'").fetchone()
        db.close()
        known = [a.registration.plan_hash for a in Ledger(Path("ledger.jsonl")).attempts()]
        seen.append((path, stored == expected, known))

    monkeypatch.setattr(Watched, "watch", staticmethod(watch))
    cli("run", plan, "--out", "out")
    assert len(seen) > 4 * FEW
    assert all(registered for _, registered, _ in seen)
    questions = [known for path, _, known in seen if path == "/v1/chat/completions"]
    assert len(questions) == 4 * FEW
    assert all(known == [expected] for known in questions)


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return change


CHANGES = {
    "decision.suite_margin: registered 0.05, now 0.08": replaced(
        "suite_margin = 0.05", "suite_margin = 0.08"
    ),
    "decision.alpha: registered 0.05, now 0.1": replaced("[decision]", "[decision]\nalpha = 0.1"),
    "decision.max_attempts: registered 1, now 2": replaced("[decision]", "[decision]\nmax_attempts = 2"),
    "seeds.items: registered 1, now 2": replaced("[decision]", "[seeds]\nitems = 2\n[decision]"),
    "tasks.copy.margin: registered 0.1, now 0.2": replaced("margin = 0.1\n", "margin = 0.2\n"),
    "tasks.copy.items: registered 8, now 9": lambda text: text.replace("items = 8", "items = 9", 1),
    "tasks.brackets.critical: registered true, now false": replaced(
        'name = "brackets"\ncritical = true', 'name = "brackets"\ncritical = false'
    ),
    "tasks.sort: registered absent, now present": lambda text: (
        text + '\n[[tasks]]\nname = "sort"\nitems = 8\nmargin = 0.1\n'
    ),
}


@pytest.mark.parametrize("resume", [["--resume"], []], ids=["resumed", "run into"])
@pytest.mark.parametrize("what", CHANGES)
def test_what_was_registered_cannot_be_changed_after_data_exist(
    finished: Path, what: str, resume: list[str]
) -> None:
    before = (rows(Path("done")), Path("ledger.jsonl").read_bytes())
    finished.write_text(CHANGES[what](finished.read_text()))
    message = error_of(cli("run", finished, "--out", "done", *resume), code=2)
    assert f": {what}. What was fixed before the data stays as it is" in message
    assert load_plan(finished).content_hash in message
    assert (rows(Path("done")), Path("ledger.jsonl").read_bytes()) == before


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("finished")
    counts = {"copy": 9, "sort": 8, "brackets": 8}
    arms = record_run(directory / "recorded", counts, lambda arm, task, i: True)
    tasks = [
        {"name": "copy", "critical": True, "items": 8, "margin": 0.1},
        {"name": "brackets", "critical": True, "items": 8, "margin": 0.15},
    ]
    plan = plan_file(directory / "p.toml", arms, tasks)
    assert cli("run", plan, "--out", directory / "done").exit_code in (3, 4)
    return directory


@pytest.fixture
def finished(tmp_path: Path, finished_once: Path) -> Path:
    """The plan of a finished run in ``done``; both, and the ledger, are copies."""
    shutil.copytree(finished_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "p.toml"


def test_a_plan_rewritten_in_the_journal_is_refused_by_its_hash(finished: Path) -> None:
    db = sqlite3.connect("done/journal.sqlite")
    with db:
        db.execute("UPDATE meta SET value = replace(value, '\"margin\": 0.1', '\"margin\": 0.3')")
        assert db.execute("SELECT changes()").fetchone()[0] > 0
        (text,) = db.execute("SELECT value FROM meta WHERE name = 'plan_text'").fetchone()
        assert '"margin": 0.3' in text
    db.close()
    for args in (("report", "done"), ("run", finished, "--out", "done", "--resume")):
        message = error_of(cli(*args), code=4)
        assert "done/journal.sqlite: the stored plan" in message
        assert "restore it from a copy" in message


# -- ledger show, ledger verify ------------------------------------------------------------------


def test_show_lists_every_attempt_as_a_table_and_as_json(asked: Asked) -> None:
    asked.run("one", FEW)
    asked.run("two", ENOUGH)
    first, second = ledger_rows()
    assert (first["run"], first["model"], first["plan"], first["alpha"]) == ("one", "m", "one", 0.05)
    assert first["margins"] == {"copy": MARGIN}
    assert first["candidate"] == second["candidate"] != first["baseline"] == second["baseline"]
    assert first["plan_hash"] == load_plan(Path("one.toml")).content_hash
    table = cli("ledger", "show", ".").stdout
    for text in ("one", "two", "INCONCLUSIVE", first["candidate"].partition(":")[2][:8], "0.05 (1)"):
        assert text in table


def test_verify_says_whole_or_names_the_first_broken_line_and_exits_4(asked: Asked) -> None:
    asked.run("one", FEW)
    asked.run("two", ENOUGH)
    whole = cli("ledger", "verify", "ledger.jsonl")
    assert whole.exit_code == 0
    assert "whole: 4 lines, 2 attempts, 2 runs beside it agree" in whole.stdout
    lines = Path("ledger.jsonl").read_bytes().splitlines(keepends=True)

    def broken(kept: list[bytes]) -> str:
        Path("ledger.jsonl").write_bytes(b"".join(kept))
        return error_of(cli("ledger", "verify", "ledger.jsonl"), code=4)

    edited = [lines[0], lines[1].replace(b"INCONCLUSIVE", b"SIGNED OFF"), *lines[2:]]
    assert "line 2 does not match its own hash" in broken(edited)
    assert "line 2 does not follow line 1" in broken([lines[0], *lines[2:]])
    # Cut off the end: only the runs know.
    assert "run 'two', model 'm' reported INCONCLUSIVE, but the ledger says unfinished" in broken(lines[:3])
    assert "the line that registered run 'two', model 'm' is missing" in broken(lines[:2])
    Path("ledger.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    assert "run 'two', model 'm' reported INCONCLUSIVE" in error_of(cli("ledger", "verify", "."), code=4)


def test_a_broken_ledger_stops_a_run_before_anything_is_asked(asked: Asked) -> None:
    asked.run("one", FEW)
    for server in (asked.baseline, asked.candidate, asked.control):
        server.asked.clear()
    Path("ledger.jsonl").write_bytes(b"{}\n")
    assert "line 1 does not match its own hash" in error_of(asked.run("two", ENOUGH), code=4)
    assert not any(s.asked for s in (asked.baseline, asked.candidate, asked.control))


def test_the_ledger_may_lie_elsewhere(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.run("one", FEW, "--ledger", "elsewhere/a.jsonl")
    monkeypatch.setenv("EQUIPOISE_LEDGER", "elsewhere/a.jsonl")
    assert asked.run("two", ENOUGH).exit_code == 3
    assert not Path("ledger.jsonl").exists()
    assert len(json.loads(cli("ledger", "show", "--json").stdout)) == 2
    assert "no ledger there" in error_of(cli("ledger", "show", "nowhere.jsonl"), code=2)
