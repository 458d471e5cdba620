"""The decision from end to end: what the arms answer decides the word, the exit code and every report."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import cli, plan_file, record_run, url_arms
from fake_sglang import FakeSglang, serving, share

from equipoise.reports import json as json_report
from equipoise.reports.model import Report

Right = Callable[[str, str, int], bool]
MARGIN = 0.1


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def by_arm(**wrong: float) -> Right:
    """Answers that are wrong on these fractions of the items; arms not named are as good as A1."""

    def right(arm: str, task: str, index: int) -> bool:
        return not share(wrong.get(arm, wrong["A1"]), task)(str(index))

    return right


def decided(tmp_path: Path, right: Right, *, items: int = 100, **decision: object) -> tuple[int, Report]:
    """Run two critical tasks on recorded answers; the exit code and the report on disk."""
    arms = record_run(tmp_path / "recorded", {"copy": items, "sort": items}, right)
    tasks = [{"name": n, "critical": True, "items": items, "margin": MARGIN} for n in ("copy", "sort")]
    plan = plan_file(tmp_path / "p.toml", arms, tasks, decision=decision)
    result = cli("run", plan, "--out", "out")
    return result.exit_code, json_report.load(Path("out/report.json").read_text())


def test_an_identical_candidate_beside_a_caught_control_is_signed_off(tmp_path: Path) -> None:
    code, report = decided(tmp_path, by_arm(A1=0.1, P=0.6))
    assert (code, report.run.verdict, report.run.state) == (0, "SIGNED OFF", "final")
    assert report.run.indistinguishable
    (model,) = report.models
    assert [t.verdict for t in model.tasks] == ["EQUIVALENT", "EQUIVALENT"]
    assert model.noise_floor is not None
    assert model.noise_floor.passed
    gross = next(c for c in model.controls if c.strength == "gross")
    assert gross.caught
    assert gross.delta is not None
    assert gross.delta < -0.3


def test_a_much_worse_candidate_is_degraded(tmp_path: Path) -> None:
    code, report = decided(tmp_path, by_arm(A1=0.1, B=0.5, P=0.6))
    assert (code, report.run.verdict) == (1, "DEGRADED")
    (model,) = report.models
    assert model.pooled is not None
    assert model.pooled.delta is not None
    assert model.pooled.delta < -0.25
    assert model.flips is not None
    assert model.flips.lost > 40
    assert any(f.direction == "lost" and f.candidate is not None for f in model.flips.shown)


def test_a_control_that_is_not_caught_makes_the_run_invalid(tmp_path: Path) -> None:
    code, report = decided(tmp_path, by_arm(A1=0.1))
    assert (code, report.run.verdict) == (4, "INVALID")
    assert any("gross control was not caught" in r for r in report.run.reasons)


def test_a_worse_candidate_is_not_called_degraded_where_the_control_was_missed(tmp_path: Path) -> None:
    code, report = decided(tmp_path, by_arm(A1=0.1, B=0.6))
    assert (code, report.run.verdict) == (4, "INVALID")


def test_a_baseline_that_differs_from_itself_makes_the_run_invalid(tmp_path: Path) -> None:
    code, report = decided(tmp_path, by_arm(A1=0.1, A2=0.4, P=0.9))
    assert (code, report.run.verdict) == (4, "INVALID")
    assert any("A/A alarm" in r for r in report.run.reasons)


def test_too_few_items_are_inconclusive_and_say_how_many_would_do(tmp_path: Path) -> None:
    code, report = decided(tmp_path, lambda arm, task, i: arm != "P", items=20)
    assert (code, report.run.verdict) == (3, "INCONCLUSIVE")
    assert any("items" in line for line in report.run.would_decide)
    assert any(r.startswith("m: copy: a loss of the margin is not excluded") for r in report.run.reasons)


def test_a_missing_control_is_invalid_unless_the_plan_does_without(tmp_path: Path) -> None:
    arms = record_run(tmp_path / "recorded", {"copy": 100}, by_arm(A1=0.1))
    tasks = [{"name": "copy", "critical": True, "items": 100, "margin": MARGIN}]
    two = [a for a in arms if a["name"] in ("A1", "B")]
    bare = plan_file(tmp_path / "bare.toml", two, tasks)
    assert cli("run", bare, "--out", "bare").exit_code == 4
    without = {"require_control": False, "require_noise_floor": False}
    plan = plan_file(tmp_path / "ok.toml", two, tasks, decision=without)
    cli("run", plan, "--out", "ok", "--ledger", "another.jsonl")  # its first attempt there
    report = json_report.load(Path("ok/report.json").read_text())
    assert (report.run.verdict, report.run.indistinguishable) == ("SIGNED OFF", False)
    assert any("no fault was planted" in limit for limit in report.run.limits)


@pytest.mark.parametrize(
    ("wrong", "items", "verdict"),
    [
        ({"A1": 0.1, "P": 0.6}, 100, "SIGNED OFF"),
        ({"A1": 0.1, "B": 0.5, "P": 0.6}, 100, "DEGRADED"),
        ({"A1": 0.1}, 100, "INVALID"),
        ({"A1": 0.1, "P": 0.9}, 20, "INCONCLUSIVE"),
    ],
)
def test_every_form_of_the_report_says_the_same_and_report_repeats_it(
    tmp_path: Path, wrong: dict[str, float], items: int, verdict: str
) -> None:
    arms = record_run(tmp_path / "recorded", {"copy": items, "sort": items}, by_arm(**wrong))
    tasks = [{"name": n, "critical": True, "items": items, "margin": MARGIN} for n in ("copy", "sort")]
    run = cli("run", plan_file(tmp_path / "p.toml", arms, tasks), "--out", "out")
    stored = {"json": Path("out/report.json").read_text(), "markdown": Path("out/report.md").read_text()}
    (model,) = (data := json.loads(stored["json"]))["models"]
    assert data["run"]["verdict"] == verdict
    others = {"SIGNED OFF", "DEGRADED", "INVALID", "INCONCLUSIVE"} - {verdict}
    for text in (run.stdout, stored["markdown"]):
        first = next(line for line in text.splitlines() if any(v in line for v in others | {verdict}))
        assert verdict in first
        assert data["run"]["plan_hash"][:12] in text
        for task in model["tasks"]:
            shown = (f"{100 * task['delta']:+.1f}".lstrip("+-"), f"{task['n']:,}", task["verdict"])
            rows = [line for line in text.splitlines() if task["task"] in line and task["verdict"] in line]
            assert [row for row in rows if all(part in row for part in shown)], (shown, text)
    for form, text in stored.items():
        again = cli("report", "out", "--format", form)
        assert again.exit_code == run.exit_code
        assert again.stdout == text
    again = cli("report", "out")
    assert (again.exit_code, again.stdout) == (run.exit_code, run.stdout)
    assert cli("report", "out", "--format", "json", "--output", "copy.json").exit_code == run.exit_code
    assert Path("copy.json").read_text() == stored["json"]


# -- against endpoints -----------------------------------------------------------------------

ALL_TASKS = [
    {"name": "copy", "critical": True, "items": 60, "margin": MARGIN},
    {"name": "dialog_recall", "critical": True, "items": 60, "margin": MARGIN},
    {"name": "logprob", "critical": True, "items": 10, "margin_nats": 0.01},
]


def asked(tmp_path: Path, candidate: FakeSglang, **more: object) -> tuple[int, Report]:
    """Ask endpoints: BF16 twice, the candidate, and a control that is wrong two times in three."""
    baseline, control = FakeSglang(wrong=share(0.1)), FakeSglang(wrong=share(0.7), nll=1.5)
    with serving(baseline, candidate, control):
        arms = url_arms(A1=baseline.url, A2=baseline.url, B=candidate.url, P=control.url)
        plan = plan_file(tmp_path / "p.toml", arms, ALL_TASKS, **more)
        result = cli("run", plan, "--out", "out")
    return result.exit_code, json_report.load(Path("out/report.json").read_text())


def test_endpoints_that_answer_alike_are_signed_off_with_their_facts_on_record(tmp_path: Path) -> None:
    code, report = asked(tmp_path, FakeSglang(wrong=share(0.1), kv_cache_dtype="fp8_e4m3"))
    assert (code, report.run.verdict) == (0, "SIGNED OFF")
    arms = {a.name: a for a in report.provenance.arms}
    assert (arms["A1"].kv_cache_dtype, arms["B"].kv_cache_dtype) == ("auto", "fp8_e4m3")
    assert arms["A1"].url.startswith("http://127.0.0.1:")
    assert [d.fact for d in report.provenance.parity_differences] == ["kv_cache_dtype of B"]
    (row,) = report.models[0].logprobs
    assert (row.cache_read, row.status, row.delta_nll_nats, row.sequences) == (True, "passed", 0.0, 10)
    assert report.provenance.requests == 4 * (60 + 3 * 60 + 2 * 10)


def test_a_loss_in_nats_alone_is_degraded(tmp_path: Path) -> None:
    code, report = asked(tmp_path, FakeSglang(wrong=share(0.1), nll=0.6))
    (row,) = report.models[0].logprobs
    assert row.delta_nll_nats == pytest.approx(0.1, rel=0.06)
    assert (code, report.run.verdict) == (1, "DEGRADED")
    assert any(r.startswith("m: logprob: delta-NLL may be 0.1") for r in report.run.reasons)


def test_a_cache_that_was_not_read_is_no_evidence(tmp_path: Path) -> None:
    class Forgetful(FakeSglang):
        def _generated(self, body):  # type: ignore[no-untyped-def]
            self._cached.clear()
            return super()._generated(body)

    code, report = asked(tmp_path, Forgetful(wrong=share(0.1)))
    (row,) = report.models[0].logprobs
    assert (row.cache_read, row.status) == (False, "cache not read")
    assert (code, report.run.verdict) == (3, "INCONCLUSIVE")
