"""The journal keeps every sample whole, settles each key once, and says what is wrong with a file."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_doubles import item, key, new_journal, output, sample

from equipoise.evals import journal as journal_module
from equipoise.evals.errors import JournalError, PlanError, UsageError
from equipoise.evals.export import export_jsonl, export_parquet
from equipoise.evals.journal import Journal
from equipoise.evals.sample_json import sample_from_json, sample_to_json
from equipoise.evals.types import Output, Sample, SampleKey, TopLogprobs

FINITE = st.floats(allow_nan=False, allow_infinity=False)
# json joins an escaped surrogate pair into one character, and no JSON reply can hold an unjoined one.
TEXT = st.text(st.characters(exclude_categories=()), max_size=40).map(
    lambda s: (
        s.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        if not any("\ud800" <= c <= "\udfff" for c in s)
        else "".join(c for c in s if not "\udc00" <= c <= "\udfff")
    )
)
COUNT = st.integers(0, 2**40)


@st.composite
def outputs(draw: st.DrawFn) -> Output:
    maybe = draw(st.booleans())
    return Output(
        text=draw(st.none() | TEXT),
        finish_reason=draw(TEXT),
        prompt_tokens=draw(COUNT),
        completion_tokens=draw(COUNT),
        latency_s=draw(FINITE),
        cached_tokens=draw(st.none() | COUNT),
        token_ids=tuple(draw(st.lists(COUNT, max_size=4))) if maybe else None,
        output_logprobs=tuple(draw(st.lists(FINITE, max_size=4))) if maybe else None,
        output_tokens=tuple(draw(st.lists(TEXT, max_size=4))) if maybe else None,
        prompt_logprobs_start=draw(st.none() | COUNT),
        prompt_logprobs=tuple(draw(st.lists(st.none() | FINITE, max_size=4))) if maybe else None,
        prompt_token_ids=tuple(draw(st.lists(COUNT, max_size=4))) if maybe else None,
        prompt_top1_ids=tuple(draw(st.lists(st.none() | COUNT, max_size=4))) if maybe else None,
        prompt_top_logprobs=TopLogprobs.of([3, 9], [[(5, -0.25), (0, -3.0)], [(7, 0.0)]]) if maybe else None,
    )


SAMPLES = st.builds(
    Sample,
    key=st.just(key(0)),
    content_hash=st.just("h"),
    outputs=st.lists(outputs(), max_size=3).map(tuple),
    attempts=COUNT,
    started_unix_s=FINITE,
    latency_s=FINITE,
    error=st.none() | TEXT,
)


@given(SAMPLES)
def test_a_sample_survives_json(s: Sample) -> None:
    text = sample_to_json(s)
    assert text.isascii()
    assert "\n" not in text
    assert sample_from_json(text) == s


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SAMPLES)
def test_a_sample_survives_the_file(tmp_path: Path, s: Sample) -> None:
    directory = tmp_path / os.urandom(8).hex()
    with new_journal(directory) as j:
        j.put(s)
    with Journal.read(directory / "journal.sqlite") as j:
        assert list(j.samples()) == [s]


@pytest.mark.parametrize("text", ["", "\0", "\ud800", "a\0b\udfffc", "\u2028\r\n\x1b[31m", "x" * 5_000_000])
def test_odd_and_large_text_survives_the_file(tmp_path: Path, text: str) -> None:
    s = sample(1, outputs=(output(text),), error=None)
    with new_journal(tmp_path) as j:
        j.put(s)
        j.flush()
        assert j.get(s.key) == s


def test_null_text_is_not_empty_text(tmp_path: Path) -> None:
    with new_journal(tmp_path) as j:
        j.put(sample(1, outputs=(output(None),)))
        j.put(sample(2, outputs=(output(""),)))
        j.flush()
        assert [s.outputs[0].text for s in j.samples()] == [None, ""]


def test_a_number_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    with new_journal(tmp_path) as j, pytest.raises(JournalError, match="item '1'"):
        j.put(sample(1, outputs=(output(output_logprobs=(float("nan"),)),)))


def test_metadata_is_on_disk_before_the_first_sample(tmp_path: Path) -> None:
    j = new_journal(tmp_path)
    seen = Journal.read(tmp_path / "journal.sqlite")
    assert (seen.metadata.plan_hash, seen.metadata.plan_text, seen.metadata.provenance) == (
        "plan-1",
        "[plan]",
        {"a": 1},
    )
    seen.close()
    j.close()


def test_an_answered_key_is_never_replaced(tmp_path: Path) -> None:
    with new_journal(tmp_path) as j:
        j.put(sample(1))
        with pytest.raises(JournalError, match=r"item '1'.*settled"):
            j.put(sample(1, outputs=(output("another"),)))
        j.put(sample(2, outputs=(), error="refused: too long"))
        with pytest.raises(JournalError, match="settled"):
            j.put(sample(2))
    with Journal.resume(tmp_path / "journal.sqlite", plan_hash="plan-1") as j:
        with pytest.raises(JournalError, match="settled"):
            j.put(sample(1))
        assert [s.outputs for s in j.samples()] == [(output("answer 1"),), ()]


def test_the_file_itself_refuses_to_replace_an_answer(tmp_path: Path) -> None:
    """Second line of defence: the statement, not only the check before it."""
    j = new_journal(tmp_path)
    j.put(sample(1))
    j.flush()
    j._final.clear()
    j.put(sample(1, outputs=(output("another"),)))
    with pytest.raises(JournalError, match="replaced"):
        j.flush()
    with pytest.raises(JournalError):
        j.close()
    with Journal.read(tmp_path / "journal.sqlite") as seen:
        assert [s.outputs[0].text for s in seen.samples()] == ["answer 1"]


def test_a_failed_row_is_replaced_by_a_later_answer(tmp_path: Path) -> None:
    with new_journal(tmp_path) as j:
        j.put(sample(1, outputs=(), error="HTTP 500", attempts=4))
        j.flush()
        assert j.failed_keys() == {key(1)}
    with Journal.resume(tmp_path / "journal.sqlite", plan_hash="plan-1") as j:
        j.put(sample(1))
        j.flush()
        assert list(j.samples()) == [sample(1)]
        assert j.failed_keys() == set()
        assert j.final_keys() == {key(1): "h"}


def test_another_plan_is_refused_with_both_hashes(tmp_path: Path) -> None:
    new_journal(tmp_path).close()
    with pytest.raises(PlanError, match=r"plan-1.*plan-2"):
        Journal.resume(tmp_path / "journal.sqlite", plan_hash="plan-2")
    with pytest.raises(PlanError, match=r"plan-1.*plan-2"):
        Journal.read(tmp_path / "journal.sqlite", plan_hash="plan-2")


def test_a_second_run_in_one_directory_is_refused(tmp_path: Path) -> None:
    with new_journal(tmp_path):
        with pytest.raises(JournalError, match=rf"another run.*{os.getpid()}"):
            Journal.resume(tmp_path / "journal.sqlite", plan_hash="plan-1")
        with pytest.raises(JournalError, match="another run"):
            new_journal(tmp_path)
    with pytest.raises(JournalError, match="--resume"):
        new_journal(tmp_path)


def test_a_killed_writer_leaves_no_stale_lock_and_loses_nothing_saved(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
            import sys, time
            sys.path.insert(0, {str(Path(__file__).parent / "doubles")!r})
            from pathlib import Path
            from run_doubles import new_journal, sample
            j = new_journal(Path({str(tmp_path)!r}))
            for i in range(300):
                j.put(sample(i))
            j.flush()
            print(j.saved, flush=True)
            time.sleep(60)
            """),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    saved = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait()
    with Journal.read(tmp_path / "journal.sqlite") as j:  # before anything repairs it
        assert j.count() == saved == 300
    with Journal.resume(tmp_path / "journal.sqlite", plan_hash="plan-1") as j:
        assert j.get(key(299)) == sample(299)


