"""The ledger keeps every attempt through crashes and crowds, and notices every change."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.evals import ledger_file
from equipoise.evals.errors import LedgerError
from equipoise.evals.ledger import UNFINISHED, WITHDRAWN, Attempt, Ledger, Registration, attempt_id


def registration(name: str, *, candidate: str = "served:c", **more: object) -> Registration:
    values: dict[str, object] = {
        "id": attempt_id(plan_hash="h", created_unix_s=float(sum(name.encode())), model="m"),
        "run": name,
        "model": "m",
        "candidate": candidate,
        "baseline": "served:b",
        "plan": "p",
        "plan_hash": "h" * 64,
        "alpha": 0.05,
        "max_attempts": 1,
        "margins": {"copy": 0.05},
        "suite_margin": 0.025,
    }
    return Registration(**(values | more))  # type: ignore[arg-type]


def outcomes(attempts: tuple[Attempt, ...]) -> list[tuple[str, str]]:
    return [(a.registration.run, a.outcome) for a in attempts]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "runs" / "ledger.jsonl")


@pytest.fixture
def three(ledger: Ledger) -> Ledger:
    """Three attempts, the first closed: four lines."""
    for name in ("one", "two", "three"):
        ledger.register(registration(name))
        if name == "one":
            ledger.close(registration("one").id, "DEGRADED")
    return ledger


def test_a_ledger_that_is_not_there_has_no_attempts_and_reading_makes_none(ledger: Ledger) -> None:
    assert ledger.attempts() == ()
    assert not ledger.path.exists()


def test_an_attempt_is_unfinished_until_it_is_closed(three: Ledger) -> None:
    assert outcomes(three.attempts()) == [("one", "DEGRADED"), ("two", UNFINISHED), ("three", UNFINISHED)]
    kept = three.attempts()[0].registration
    assert kept == registration("one")


def test_registering_again_finds_the_same_attempt_and_adds_no_line(three: Ledger) -> None:
    before = three.path.read_bytes()
    same = three.register(registration("two"))
    assert outcomes(same) == [("one", "DEGRADED"), ("two", UNFINISHED)]  # up to and with itself
    three.close(registration("one").id, "DEGRADED")
    assert three.path.read_bytes() == before


def test_another_candidate_or_baseline_has_a_count_of_its_own(three: Ledger) -> None:
    assert len(three.register(registration("four", candidate="served:other"))) == 1
    assert len(three.register(registration("five", baseline="served:other"))) == 1
    assert len(three.register(registration("six"))) == 4


def test_a_run_that_serves_another_candidate_when_resumed_is_refused(three: Ledger) -> None:
    before = three.path.read_bytes()
    with pytest.raises(
        LedgerError, match=r"'two'.*registered with the candidate served:c, and serves served:x"
    ):
        three.register(registration("two", candidate="served:x"))
    assert three.path.read_bytes() == before


def test_a_withdrawn_attempt_that_is_resumed_is_a_new_one_after_those_in_between(ledger: Ledger) -> None:
    ledger.register(registration("one"))
    ledger.close(registration("one").id, WITHDRAWN)
    ledger.register(registration("two"))
    same = ledger.register(registration("one"))
    assert outcomes(same) == [("one", WITHDRAWN), ("two", UNFINISHED), ("one", UNFINISHED)]
    assert len({a.registration.id for a in same}) == 3
    assert ledger.register(registration("one")) == same


def test_closing_what_was_never_registered_is_refused(three: Ledger) -> None:
    with pytest.raises(LedgerError, match="is not in the ledger"):
        three.close(registration("four").id, "DEGRADED")


@pytest.mark.parametrize("bad", [{"run": "a\nb"}, {"model": ""}, {"alpha": float("nan")}, {"run": "x" * 513}])
def test_what_could_not_be_read_again_is_not_written(three: Ledger, bad: dict[str, object]) -> None:
    before = three.path.read_bytes()
    with pytest.raises(LedgerError):
        three.register(registration("four", **bad))
    assert three.path.read_bytes() == before


# -- changes are noticed -----------------------------------------------------------------------


def changed(ledger: Ledger, change: object) -> str:
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    change(lines)  # type: ignore[operator]
    ledger.path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError) as caught:
        ledger.attempts()
    with pytest.raises(LedgerError):
        ledger.register(registration("later"))
    assert ledger.path.read_bytes() == b"".join(lines), "a broken ledger is left as it is"
    assert "restore the file from a copy" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_an_edited_line_is_named(three: Ledger, number: int) -> None:
    def edit(lines: list[bytes]) -> None:
        at = number - 1
        lines[at] = lines[at].replace(b'"unix_s":1', b'"unix_s":2', 1)

    assert f"line {number} does not match its own hash: it was edited" in changed(three, edit)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_removed_line_is_named_by_the_one_after_it(three: Ledger, number: int) -> None:
    message = changed(three, lambda lines: lines.pop(number - 1))
    assert f"line {number} does not follow" in message
    assert "removed, added or moved" in message


def test_swapped_and_doubled_lines_are_named(three: Ledger) -> None:
    whole = three.path.read_bytes()
    assert "line 3 does not follow line 2" in changed(three, lambda x: x.insert(2, x.pop()))
    three.path.write_bytes(whole)
    assert "line 3 does not follow line 2" in changed(three, lambda x: x.insert(2, x[1]))


def test_an_edit_with_a_hash_made_to_match_breaks_the_next_line(three: Ledger) -> None:
    def edit(lines: list[bytes]) -> None:
        body = json.loads(lines[1])
        body["outcome"] = "SIGNED OFF"
        del body["sha256"]
        body["sha256"] = ledger_file._sha256(body)
        lines[1] = ledger_file.canonical_json(body).encode() + b"\n"

    assert "line 3 does not follow line 2" in changed(three, edit)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"not json\n", "line 5 is not JSON"),
        (b"[]\n", "line 5 is not a JSON object"),
        (b"\n", "line 5 is not JSON"),
        (b"[" * 60_000 + b"\n", "line 5 is not JSON"),
        (b"{}\n", "line 5 does not match its own hash"),
        (b"x" * 70_000 + b"\n", "line 5 has 70000 bytes, over the limit"),
        (b"\xff\n", "line 5 is not JSON"),
        (b'{"a":NaN}\n', "line 5 is not JSON"),
    ],
)
def test_whatever_else_is_in_the_file_is_named(three: Ledger, text: bytes, what: str) -> None:
    assert what in changed(three, lambda lines: lines.append(text))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (
            {"event": "closed", "schema": 1, "unix_s": 1.0, "id": "x", "outcome": "DEGRADED"},
            "no line registers",
        ),
        ({"event": "forgiven", "schema": 1, "unix_s": 1.0}, "its event is 'forgiven'"),
        ({"event": "closed", "schema": 2, "unix_s": 1.0}, "its schema is not 1"),
        ({"event": "registered", "schema": 1, "unix_s": 1.0, "id": "x"}, "its keys are id"),
    ],
)
def test_a_line_well_formed_but_senseless_is_named(three: Ledger, body: dict[str, object], what: str) -> None:
    with ledger_file.writing(three.path) as (fd, lines):
        ledger_file.append(fd, lines, body, path=three.path)
    with pytest.raises(LedgerError, match=f"line 5 is not a line of this version's ledger.*{what}"):
        three.attempts()


def test_a_file_that_is_too_large_or_no_file_is_refused_unread(
    three: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(three.path.with_name("pipe"))
    with pytest.raises(LedgerError, match="not a regular file"):
        Ledger(three.path.with_name("pipe")).attempts()
    with pytest.raises(LedgerError, match="cannot write the ledger"):
        Ledger(three.path.parent).register(registration("one"))
    monkeypatch.setattr(ledger_file, "MAX_FILE_BYTES", 100)
    with pytest.raises(LedgerError, match="bytes are over the limit of 100"):
        three.attempts()


# -- crashes and crowds ------------------------------------------------------------------------


def test_wherever_a_write_was_torn_no_earlier_attempt_is_lost(tmp_path: Path) -> None:
    whole = Ledger(tmp_path / "whole.jsonl")
    for name in ("one", "two"):
        whole.register(registration(name))
    raw = whole.path.read_bytes()
    first = raw.index(b"\n") + 1
    for size in (*range(first, len(raw) - 1, 11), len(raw) - 1):
        torn = Ledger(tmp_path / "torn.jsonl")
        torn.path.write_bytes(raw[:size])
        names = [run for run, _ in outcomes(torn.attempts())]
        # The last line lacks nothing but its newline: it is kept.
        assert names == (["one", "two"] if size == len(raw) - 1 else ["one"]), size
        assert torn.path.read_bytes() == raw[:size], "reading mends nothing"
        torn.register(registration("three"))
        assert [run for run, _ in outcomes(torn.attempts())] == [*names, "three"]
        assert torn.path.read_bytes().startswith(raw[:first])


_REGISTER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_ledger import registration
from equipoise.evals.ledger import Ledger, attempt_id
ledger = Ledger(Path({path!r}))
for i in range({count}):
    r = registration({name!r} + str(i), id=attempt_id(plan_hash={name!r}, created_unix_s=float(i), model="m"))
    ledger.register(r)
    print(r.run, flush=True)  # it is on disk
"""


