"""Sign-offs from end to end: given, refused with the reason, and found out whatever is changed afterwards."""

import datetime
import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import cli, error_of
from click.testing import Result
from signoffs import copy_of, make_run, policy_file, sign, signoff_of

from equipoise.evals.experiment.signoff import make_signoff
from equipoise.evals.experiment.signoff_verify import Trust, verify_signoff
from equipoise.evals.plan import hash_of
from equipoise.evals.signoff_journal import manifest_of
from equipoise.evals.signoff_policy import load_policy


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is signed off under the policy ``easy.toml`` beside it."""
    run = make_run(tmp_path_factory.mktemp("good"))
    assert sign(run, policy_file(run.parent / "easy.toml")).exit_code == 0
    return run


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return copy_of(good, tmp_path)


def verify(run: Path, *args: str | Path) -> Result:
    return cli("signoff", "verify", run, *args)


def changed(result: Result, *, code: int = 4) -> list[str]:
    """What the sign-off was found to be changed in."""
    assert result.exit_code == code, result.output
    return [
        line.strip().removeprefix("- changed: ")
        for line in result.stdout.splitlines()
        if "- changed: " in line
    ]


def sql(run: Path, *statements: str) -> None:
    db = sqlite3.connect(run / "journal.sqlite", isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def edit(path: Path, change: Callable[[Any], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data, indent=1))


# -- given and refused -------------------------------------------------------------------------


def test_a_sound_run_is_signed_off_and_the_sign_off_holds(run: Path) -> None:
    said = signoff_of(run)
    assert (said["decision"], said["exit_code"], said["run"]["verdict"]) == ("SIGNED OFF", 0, "SIGNED OFF")
    assert said["models"][0]["verdict"] == "SIGNED OFF"
    assert said["plan"]["sha256"] == hash_of(said["plan"]["values"])
    assert said["report_sha256"] == hashlib.sha256((run / "report.json").read_bytes()).hexdigest()
    assert said["journal"]["samples"] == 1000
    assert said["ledger"]["attempts"][0]["outcome"] == "SIGNED OFF"
    assert all(c["met"] for c in said["policy"]["clauses"])
    result = verify(run, "--policy", run.parent / "easy.toml")
    assert result.exit_code == 0
    assert result.stdout.startswith("HOLDS: run is signed off under policy easy")


def test_the_journals_digest_is_that_of_its_list_and_not_of_the_files_layout(run: Path) -> None:
    listed = (run / "signoff-journal.jsonl").read_bytes()
    assert hashlib.sha256(listed).hexdigest() == signoff_of(run)["journal"]["sha256"]
    before = (run / "journal.sqlite").read_bytes()
    sql(run, "PRAGMA page_size = 8192", "VACUUM")
    assert (run / "journal.sqlite").read_bytes() != before
    assert manifest_of(run / "journal.sqlite").text.encode() == listed
    assert verify(run).exit_code == 0


@pytest.mark.parametrize(
    ("wrong", "items", "verdict", "code"),
    [
        ({"B": 0.6}, 100, "DEGRADED", 1),
        ({"P": 0.9}, 20, "INCONCLUSIVE", 3),
        ({"P": 0.1}, 100, "INVALID", 4),
    ],
)
def test_another_verdict_is_refused_with_its_own_exit_code_and_reasons(
    tmp_path: Path, wrong: dict[str, float], items: int, verdict: str, code: int
) -> None:
    run = make_run(tmp_path / "x", wrong=wrong, items=items)
    result = sign(run, policy_file(tmp_path / "none.toml", base={}))
    said = signoff_of(run)
    assert (result.exit_code, said["decision"], said["exit_code"]) == (code, "REFUSED", code)
    assert said["reasons"][0].startswith(f"the verdict of the run is {verdict}: ")
    assert said["valid_until"] is None
    assert (
        f"REFUSED: run under policy none {said['policy']['sha256'][:12]} (exit code {code})" in result.stdout
    )
    assert verify(run).exit_code == code


def test_a_policy_that_is_not_met_is_refused_and_each_clause_is_said(run: Path) -> None:
    strict = policy_file(run.parent / "strict.toml", {"decision": {"max_suite_margin": 0.01}})
    result = sign(run, strict, "--output", run / "signoff-strict.json")
    assert result.exit_code == 3
    assert "NOT MET decision.max_suite_margin: demanded at most 0.01; found 0.05" in result.stdout
    assert json.loads((run / "signoff-strict.json").read_text())["reasons"] == [
        "policy: decision.max_suite_margin: demanded at most 0.01, found 0.05"
    ]
    assert verify(run / "signoff-strict.json").exit_code == 3
    assert verify(run).exit_code == 0


def test_an_unfinished_run_is_refused(run: Path) -> None:
    (run / "signoff.json").unlink()
    sql(run, "DELETE FROM samples WHERE arm = 'B' AND item_id = 'copy-1-00003'")
    (run / "report.json").unlink()
    assert sign(run, run.parent / "easy.toml").exit_code == 4
    assert signoff_of(run)["reasons"][0].startswith("the verdict of the run is incomplete")


def test_a_report_that_is_not_the_journals_is_refused(run: Path) -> None:
    (run / "signoff.json").unlink()
    edit(run / "report.json", lambda d: d["models"][0]["pooled"].update(delta=0.01))
    assert sign(run, run.parent / "easy.toml").exit_code == 4
    (reason,) = signoff_of(run)["reasons"]
    assert reason.startswith(
        "report.json is not what the journal gives: models[0].pooled.delta: stored 0.01, computed 0.0"
    )


def test_a_given_sign_off_is_replaced_only_by_force(run: Path) -> None:
    policy = run.parent / "easy.toml"
    assert "is there already" in error_of(sign(run, policy), code=2)
    assert sign(run, policy, "--force").exit_code == 0
    strict = policy_file(run.parent / "strict.toml", {"decision": {"max_suite_margin": 0.01}})
    assert sign(run, strict, "--force").exit_code == 3
    assert sign(run, policy).exit_code == 0  # a refusal is nothing to keep


def test_a_sign_off_of_another_name_that_replaces_a_refusal_does_not_vouch_for_it(run: Path) -> None:
    strict = policy_file(run.parent / "strict.toml", {"decision": {"max_suite_margin": 0.01}})
    assert sign(run, strict, "--output", run / "release.json").exit_code == 3
    assert sign(run, run.parent / "easy.toml", "--output", run / "release.json").exit_code == 0
    assert "release.json" not in json.loads((run / "release.json").read_text())["files"]
    assert verify(run / "release.json").exit_code == 0


def test_a_sign_off_without_a_signature_says_so(run: Path) -> None:
    assert "note: it has no signature: whoever can write this file can have made it" in verify(run).stdout


def test_links_in_a_run_directory_are_not_written_through(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    for name in ("signoff.json.partial", "signoff-journal.jsonl.partial", "report.json.partial"):
        (run / name).symlink_to(other)
    assert sign(run, run.parent / "easy.toml", "--force").exit_code == 0
    cli("report", run, "--format", "json", "--output", run / "report.json")
    assert other.read_text() == "kept"
    assert not (run / "signoff.json").is_symlink()


@pytest.mark.parametrize("flags", [(), ("--force",)])
def test_a_folder_is_no_place_for_a_sign_off(run: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    result = sign(run, run.parent / "easy.toml", "--output", tmp_path, *flags)
    assert "is a folder; give a file with --output" in error_of(result, code=2)


def test_what_is_no_run_is_a_usage_error(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "p.toml")
    assert "no journal there" in error_of(sign(tmp_path / "none", policy), code=2)
    assert "make one with `equipoise signoff" in error_of(verify(tmp_path), code=2)


# -- the run was changed -----------------------------------------------------------------------

SAMPLE = "sample copy-1-00003 (task copy, arm B, model m, repeat 0)"
WHERE = "arm = 'B' AND item_id = 'copy-1-00003'"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            f'UPDATE samples SET body = replace(body, \'"text":"\', \'"text":"x\') WHERE {WHERE}',
            "was changed",
        ),
        (f"UPDATE samples SET latency_s = 2.5 WHERE {WHERE}", "was changed"),
        (f"UPDATE samples SET item_id = 'other' WHERE {WHERE}", "was removed"),
        (f"DELETE FROM samples WHERE {WHERE}", "was removed"),
    ],
)
def test_a_changed_sample_is_named(run: Path, statement: str, said: str) -> None:
    sql(run, statement)
    assert f"{run / 'journal.sqlite'}: {SAMPLE} {said}" in changed(verify(run))


def test_changed_records_and_provenance_are_named(run: Path) -> None:
    sql(
        run,
        "UPDATE records SET value = '{\"unix_s\": 1.0}' WHERE name = 'finished'",
        "INSERT INTO records VALUES (1.0, 'note', '{}')",
        "UPDATE meta SET value = '{}' WHERE name = 'provenance'",
    )
    found = changed(verify(run))
    for text in ("record 4 (finished) was changed", "record 6 (note) was added", "provenance was changed"):
        assert any(line.endswith(text) for line in found), found


def test_without_its_list_a_changed_journal_is_still_found_out(run: Path) -> None:
    sql(run, f"UPDATE samples SET latency_s = 2.5 WHERE {WHERE}")
    listed = run / "signoff-journal.jsonl"
    listed.write_text(listed.read_text().replace("copy-1-00003", "copy-1-x0003"))
    assert any("content was changed" in t and "jsonl was changed" in t for t in changed(verify(run)))
    listed.unlink()
    assert any("content was changed" in t and "is gone" in t for t in changed(verify(run)))


def replan(run: Path, change: Callable[[Any], object], *, hashed: bool = True) -> None:
    db = sqlite3.connect(run / "journal.sqlite", isolation_level=None)
    (text,) = db.execute("SELECT value FROM meta WHERE name = 'plan_text'").fetchone()
    plan = json.loads(text)
    change(plan)
    db.execute("UPDATE meta SET value = ? WHERE name = 'plan_text'", (json.dumps(plan),))
    if hashed:
        db.execute("UPDATE meta SET value = ? WHERE name = 'plan_hash'", (hash_of(plan),))
    db.close()


def test_a_changed_margin_is_named_even_with_a_new_hash(run: Path) -> None:
    replan(run, lambda p: p["decision"].update(suite_margin=0.2))
    found = changed(verify(run))
    assert "plan: decision.suite_margin: signed 0.05, now 0.2" in found
    assert any(line.startswith("models[0].margin: signed 0.05, now 0.2") for line in found)


def test_a_changed_task_margin_is_named(run: Path) -> None:
    replan(run, lambda p: p["tasks"][1].update(margin=0.2))
    assert "plan: tasks.sort.margin: signed 0.1, now 0.2" in changed(verify(run))


def test_a_plan_without_its_hash_cannot_be_decided_again(run: Path) -> None:
    replan(run, lambda p: p["decision"].update(suite_margin=0.2), hashed=False)
    found = changed(verify(run))
    assert any("the journal's plan_text was changed" in line for line in found)
    assert any("the stored plan has hash" in line for line in found)


def test_a_swapped_run_directory_is_found_out(run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other")
    for name in ("signoff.json", "signoff-journal.jsonl"):
        shutil.copy(run / name, other / name)
    found = changed(verify(other))
    assert f"{other} holds another run: its plan was registered at another time than that of run" in found


def test_a_run_that_was_moved_still_holds(run: Path) -> None:
    moved = run.rename(run.with_name("elsewhere"))
    result = verify(moved)
    assert result.exit_code == 0
    assert "the run directory was called run when it was signed off" in result.stdout


def test_changed_and_lost_files_are_named_and_new_ones_noted(run: Path) -> None:
    (run / "report.md").write_text("SIGNED OFF")
    (run / "notes.txt").write_text("x")
    result = verify(run)
    assert changed(result) == [f"{run / 'report.md'} was changed"]
    assert "note: files that came since: notes.txt" in result.stdout
    (run / "report.md").unlink()
    assert changed(verify(run)) == [f"{run / 'report.md'} is gone"]


def test_a_damaged_journal_is_named(run: Path) -> None:
    raw = bytearray((run / "journal.sqlite").read_bytes())
    raw[4096:] = b"\xff" * (len(raw) - 4096)
    (run / "journal.sqlite").write_bytes(raw)
    assert any("damaged or not a journal" in line for line in changed(verify(run)))


# -- the ledger was changed --------------------------------------------------------------------


def test_a_ledger_may_grow(run: Path) -> None:
    assert cli("run", run.parent / "plan.toml", "--out", run.with_name("later")).exit_code in (0, 3)
    assert len((run.parent / "ledger.jsonl").read_text().splitlines()) > signoff_of(run)["ledger"]["lines"]
    assert verify(run).exit_code == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("SIGNED OFF", "DEGRADED"), "does not match its own hash"),
        (lambda text: text.splitlines(keepends=True)[0], "and had 2 when the sign-off was made"),
        (lambda text: "", "the attempt of model m is not in this ledger"),
    ],
)
def test_a_changed_ledger_is_named(run: Path, change: Callable[[str], str], said: str) -> None:
    ledger = run.parent / "ledger.jsonl"
    ledger.write_text(change(ledger.read_text()))
    assert any(said in line for line in changed(verify(run)))


def test_a_lost_or_another_ledger_is_named(run: Path, tmp_path: Path) -> None:
    kept = (run.parent / "ledger.jsonl").rename(tmp_path / "kept.jsonl")
    assert any("is not there; name it with --ledger" in line for line in changed(verify(run)))
    assert verify(run, "--ledger", kept).exit_code == 0
    other = make_run(tmp_path / "other").parent / "ledger.jsonl"
    found = changed(verify(run, "--ledger", other))
    assert any("up to line 2 it is not the ledger" in line for line in found)


# -- the sign-off was changed ------------------------------------------------------------------


#: Edits that do not hide one another, each with what names it.
EDITS: list[list[tuple[Callable[[Any], object], str]]] = [
    [
        (lambda d: d.update(reasons=["fine"]), "reasons[0]: signed"),
        (lambda d: d.update(valid_until="2099-01-01T00:00:00+00:00"), "valid_until"),
        (lambda d: d["run"].update(smallest_detectable_loss=0.001), "run.smallest_detectable_loss"),
        (lambda d: d["run"].update(headline="perfect"), "run.headline"),
        (lambda d: d["models"][0].update(lower=-0.001), "models[0].lower"),
        (lambda d: d["models"][0]["tasks"].update(copy="NON-INFERIOR"), "models[0].tasks.copy"),
        (lambda d: d["plan"]["values"]["decision"].update(alpha=0.01), "plan in the sign-off does not match"),
        (lambda d: d["journal"].update(samples=5), "journal.samples"),
        (lambda d: d["files"].update({"report.json": "0" * 64}), "report.json was changed"),
        (lambda d: d["ledger"]["attempts"][0].update(number=0), "ledger.attempts[0].number"),
        (lambda d: d["provenance"].update(git_commit="f" * 40), "provenance.git_commit"),
        (lambda d: d["policy"]["clauses"][0].update(found="0"), "policy clause decision.max_suite_margin"),
        (lambda d: d["policy"].update(name="strict"), "policy.name"),
    ],
    [
        (lambda d: d.update(signed="2099-01-01T00:00:00+00:00"), "still to come"),
        (lambda d: d["plan"].update(sha256="0" * 64), "plan in the sign-off does not match"),
        (lambda d: d["journal"].update(sha256="0" * 64), "content was changed"),
        (lambda d: d.update(ledger=None), "ledger.attempts"),
        (lambda d: d["policy"]["clauses"].pop(0), "policy clause decision.max_suite_margin"),
        (
            lambda d: d["policy"]["values"]["decision"].update(max_alpha=0.2),
            "policy in the sign-off does not",
        ),
    ],
    [(lambda d: d.update(report_sha256="0" * 64), "digest of the report")],
]


@pytest.mark.parametrize("edits", EDITS)
def test_an_edited_sign_off_is_found_out(run: Path, edits: list[Any]) -> None:
    for change, _ in edits:
        edit(run / "signoff.json", change)
    found = changed(verify(run))
    assert [said for _, said in edits if not any(said in line for line in found)] == [], found


def test_a_refusal_cannot_be_edited_into_a_sign_off(run: Path) -> None:
    strict = policy_file(run.parent / "strict.toml", {"decision": {"max_suite_margin": 0.01}})
    sign(run, strict, "--force")
    edit(run / "signoff.json", lambda d: d.update(decision="SIGNED OFF", exit_code=0, reasons=[]))
    assert 'decision: signed "SIGNED OFF", now "REFUSED"' in changed(verify(run))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a sign-off"),
        ("[]", "not a sign-off"),
        ("NaN", "not a sign-off"),
        ('{"kind": "equipoise sign-off"}', "decision: Field required"),
    ],
)
def test_what_is_no_sign_off_is_said(run: Path, text: str, said: str) -> None:
    (run / "signoff.json").write_text(text)
    assert said in error_of(verify(run), code=4)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(colour="red"),
        lambda d: d.update(exit_code="0"),
        lambda d: d["journal"].update(manifest="../../etc/passwd"),
        lambda d: d["plan"]["values"].update(x=float("nan")),
        lambda d: d.update(schema_version=2),
    ],
)
def test_a_sign_off_is_read_strictly(run: Path, change: Callable[[Any], object]) -> None:
    edit(run / "signoff.json", change)
    assert "not a sign-off" in error_of(verify(run), code=4)


@pytest.mark.parametrize(
    ("where", "first"), [("{", '"decision": "REFUSED",'), ('"run": {', '"id": "another",')]
)
def test_no_key_of_a_sign_off_is_there_twice(run: Path, where: str, first: str) -> None:
    path = run / "signoff.json"
    path.write_text(path.read_text().replace(where, where + first, 1))
    assert "is there twice" in error_of(verify(run), code=4)


def test_another_policy_than_signed_under_is_named_key_by_key(run: Path) -> None:
    strict = policy_file(run.parent / "easy2.toml", {"decision": {"max_alpha": 0.01}})
    found = changed(verify(run, "--policy", strict))
    assert "policy: decision.max_alpha: signed under 0.05, now 0.01" in found


def test_hostile_text_in_a_sign_off_is_shown_not_acted_on(run: Path) -> None:
    edit(run / "signoff.json", lambda d: d.update(reasons=["\x1b[2J\u202e"]))
    assert "\x1b" not in verify(run).output


def test_verification_is_told_to_machines_too(run: Path) -> None:
    assert json.loads(verify(run, "--json").stdout)["holds"] is True
    (run / "report.md").unlink()
    told = json.loads(verify(run, "--json").stdout)
    assert (told["holds"], told["exit_code"], told["changed"]) == (False, 4, [f"{run / 'report.md'} is gone"])


# -- time --------------------------------------------------------------------------------------


def test_a_sign_off_ends_when_its_policy_says(run: Path) -> None:
    path = run / "signoff.json"
    until = datetime.datetime.fromisoformat(signoff_of(run)["valid_until"])
    for seconds, code in ((-1, 0), (1, 3)):
        found = verify_signoff(path, run, Trust(), now=until + datetime.timedelta(seconds=seconds))
        assert found.exit_code == code
    assert found.changed == []
    assert found.ended == [f"it held until {until.isoformat()}; the policy wants a younger run"]


def test_a_run_that_is_too_old_is_not_signed_off(run: Path) -> None:
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    policy = load_policy(run.parent / "easy.toml")
    made = make_signoff(run, policy, manifest_name="x", now=now)
    assert made.signoff.exit_code == 3
    assert made.signoff.reasons == ("policy: origin.max_age_days: demanded at most 1, found 2.00",)
