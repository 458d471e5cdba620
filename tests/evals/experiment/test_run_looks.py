"""Runs with registered looks: when they stop, what they save, and that nobody can make them forget it."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from cli_runs import cli, error_of, plan_file, rows
from fake_sglang import share
from run_doubles import output
from servers_in_place import ServersInPlace

from equipoise.evals.errors import ServerError
from equipoise.evals.journal import Journal
from equipoise.evals.types import Output, Request, SampleKey
from equipoise.reports import json as json_report
from equipoise.reports.model import Report
from equipoise.tasks.registry import TASKS

ARMS = [
    {"name": "A1", "role": "baseline", "variant": "bf16"},
    {"name": "A2", "role": "baseline_repeat", "variant": "bf16"},
    {"name": "B", "role": "candidate", "variant": "fp8_e4m3"},
    {"name": "P", "role": "gross_control", "variant": "control-int4-tensor"},
]
ITEMS = {"copy": 200, "sort": 120}
PLANNED = 4 * sum(ITEMS.values())
LOOKS = {"fractions": [0.25, 0.5]}
SEEN = (50 + 30, 100 + 60)  # items at the looks
TARGETS = {(task, i.id): i.target for task, n in ITEMS.items() for i in TASKS[task].items(n, 1)}


class Servers(ServersInPlace):
    """``wrong`` is the share of wrong answers of each arm."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong = {"P": 0.5}
        self.dies_after: int | None = None  # answers of the candidate
        self.given = 0

    def answer(self, key: SampleKey, request: Request, number: int) -> Output:
        if key.arm == "B":
            self.given += 1
            if self.dies_after is not None and self.given > self.dies_after:
                raise ServerError("the server of B died")
        target = TARGETS[key.task, key.item_id]
        wrong = self.wrong.get(key.arm, 0.0) if (key.model, key.arm) != ("good", "B") else 0.0
        if share(wrong, key.arm)(key.task + key.item_id):
            return output(target + "x")
        return output(target)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers()
    servers.install(tmp_path, monkeypatch)
    plan()
    return servers


def plan(looks: dict[str, Any] | None = LOOKS, **decision: float) -> None:
    tasks = [{"name": n, "critical": True, "items": k, "margin": 0.1} for n, k in ITEMS.items()]
    sections: dict[str, Any] = {"decision": {"suite_margin": 0.08} | decision, "runner": {"concurrency": 8}}
    if looks is not None:
        sections["looks"] = looks
    plan_file(Path("p.toml"), ARMS, tasks, model_path="model", **sections)


def started(*flags: str, servers: str = "together", out: str = "out") -> Any:
    return cli("run", "p.toml", "--out", out, "--device", "cpu", "--servers", servers, *flags)


def report(out: str = "out") -> Report:
    return json_report.load((Path(out) / "report.json").read_text())


def looks(out: str = "out") -> list[dict[str, Any]]:
    with Journal.read(Path(out) / "journal.sqlite") as journal:
        return [value for _, _, value in journal.records("look")]


def asked(out: str = "out") -> dict[str, int]:
    keys = list(rows(Path(out)))
    return {a["name"]: sum(k[1] == a["name"] for k in keys) for a in ARMS}


def sql(statement: str, *values: Any, out: str = "out") -> None:
    db = sqlite3.connect(Path(out) / "journal.sqlite")
    with db:
        db.execute(statement, values)
    db.close()