def start(ledger: Ledger, name: str, count: int) -> subprocess.Popen[str]:
    code = _REGISTER.format(tests=str(Path(__file__).parent), path=str(ledger.path), name=name, count=count)
    return subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True)


def test_two_processes_that_write_at_once_lose_nothing_and_break_nothing(ledger: Ledger) -> None:
    processes = [start(ledger, name, 40) for name in ("a", "b")]
    said = [p.communicate(timeout=60)[0].split() for p in processes]
    assert [p.returncode for p in processes] == [0, 0]
    found = [run for run, _ in outcomes(ledger.attempts())]
    assert sorted(found) == sorted([*said[0], *said[1]])
    assert len(found) == 80
    assert found != sorted(found), "they did not write at once"


def test_kill_9_while_writing_loses_no_attempt_that_was_saved(ledger: Ledger) -> None:
    saved: list[str] = []
    for round_ in range(4):
        process = start(ledger, f"r{round_}-", 100_000)
        assert process.stdout is not None
        saved += [process.stdout.readline().strip() for _ in range(5 + 7 * round_)]
        process.send_signal(signal.SIGKILL)
        saved += process.communicate(timeout=20)[0].split()  # printed before the kill
        found = [run for run, _ in outcomes(ledger.attempts())]
        assert set(saved) <= set(found)
        assert len(found) <= len(saved) + round_ + 1  # one a round may be on disk and unsaid
    ledger.register(registration("after"))
    assert outcomes(ledger.attempts())[-1] == ("after", UNFINISHED)


def test_a_ledger_held_for_long_is_an_error_that_names_it(
    three: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_file, "LOCK_TIMEOUT_S", 0.05)
    with (
        ledger_file.writing(three.path),
        pytest.raises(LedgerError, match="another process holds the ledger"),
    ):
        three.attempts()
