"""A replayed run gives the recorded answers, and never another run's in their place."""

from pathlib import Path

import pytest
from run_doubles import GREEDY, EchoTask, item, key, new_journal, output, sample

from equipoise.evals.backends.replay import Replay
from equipoise.evals.errors import ParityError, RequestError, UsageError
from equipoise.evals.runner import Arm, RunOptions, WorkItem, run
from equipoise.evals.types import Request

ASK = Request(text="x", sampling=GREEDY)


def recorded(tmp_path: Path) -> Path:
    with new_journal(tmp_path) as j:
        j.put(sample(1))
        j.put(sample(2, outputs=(output("turn 0"), output("turn 1"))))
        j.put(sample(3, outputs=(), error="HTTP 500"))
        j.put(sample(4, outputs=(), error="refused: too long"))
    return tmp_path / "journal.sqlite"


async def test_recorded_answers_come_back_turn_by_turn(tmp_path: Path) -> None:
    async with Replay(recorded(tmp_path), arm="A") as backend:
        for _ in range(2):
            assert (await backend.complete(key(1, arm="B"), ASK)).text == "answer 1"
            assert (await backend.complete(key(2, arm="B"), ASK)).text == "turn 0"
            assert (await backend.complete(key(2, arm="B"), ASK)).text == "turn 1"


async def test_recorded_errors_stay_errors(tmp_path: Path) -> None:
    async with Replay(recorded(tmp_path)) as backend:
        with pytest.raises(RequestError, match="HTTP 500") as caught:
            await backend.complete(key(3), ASK)
        assert not caught.value.refused
        with pytest.raises(RequestError, match="too long") as caught:
            await backend.complete(key(4), ASK)
        assert caught.value.refused
        with pytest.raises(RequestError, match="no recorded answer"):
            await backend.complete(key(99), ASK)


def test_a_missing_run_or_arm_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no journal"):
        Replay(tmp_path / "none.sqlite")
    with pytest.raises(UsageError, match="arm 'Z'"):
        Replay(recorded(tmp_path), arm="Z")


def test_a_run_of_other_items_is_refused_before_the_first_one(tmp_path: Path) -> None:
    backend = Replay(recorded(tmp_path), arm="A")
    backend.verify({key(1, arm="B"): "h"})
    with pytest.raises(ParityError, match=r"1 of 2 items were not recorded.*'9'"):
        backend.verify({key(1, arm="B"): "h", key(9, arm="B"): "h"})
    with pytest.raises(ParityError, match=r"recorded with other content.*'1'"):
        backend.verify({key(1, arm="B"): "changed"})


async def test_a_replayed_run_has_the_same_answers_digest(tmp_path: Path) -> None:
    source = tmp_path / "live"
    with new_journal(source) as j:
        for i in range(5):
            j.put(sample(i))
        j.flush()
        recorded_digest = j.digest(answers_only=True)
    async with Replay(source / "journal.sqlite") as backend:
        with new_journal(tmp_path / "replayed") as j:
            work = [WorkItem(task=EchoTask(), item=item(i)) for i in range(5)]
            await run([Arm(model="m", name="A", backend=backend)], work, j, options=RunOptions())
            assert j.digest(answers_only=True) == recorded_digest
            assert j.digest() != recorded_digest