def test_a_full_disk_stops_the_run_and_keeps_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = journal_module.connect

    def nearly_full(path: Path, *, writable: bool) -> sqlite3.Connection:
        db = real(path, writable=writable)
        db.execute("PRAGMA max_page_count = 60")
        return db

    monkeypatch.setattr(journal_module, "connect", nearly_full)
    j = new_journal(tmp_path)
    j.put(sample(0))
    j.flush()
    j.put(sample(1, outputs=(output("x" * 1_000_000),)))
    with pytest.raises(JournalError, match=r"journal\.sqlite: cannot save .*full.*--resume"):
        j.flush()
    with pytest.raises(JournalError, match="cannot save"):
        j.put(sample(2))
    with pytest.raises(JournalError, match="cannot save"):
        j.close()
    with Journal.read(tmp_path / "journal.sqlite") as seen:
        assert [s.key for s in seen.samples()] == [key(0)]
        assert j.saved == 1


@pytest.mark.parametrize("damage", ["not sqlite", "other sqlite", "torn", "bad row", "newer schema"])
def test_a_damaged_journal_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal.sqlite"
    if damage == "not sqlite":
        path.write_bytes(b"hello" * 1000)
    elif damage == "other sqlite":
        sqlite3.connect(path).execute("CREATE TABLE x (y)").connection.close()
    else:
        with new_journal(tmp_path) as j:
            for i in range(500):
                j.put(sample(i))
        if damage == "torn":
            data = bytearray(path.read_bytes())
            data[8192:20480] = os.urandom(12288)
            path.write_bytes(data)
        else:
            db = sqlite3.connect(path)
            statement = (
                "UPDATE samples SET body = '{}'" if damage == "bad row" else "PRAGMA user_version = 99"
            )
            db.execute(statement)
            db.commit()
            db.close()
    with pytest.raises(JournalError, match=r"journal\.sqlite"):
        list(Journal.resume(path, plan_hash="plan-1").samples())