def test_a_degraded_candidate_is_stopped_at_the_first_look(servers: Servers) -> None:
    servers.wrong["B"] = 0.4
    result = started()
    assert result.exit_code == 1, result.stdout
    assert asked() == dict.fromkeys(("A1", "A2", "B", "P"), SEEN[0])
    (look,) = looks()
    assert (look["look"], look["action"]) == (1, "no-go")
    assert 0.0 < look["nogo_alpha"] < 0.05
    saved = PLANNED - 4 * SEEN[0]
    said = f"stopped early at look 1 of 2, with 25% of the items: the candidate is degraded; saved {saved}"
    assert f"m: {said} of {PLANNED:,} requests" in " ".join(result.stderr.split())
    told = report()
    assert (told.run.state, told.run.verdict, told.run.exit_code) == ("final", "DEGRADED", 1)
    assert said in told.run.early_stop
    assert told.run.pairs == SEEN[0]
    (model,) = told.models
    assert {row.task: row.n for row in model.tasks} == {"copy": 50, "sort": 30}
    assert all(m.missing == 0 for m in model.missing)
    rest = {(e.task, e.arm): e.count for e in model.exclusions if e.reason == "not asked (stopped early)"}
    assert rest == {(t, a["name"]): n - n // 4 for t, n in ITEMS.items() for a in ARMS}
    again = cli("report", "out", "--format", "json")
    assert (again.exit_code, again.stdout) == (1, Path("out/report.json").read_text())


def test_servers_one_by_one_answer_everything_before_the_candidates_turn(servers: Servers) -> None:
    servers.wrong["B"] = 0.4
    assert started(servers="one-by-one").exit_code == 1
    assert servers.up == [["A1", "A2"], ["P"], ["B"]]
    assert asked() == {"A1": 320, "A2": 320, "P": 320, "B": SEEN[0]}
    (model,) = report().models
    assert {row.task: row.n for row in model.tasks} == {"copy": 50, "sort": 30}
    unused = {(e.arm, e.task): e.count for e in model.exclusions if e.reason.startswith("asked before")}
    assert unused["A1", "copy"] == 150
    assert ("B", "copy") not in unused


def test_both_ways_of_serving_see_the_same_items_and_decide_alike(servers: Servers) -> None:
    servers.wrong["B"] = 0.12
    for way in ("together", "one-by-one"):
        started(servers=way, out=way)
    assert looks("together") == looks("one-by-one")
    assert len(looks("together")) >= 1


def test_a_good_candidate_is_asked_everything_and_signed_off(servers: Servers) -> None:
    result = started()
    assert result.exit_code == 0, result.stdout
    assert sum(asked().values()) == PLANNED
    assert [look["action"] for look in looks()] == ["go on", "go on"]
    assert report().run.early_stop == ""


def test_looks_change_no_answer_and_no_estimate_of_a_run_that_nothing_stops(servers: Servers) -> None:
    servers.wrong["B"] = 0.01
    started(out="with")
    plan(None)
    started(out="without")
    assert looks("without") == []
    with_looks, without = report("with"), report("without")
    assert [row.interval for row in with_looks.models[0].rows] == [
        row.interval for row in without.models[0].rows
    ]
    assert with_looks.run.verdict == without.run.verdict


def test_a_candidate_that_cannot_be_signed_off_any_more_is_stopped_as_futile(servers: Servers) -> None:
    servers.wrong["B"] = 0.12
    plan(assumed_loss=0.06)
    result = started()
    assert result.exit_code == 3, result.stdout
    told = report()
    assert (told.run.verdict, told.run.state) == ("INCONCLUSIVE", "final")
    assert "all but impossible" in told.run.early_stop
    assert looks()[-1]["action"] == "futile"
    assert any("at look" in r and "probability" in r for r in told.run.reasons)
    assert all(row.verdict in ("INCONCLUSIVE", "SUSPECT") for row in told.models[0].rows)
    assert any(row.would_decide for row in told.models[0].rows)


def test_futility_can_be_left_out(servers: Servers) -> None:
    servers.wrong["B"] = 0.12
    plan(LOOKS | {"futility": False}, assumed_loss=0.06)
    started()
    assert {look["action"] for look in looks()} <= {"go on", "no-go"}
    assert "futile" not in {look["action"] for look in looks()}


def test_while_the_control_is_not_caught_nothing_is_decided(servers: Servers) -> None:
    servers.wrong.update(B=0.4, P=0.0)
    assert started().exit_code == 4
    assert [look["action"] for look in looks()] == ["go on", "go on"]
    assert any("control was not caught" in reason for reason in looks()[0]["reasons"])
    assert sum(asked().values()) == PLANNED


@pytest.mark.parametrize(
    ("way", "dies_after"), [("together", 20), ("together", SEEN[0]), ("one-by-one", SEEN[0] + 9)]
)
def test_a_run_killed_before_between_or_at_looks_goes_on_to_the_same_decision(
    servers: Servers, way: str, dies_after: int
) -> None:
    servers.wrong["B"] = 0.12
    started(servers=way, out="whole")
    assert len(looks("whole")) == 2, "the test needs a candidate that passes the first look"
    servers.given, servers.dies_after = 0, dies_after
    error_of(started(servers=way), code=4)
    before = rows(Path("out"))
    assert cli("report", "out").exit_code == 4  # nobody sees a result in between
    servers.dies_after = None
    assert started("--resume", servers=way).exit_code == report("whole").run.exit_code
    assert looks() == looks("whole")
    after = rows(Path("out"))
    assert {k: after[k] for k in before} == before
    assert set(after) == set(rows(Path("whole")))


def test_a_stopped_run_that_is_resumed_asks_nothing(servers: Servers) -> None:
    servers.wrong["B"] = 0.4
    started()
    # As if it had been killed right after the look.
    sql("DELETE FROM records WHERE name IN ('stopped_early', 'finished')")
    before, told = rows(Path("out")), report().run
    servers.up.clear()
    servers.wrong["B"] = 0.0
    result = started("--resume")
    assert (result.exit_code, servers.up) == (1, [])
    assert "stopped early at look 1" in result.stdout
    assert rows(Path("out")) == before
    assert report().run == told


def test_a_look_that_does_not_follow_from_the_answers_is_refused(servers: Servers) -> None:
    started()
    value = looks()[0] | {"action": "no-go", "reasons": ["forged"]}
    sql("UPDATE records SET value = ? WHERE name = 'look'", json.dumps(value))
    error = error_of(cli("report", "out"), code=4)
    assert "recorded as 'no-go', but its answers lead to 'go on'" in error


def test_of_several_models_only_the_degraded_one_is_stopped(servers: Servers) -> None:
    servers.wrong["B"] = 0.4
    text = Path("p.toml").read_text()
    Path("p.toml").write_text(text + '\n[[models]]\nname = "good"\npath = "model"\n')
    assert started().exit_code == 1
    told = report()
    assert told.run.early_stop.startswith("m: stopped early")
    assert "good" not in told.run.early_stop
    bad, good = told.models
    assert (bad.verdict, good.verdict) == ("DEGRADED", "SIGNED OFF")
    assert [row.n for row in good.tasks] == [200, 120]
    assert not [e for e in good.exclusions if "stopped early" in e.reason]
    assert [(look["model"], look["action"]) for look in looks()] == [
        ("m", "no-go"),
        ("good", "go on"),
        ("good", "go on"),
    ]


def test_repeated_answers_are_looked_at_by_their_own_estimate(servers: Servers) -> None:
    servers.wrong["B"] = 0.4
    Path("p.toml").write_text(Path("p.toml").read_text().replace("margin = 0.1", "margin = 0.1\nrepeats = 2"))
    assert started().exit_code == 1
    assert asked() == dict.fromkeys(("A1", "A2", "B", "P"), 2 * SEEN[0])
    assert looks()[0]["action"] == "no-go"
    assert report().models[0].rows[0].verdict == "DEGRADED"


def test_plan_check_says_what_the_looks_may_do(servers: Servers) -> None:
    said = " ".join(cli("plan", "check", "p.toml").stdout.split())
    assert "looks at 25% (0.01" in said
    assert "it signs nothing off" in said


def test_an_unknown_key_of_the_looks_is_named_with_the_nearest_one(servers: Servers) -> None:
    Path("p.toml").write_text(Path("p.toml").read_text().replace("[looks]", "[looks]\ngama = 0.1"))
    error = error_of(cli("plan", "check", "p.toml"), code=2)
    assert "unknown key 'looks.gama'; did you mean 'gamma'?" in error
