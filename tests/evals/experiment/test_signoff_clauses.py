"""Each clause of a sign-off policy: met by a run that has what it demands, and by no other."""

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from signoffs import EASY, make_run, policy_file

from equipoise.evals.experiment.attempt_register import recorded_attempts
from equipoise.evals.experiment.questions import questions_of
from equipoise.evals.experiment.results import JOURNAL_NAME, facts_by_model, plan_of, report_of
from equipoise.evals.experiment.signoff_clauses import RunUnderPolicy, clauses, valid_until
from equipoise.evals.experiment.signoff_ledger import ledger_facts
from equipoise.evals.journal import Journal
from equipoise.evals.signoff_policy import load_policy

FINISHED = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NOW = FINISHED + datetime.timedelta(hours=12)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunUnderPolicy:
    directory = make_run(tmp_path_factory.mktemp("clauses"))
    with Journal.read(directory / JOURNAL_NAME) as journal:
        plan = plan_of(journal)
        report = report_of(journal, plan, questions_of(plan), run_id="run")
        facts, problems = ledger_facts(
            directory.parent / "ledger.jsonl", recorded_attempts(journal), {"m": "SIGNED OFF"}
        )
        servers = facts_by_model(journal)
    assert facts is not None
    return RunUnderPolicy(
        plan=plan,
        report=report,
        servers=servers,
        hardware={},
        suite_tasks=(),
        ledger=facts,
        ledger_problems=problems,
        finished=FINISHED,
    )


def unmet(
    run: RunUnderPolicy, path: Path, *changes: Any, base: Any = EASY, now: datetime.datetime = NOW
) -> dict[str, str]:
    """By clause that is not met, what was found."""
    policy = load_policy(policy_file(path / "p.toml", *changes, base=base))
    return {c.name: c.found for c in clauses(policy, run, now) if not c.met}


def test_a_run_that_has_everything_meets_every_clause(run: RunUnderPolicy, tmp_path: Path) -> None:
    policy = load_policy(policy_file(tmp_path / "p.toml"))
    held = clauses(policy, run, NOW)
    demanded = [f"{section}.{key}" for section, keys in EASY.items() for key in keys]
    assert [c for c in held if not c.met] == []
    assert all(any(c.name.startswith(name) for c in held) for name in demanded)


def test_an_empty_policy_demands_nothing(run: RunUnderPolicy, tmp_path: Path) -> None:
    policy = load_policy(policy_file(tmp_path / "p.toml", base={}))
    assert clauses(policy, run, NOW) == ()
    assert valid_until(policy, FINISHED) is None


@pytest.mark.parametrize(
    ("section", "key", "value", "found"),
    [
        ("decision", "max_suite_margin", 0.04, "0.05"),
        ("decision", "max_task_margin", 0.09, "copy 0.1, sort 0.1"),
        ("decision", "task_margins", {"copy": 0.05}, "0.1"),
        ("decision", "task_margins", {"gsm8k": 0.05}, "not known"),
        ("decision", "max_alpha", 0.01, "0.05"),
        ("decision", "max_false_sign_off", 0.01, "0.05"),
        ("tasks", "critical", ["copy", "gsm8k"], "no"),
        ("tasks", "suites", ["long"], "no suite"),
        ("evidence", "max_detectable_loss", 0.001, "0.0392456"),
        ("evidence", "require_servers", True, "recorded answers: A1, A2, B, P, M"),
        ("origin", "sglang_versions", ["0.5.*"], None),
        ("origin", "gpu", "H200", "not known of m A1, m A2, m B, m P, m M"),
        ("origin", "models", ["glm-*"], "m"),
        ("origin", "max_age_days", 0.4, "0.50"),
    ],
)
def test_a_demand_that_the_run_does_not_meet_is_named(
    run: RunUnderPolicy, tmp_path: Path, section: str, key: str, value: Any, found: str | None
) -> None:
    against = unmet(run, tmp_path, {section: {key: value}})
    (name,) = against
    assert name.startswith(f"{section}.{key}")
    assert found is None or against[name] == found


def changed(run: RunUnderPolicy, **model: Any) -> RunUnderPolicy:
    """The run with another report about its model."""
    report = run.report
    (one,) = report.models
    head = replace(report.run, indistinguishable=False)
    models = (replace(one, **model),)
    return replace(run, report=replace(report, run=head, models=models))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda m: {"noise_floor": None}, ["require_noise_floor"]),
        (
            lambda m: {"noise_floor": replace(m.noise_floor, passed=False)},
            ["require_noise_floor"],
        ),
        (lambda m: {"controls": m.controls[1:]}, ["require_control"]),
        (lambda m: {"controls": (replace(m.controls[0], caught=False),)}, ["require_control"]),
        (lambda m: {"worst_case_verdict": "INCONCLUSIVE"}, ["require_worst_case"]),
        (lambda m: {"worst_case_verdict": None}, ["require_worst_case"]),
        (
            lambda m: {"tasks": (replace(m.tasks[0], worst_case_verdict="DEGRADED"), *m.tasks[1:])},
            ["require_worst_case"],
        ),
        (
            lambda m: {"pooled": replace(m.pooled, verdict="DETECTED-WITHIN-MARGIN")},
            ["allow_detected"],
        ),
    ],
)
def test_what_the_models_did_not_show_is_named(
    run: RunUnderPolicy, tmp_path: Path, change: Any, names: list[str]
) -> None:
    other = changed(run, **change(run.report.models[0]))
    against = unmet(other, tmp_path, {"decision": {"require_indistinguishable": False}})
    assert [name.partition(".")[2] for name in against] == names