def test_a_missing_journal_is_named(tmp_path: Path) -> None:
    for opened in (lambda p: Journal.read(p), lambda p: Journal.resume(p, plan_hash="x")):
        with pytest.raises(UsageError, match="no journal there"):
            opened(tmp_path / "none.sqlite")


def test_the_digest_does_not_depend_on_the_order_but_on_the_content(tmp_path: Path) -> None:
    digests = []
    for name, order in (("a", range(20)), ("b", reversed(range(20)))):
        with new_journal(tmp_path / name) as j:
            for i in order:
                j.put(sample(i))
            j.flush()
            digests.append(j.digest())
    assert digests[0] == digests[1]
    with Journal.resume(tmp_path / "b" / "journal.sqlite", plan_hash="plan-1") as j:
        j.put(sample(20))
        j.flush()
        assert j.digest() != digests[0]


def test_the_answers_digest_leaves_out_times_only(tmp_path: Path) -> None:
    digests = []
    for name, s in (
        ("a", sample(1)),
        (
            "b",
            sample(
                1,
                latency_s=9.0,
                attempts=3,
                started_unix_s=99.0,
                outputs=(output("answer 1", latency_s=7.0),),
            ),
        ),
        ("c", sample(1, outputs=(output("answer 2"),))),
    ):
        with new_journal(tmp_path / name) as j:
            j.put(s)
            j.flush()
            digests.append(j.digest(answers_only=True))
    assert digests[0] == digests[1] != digests[2]


def test_samples_are_chosen_by_model_arm_and_task(tmp_path: Path) -> None:
    with new_journal(tmp_path) as j:
        for arm in "AB":
            for task in ("t", "u"):
                j.put(sample(1, arm=arm, task=task))
        j.flush()
        assert [s.key for s in j.samples(arm="B", task="u")] == [key(1, arm="B", task="u")]
        assert (j.count(), j.count(arm="A"), j.count(model="none")) == (4, 2, 0)


def test_records_are_only_added(tmp_path: Path) -> None:
    with new_journal(tmp_path) as j:
        j.record("server", {"port": 1})
    with Journal.resume(tmp_path / "journal.sqlite", plan_hash="plan-1") as j:
        j.record("server", {"port": 2})
        assert [value for _, _, value in j.records("server")] == [{"port": 1}, {"port": 2}]


def test_a_closed_journal_is_one_file_readable_where_nothing_can_be_written(tmp_path: Path) -> None:
    with new_journal(tmp_path) as j:
        j.put(sample(1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["journal.sqlite", "journal.sqlite.lock"]
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_exports_hold_every_sample_whole(tmp_path: Path) -> None:
    samples = [sample(i, outputs=(output("t\0\ud800" * i),)) for i in range(3)]
    samples.append(sample(3, outputs=(), error="HTTP 500"))
    with new_journal(tmp_path) as j:
        for s in samples:
            j.put(s)
        j.flush()
        assert export_jsonl(j, tmp_path / "s.jsonl") == 4
        assert export_parquet(j, tmp_path / "s.parquet") == 4
    lines = (tmp_path / "s.jsonl").read_text().splitlines()
    assert [sample_from_json(line) for line in lines] == samples
    assert all(json.loads(line) for line in lines)
    table = pq.read_table(tmp_path / "s.parquet").to_pylist()
    assert [sample_from_json(row["sample_json"]) for row in table] == samples
    assert [row["error"] for row in table] == [None, None, None, "HTTP 500"]


def test_rows_are_saved_in_groups_not_one_by_one(tmp_path: Path) -> None:
    """2,000 rows, one commit each, would take far longer than this on any disk that syncs."""
    with new_journal(tmp_path) as j:
        started = time.monotonic()
        for i in range(2000):
            j.put(sample(i))
        j.flush()
        assert j.saved == 2000
        assert time.monotonic() - started < 5


def test_a_key_that_cannot_be_printed_is_refused(tmp_path: Path) -> None:
    bad = SampleKey(model="m", arm="A", task="t", item_id="a\0b")
    with new_journal(tmp_path) as j, pytest.raises(JournalError, match="cannot be printed"):
        j.put(sample(0, key=bad))
    assert item(0).id == "0"