def test_only_an_indistinguishable_run_meets_that_demand(run: RunUnderPolicy, tmp_path: Path) -> None:
    assert unmet(changed(run), tmp_path) == {"decision.require_indistinguishable": "no"}


def test_attempts_that_nobody_counted_meet_no_demand(run: RunUnderPolicy, tmp_path: Path) -> None:
    head = replace(run.report.run, attempts=(), attempts_bound=None)
    other = replace(run, report=replace(run.report, run=head), ledger=None)
    assert unmet(other, tmp_path) == {
        "decision.max_attempts": "not known",
        "decision.max_false_sign_off": "not known",
        "evidence.require_ledger": "no ledger was kept or found",
    }


def test_a_later_attempt_than_allowed_is_named(run: RunUnderPolicy, tmp_path: Path) -> None:
    attempts = tuple(replace(a, number=2) for a in run.report.run.attempts)
    head = replace(run.report.run, attempts=attempts)
    other = replace(run, report=replace(run.report, run=head))
    assert unmet(other, tmp_path) == {"decision.max_attempts": "2"}


def test_a_suite_must_be_whole(run: RunUnderPolicy, tmp_path: Path) -> None:
    wanted = {"tasks": {"suites": ["long", "short"]}}
    plan = run.plan.model_copy(update={"suite": "short"})
    whole = replace(run, plan=plan, suite_tasks=("copy",))
    assert unmet(whole, tmp_path, wanted) == {}
    for tasks, said in ((("copy", "brackets"), "not critical in the plan: brackets"), ((), "not known")):
        assert said in unmet(replace(whole, suite_tasks=tasks), tmp_path, wanted)["tasks.suites"]


@pytest.mark.parametrize(
    ("commit", "dirty", "met"),
    [("a" * 40, False, True), ("a" * 40, True, False), ("a" * 40, None, False), ("", None, False)],
)
def test_only_a_clean_commit_is_clean(
    run: RunUnderPolicy, tmp_path: Path, commit: str, dirty: bool | None, met: bool
) -> None:
    source = replace(run.report.provenance, git_commit=commit, git_dirty=dirty)
    other = replace(run, report=replace(run.report, provenance=source))
    assert (
        "origin.require_clean_git" in unmet(other, tmp_path, {"origin": {"require_clean_git": True}})
    ) != met


def served(
    run: RunUnderPolicy, *, device: str = "cuda", gpus: tuple[str, ...] = (), **arms: Any
) -> RunUnderPolicy:
    """The run as if we had served its arms, each with these facts unless said otherwise."""
    facts = {"command": ["python"], "server": {"version": "0.5.23"}}
    all_arms = {a.name: facts | arms.get(a.name, {}) for a in run.plan.arms}
    return replace(run, servers={"m": {"device": device, "arms": all_arms}}, hardware={"gpus": list(gpus)})


@pytest.mark.parametrize(
    ("versions", "arms", "found"),
    [
        (["0.5.23"], {}, None),
        (["0.6.*", "0.5.*"], {}, None),
        (["0.5.2"], {}, "m A1: 0.5.23"),
        (["0.5.*"], {"B": {"server": {}}}, "m B: not known"),
        (["0.5.*"], {"B": {"server": {"version": "0.6.0"}}}, "m B: 0.6.0"),
    ],
)
def test_every_arms_server_has_an_allowed_version(
    run: RunUnderPolicy, tmp_path: Path, versions: list[str], arms: Any, found: str | None
) -> None:
    against = unmet(served(run, **arms), tmp_path, {"origin": {"sglang_versions": versions}})
    assert against == {} if found is None else found in against["origin.sglang_versions"]


H200 = "NVIDIA H200, 143771 MiB, 570.1"


@pytest.mark.parametrize(
    ("device", "gpus", "arms", "found"),
    [
        ("cuda", (H200, H200), {}, None),
        ("cuda", (H200, "NVIDIA L4, 23034 MiB, 570.1"), {}, "NVIDIA L4"),
        ("cuda", (), {}, "no GPU (none found)"),
        ("cpu", (H200,), {}, "no GPU (m)"),
        ("cuda", (H200,), {"B": {"command": [], "url": "http://x"}}, "not known of m B"),
    ],
)
def test_every_gpu_is_of_the_kind_that_is_asked_for(
    run: RunUnderPolicy, tmp_path: Path, device: str, gpus: Any, arms: Any, found: str | None
) -> None:
    other = served(run, device=device, gpus=gpus, **arms)
    against = unmet(other, tmp_path, {"origin": {"gpu": "H(100|200)$"}})
    assert against == ({} if found is None else {"origin.gpu": found})


def test_a_run_from_the_future_has_no_age(run: RunUnderPolicy, tmp_path: Path) -> None:
    before = FINISHED - datetime.timedelta(seconds=1)
    assert "origin.max_age_days" in unmet(run, tmp_path, now=before)
