"""Everything is asked once, in all arms alike; failures are never answers, and nothing is lost."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from run_doubles import (
    EchoTask,
    FakeServer,
    ScriptedBackend,
    always,
    generated,
    item,
    key,
    new_journal,
    output,
    sample,
)

from equipoise.evals.backends.sglang_http import SglangHttp
from equipoise.evals.errors import (
    InterruptedRunError,
    JournalError,
    RequestError,
    ServerError,
    UsageError,
)
from equipoise.evals.journal import Journal
from equipoise.evals.runner import Arm, RunOptions, RunSummary, WorkItem, run
from equipoise.evals.schedule import interleave
from equipoise.evals.stopping import StopRequest
from equipoise.evals.types import Backend, Output, Request, SampleKey

QUICK = RunOptions(backoff_s=0.01, max_backoff_s=0.02, timeout_s=5, concurrency=8, block_items=4)


def work(n: int, task: EchoTask | None = None) -> list[WorkItem]:
    task = task or EchoTask()
    return [WorkItem(task=task, item=i) for i in task.items(n, 0)]


def arm(name: str, backend: Backend, **kw: Any) -> Arm:
    return Arm(model="m", name=name, backend=backend, **kw)


async def run_once(
    directory: Path, arms: Sequence[Arm], items: Sequence[WorkItem], options: RunOptions = QUICK, **kw: Any
) -> RunSummary:
    path = directory / "journal.sqlite"
    journal = Journal.resume(path, plan_hash="plan-1") if path.exists() else new_journal(directory)
    with journal:
        return await run(arms, items, journal, options=options, **kw)


def stored(directory: Path) -> Journal:
    return Journal.read(directory / "journal.sqlite")


# -- the schedule ------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(0, 60), st.integers(1, 20), st.integers(0, 5))
def test_in_every_prefix_the_arms_differ_by_at_most_a_block(
    n_arms: int, n_items: int, block: int, seed: int
) -> None:
    counts = Counter(dict.fromkeys(range(n_arms), 0))
    for a, _ in chain.from_iterable(interleave(n_arms, n_items, block_items=block, seed=seed)):
        counts[a] += 1
        assert max(counts.values()) - min(counts.values()) <= block
    assert set(counts.values()) == {n_items}


@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 9), st.integers(0, 5))
def test_a_block_asks_the_same_items_in_every_arm_and_each_once(
    n_arms: int, n_items: int, block: int, seed: int
) -> None:
    seen: list[int] = []
    for pairs in interleave(n_arms, n_items, block_items=block, seed=seed):
        by_arm = [sorted(i for a, i in pairs if a == one) for one in range(n_arms)]
        assert all(items == by_arm[0] for items in by_arm)
        seen += by_arm[0]
    assert sorted(seen) == list(range(n_items))


def test_the_order_depends_on_the_seed_alone() -> None:
    first, again, other = (interleave(3, 50, block_items=8, seed=s) for s in (1, 1, 2))
    assert first == again != other
    assert [i for a, i in chain.from_iterable(first) if a == 0] != sorted(range(50))


# -- a plain run -------------------------------------------------------------------------------


async def test_every_item_is_asked_once_in_every_arm(tmp_path: Path) -> None:
    backends = {name: ScriptedBackend() for name in ("A1", "A2", "B")}
    summary = await run_once(tmp_path, [arm(n, b) for n, b in backends.items()], work(40))
    for name, backend in backends.items():
        assert Counter(backend.asked) == Counter({key(i, arm=name): 1 for i in range(40)})
    assert [(a.planned, a.answered, a.errored, a.refused, a.skipped) for a in summary.arms] == [
        (40, 40, 0, 0, 0)
    ] * 3
    with stored(tmp_path) as j:
        assert {s.key: s.outputs[0].text for s in j.samples(arm="B")} == {
            key(i, arm="B"): f"{i}/0" for i in range(40)
        }


async def test_a_fast_arm_waits_for_a_slow_one(tmp_path: Path) -> None:
    lead = 0

    def answer(k: SampleKey, r: Request, n: int) -> Output:
        nonlocal lead
        lead = max(lead, len(fast.asked) - len(slow.asked))
        return output()

    fast, slow = ScriptedBackend(answer), ScriptedBackend(delay_s=0.02)
    await run_once(tmp_path, [arm("A", fast), arm("B", slow)], work(100))
    assert len(fast.asked) == len(slow.asked) == 100
    assert 4 < lead <= (QUICK.max_lead_blocks + 1) * QUICK.block_items


async def test_concurrency_is_bounded_per_arm_and_in_total(tmp_path: Path) -> None:
    backends = [ScriptedBackend(delay_s=0.005) for _ in range(2)]
    arms = [arm(n, b) for n, b in zip("AB", backends, strict=True)]
    await run_once(tmp_path / "a", arms, work(60))
    assert [b.most_in_flight for b in backends] == [8, 8]
    options = RunOptions(concurrency=8, total_concurrency=3)
    both = ScriptedBackend(delay_s=0.005)
    await run_once(tmp_path / "b", [arm("A", both), arm("B", both)], work(30), options)
    assert both.most_in_flight <= 3


async def test_the_turns_of_an_item_follow_each_other(tmp_path: Path) -> None:
    backend = ScriptedBackend()
    await run_once(tmp_path, [arm("A", backend)], work(5, EchoTask(turns=3)))
    with stored(tmp_path) as j:
        for s in j.samples():
            assert [o.text for o in s.outputs] == [f"{s.key.item_id}/{t}" for t in range(3)]
            assert s.attempts == 3


async def test_repeats_are_samples_of_their_own(tmp_path: Path) -> None:
    items = [WorkItem(task=EchoTask(), item=item(1), repeat=r) for r in range(3)]
    await run_once(tmp_path, [arm("A", ScriptedBackend())], items)
    with stored(tmp_path) as j:
        assert [s.key.repeat for s in j.samples()] == [0, 1, 2]


async def test_an_empty_or_doubled_work_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to ask"):
        await run_once(tmp_path, [arm("A", ScriptedBackend())], [])
    with pytest.raises(UsageError, match="twice"):
        await run_once(tmp_path, [arm("A", ScriptedBackend())], work(2) + work(1))


# -- failures ----------------------------------------------------------------------------------


async def test_passing_failures_are_retried_and_counted(tmp_path: Path) -> None:
    failing = Counter[str]()

    def answer(k: SampleKey, r: Request, n: int) -> Output:
        failing[k.item_id] += 1
        if failing[k.item_id] < 3:
            raise RequestError("http://x: HTTP 503", retryable=True)
        return output()

    await run_once(tmp_path, [arm("A", ScriptedBackend(answer))], work(12))
    with stored(tmp_path) as j:
        assert [(s.error, s.attempts) for s in j.samples()] == [(None, 3)] * 12


async def test_an_item_that_keeps_failing_is_an_error_and_never_an_answer(tmp_path: Path) -> None:
    def answer(k: SampleKey, r: Request, n: int) -> Output:
        if k.item_id == "3":
            raise RequestError("http://x: HTTP 500: boom", retryable=True)
        return output()

    summary = await run_once(tmp_path, [arm("A", ScriptedBackend(answer))], work(12))
    assert (summary.arms[0].answered, summary.arms[0].errored) == (11, 1)
    with stored(tmp_path) as j:
        failed = j.get(key(3))
        assert failed is not None
        assert (failed.outputs, failed.attempts, failed.error) == ((), 4, "http://x: HTTP 500: boom")
        assert j.failed_keys() == {key(3)}


async def test_a_failure_in_a_later_turn_keeps_the_earlier_ones_and_asks_only_that_turn_again(
    tmp_path: Path,
) -> None:
    prompts: list[str | None] = []

    def answer(k: SampleKey, r: Request, n: int) -> Output:
        prompts.append(r.text)
        if r.text == "0/1":
            raise RequestError("http://x: HTTP 500", retryable=True)
        return output(r.text)

    items = [*work(1, EchoTask(turns=2)), WorkItem(task=EchoTask("other"), item=item(1, task="other"))]
    await run_once(tmp_path, [arm("A", ScriptedBackend(answer))], items)
    with stored(tmp_path) as j:
        failed = j.get(key(0))
        assert failed is not None
        assert ([o.text for o in failed.outputs], failed.error) == (["0/0"], "http://x: HTTP 500")
    assert prompts.count("0/0") == 1
    assert prompts.count("0/1") == 4


async def test_a_refusal_is_an_outcome_that_is_never_asked_again(tmp_path: Path) -> None:
    def answer(k: SampleKey, r: Request, n: int) -> Output:
        raise RequestError("http://x: HTTP 400: longer than the context", refused=True)

    backend = ScriptedBackend(answer)
    summary = await run_once(tmp_path, [arm("A", backend)], work(20))
    assert (summary.arms[0].refused, summary.arms[0].errored, len(backend.asked)) == (20, 0, 20)
    with stored(tmp_path) as j:
        assert all(s.refused and s.error is not None and "longer than" in s.error for s in j.samples())
    await run_once(tmp_path, [arm("A", backend)], work(20))
    assert len(backend.asked) == 20


async def test_null_content_is_an_answer_of_its_own_kind(tmp_path: Path) -> None:
    await run_once(tmp_path, [arm("A", ScriptedBackend(lambda k, r, n: output(None)))], work(3))
    with stored(tmp_path) as j:
        assert [(s.error, s.outputs[0].text) for s in j.samples()] == [(None, None)] * 3


async def test_a_hanging_backend_times_out(tmp_path: Path) -> None:
    def answer(k: SampleKey, r: Request, n: int) -> Output:
        return output()

    backend = ScriptedBackend(answer, delay_s=30)
    options = RunOptions(timeout_s=0.05, max_attempts=2, backoff_s=0.01)
    with pytest.raises(ServerError, match=r"arm 'A' at http://scripted.*no reply within 0\.05 s"):
        await run_once(tmp_path, [arm("A", backend)], work(9), options)


async def test_retry_after_pauses_the_whole_arm(tmp_path: Path) -> None:
    times: list[float] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        times.append(time.monotonic())
        if len(times) == 6:
            return web.json_response({}, status=429, headers={"Retry-After": "1"})
        await asyncio.sleep(0.01)
        return web.json_response(generated())

    async with FakeServer(handler).running() as server:
        backend = SglangHttp(server.url)
        options = RunOptions(concurrency=2, backoff_s=0.01, block_items=4)
        summary = await run_once(tmp_path, [arm("A", backend)], work(20), options)
        await backend.close()
    assert summary.arms[0].answered == 20
    limited = times[5]
    # Whatever was under way may still arrive; then nobody asks for a second.
    assert not [t for t in times if limited + 0.3 < t < limited + 0.95]
    assert len([t for t in times if t > limited + 0.95]) >= 12


async def test_a_retry_after_beyond_reason_fails_the_item_at_once(tmp_path: Path) -> None:
    def answer(k: SampleKey, r: Request, n: int) -> Output:
        if k.item_id == "1":
            raise RequestError("http://x: HTTP 429", retryable=True, retry_after_s=86400)
        return output()

    started = time.monotonic()
    await run_once(tmp_path, [arm("A", ScriptedBackend(answer))], work(6))
    assert time.monotonic() - started < 5
    with stored(tmp_path) as j:
        assert j.failed_keys() == {key(1)}


async def test_a_bug_in_a_task_names_the_item(tmp_path: Path) -> None:
    class Broken(EchoTask):
        def next_request(self, item: Any, outputs: Any) -> Request | None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await run_once(tmp_path, [arm("A", ScriptedBackend())], work(1, Broken()))
    assert "arm 'A'" in caught.value.__notes__[0]
    assert "item '0'" in caught.value.__notes__[0]


# -- when to stop the run ----------------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 401, 500])
async def test_a_wrong_url_costs_a_handful_of_requests_and_no_arm_starts(tmp_path: Path, status: int) -> None:
    good = ScriptedBackend()
    async with FakeServer(always({"error": "no such path"}, status=status)).running() as server:
        wrong = SglangHttp(server.url)
        with pytest.raises(ServerError, match=rf"arm 'B' at http://127.*HTTP {status}.*check the URL"):
            await run_once(tmp_path, [arm("A", good), arm("B", wrong)], work(2000))
        await wrong.close()
        assert len(server.bodies) <= (12 if status == 500 else 3)
    assert len(good.asked) == 1


async def test_a_url_where_nothing_listens_fails_at_once(tmp_path: Path) -> None:
    async with FakeServer(always({})).running() as server:
        url = server.url
    backend = SglangHttp(url)
    started = time.monotonic()
    with pytest.raises(ServerError, match=r"arm 'A' at http://127\.0\.0\.1:.*cannot connect"):
        await run_once(tmp_path, [arm("A", backend)], work(2000), RunOptions())
    await backend.close()
    assert time.monotonic() - started < 2


async def test_one_unlucky_first_item_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    order = [i for _, i in chain.from_iterable(interleave(1, 50, block_items=4, seed=1))]

    def answer(k: SampleKey, r: Request, n: int) -> Output:
        if k.item_id == str(order[0]):
            raise RequestError("http://x: HTTP 500", retryable=True)
        return output()

    summary = await run_once(tmp_path, [arm("A", ScriptedBackend(answer))], work(50))
    assert (summary.arms[0].answered, summary.arms[0].errored) == (49, 1)


async def test_a_server_that_fails_item_after_item_stops_the_run(tmp_path: Path) -> None:
    def answer(k: SampleKey, r: Request, n: int) -> Output:
        if n > 100:
            raise RequestError("http://x: HTTP 500: broken", retryable=True)
        return output()

    backend = ScriptedBackend(answer)
    with pytest.raises(ServerError, match=r"arm 'A'.*8 items in a row.*HTTP 500: broken.*--resume"):
        await run_once(tmp_path, [arm("A", backend)], work(4000))
    assert len(backend.asked) < 100 + 4 * 20
    with stored(tmp_path) as j:
        assert len(j.final_keys()) == 100


async def test_scattered_failures_do_not_stop_the_run(tmp_path: Path) -> None:
    bad = {str(i) for i in random.Random(1).sample(range(600), 30)}

    def answer(k: SampleKey, r: Request, n: int) -> Output:
        if k.item_id in bad:
            raise RequestError("http://x: HTTP 500", retryable=True)
        return output()

    summary = await run_once(tmp_path, [arm("A", ScriptedBackend(answer))], work(600))
    assert (summary.arms[0].answered, summary.arms[0].errored) == (570, 30)


async def test_items_that_failed_before_can_fail_again_without_stopping_a_resumed_run(tmp_path: Path) -> None:
    bad = {str(i) for i in range(12)}

    def answer(k: SampleKey, r: Request, n: int) -> Output:
        if k.item_id in bad:
            raise RequestError("http://x: HTTP 500", retryable=True)
        return output()

    backend = ScriptedBackend(answer)
    options = RunOptions(concurrency=4, backoff_s=0.001, block_items=4, max_failures_in_a_row=1000)
    await run_once(tmp_path, [arm("A", backend)], work(200), options)
    backend.asked.clear()
    summary = await run_once(tmp_path, [arm("A", backend)], work(200))
    assert (summary.arms[0].skipped, summary.arms[0].errored) == (188, 12)
    assert {k.item_id for k in backend.asked} == bad


async def test_a_server_that_dies_in_mid_run_stops_it_with_the_servers_own_words(tmp_path: Path) -> None:
    dead = False

    def answer(k: SampleKey, r: Request, n: int) -> Output:
        nonlocal dead
        if n > 30:
            dead = True
        if dead:
            raise RequestError("http://x: the connection broke", retryable=True)
        return output()

    async def alive() -> None:
        if dead:
            raise ServerError("the server of arm 'B' died (exit 137); its last lines: out of memory")

    started = time.monotonic()
    options = RunOptions(concurrency=4, backoff_s=5)
    arms = [arm("A", ScriptedBackend()), arm("B", ScriptedBackend(answer), alive=alive)]
    with pytest.raises(ServerError, match="out of memory"):
        await run_once(tmp_path, arms, work(500), options)
    assert time.monotonic() - started < 3
    with stored(tmp_path) as j:
        assert len([k for k in j.final_keys() if k.arm == "B"]) == 30
        assert j.failed_keys() == set()


async def test_a_server_that_cannot_be_reached_for_long_stops_the_run_and_spoils_no_item(
    tmp_path: Path,
) -> None:
    def answer(k: SampleKey, r: Request, n: int) -> Output:
        if n > 10:
            raise RequestError("http://x: cannot connect", retryable=True, unreachable=True)
        return output()

    options = RunOptions(concurrency=4, unreachable_limit_s=1.0, max_attempts=1)
    with pytest.raises(ServerError, match=r"arm 'A'.*unreachable for"):
        await run_once(tmp_path, [arm("A", ScriptedBackend(answer))], work(100), options)
    with stored(tmp_path) as j:
        assert (len(j.final_keys()), j.failed_keys()) == (10, set())


async def test_a_server_that_comes_back_costs_no_item_its_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.evals.lane.UNREACHABLE_PAUSE_S", 0.05)
    down_until = 0.0

    def answer(k: SampleKey, r: Request, n: int) -> Output:
        nonlocal down_until
        if n == 10:
            down_until = time.monotonic() + 0.5
        if time.monotonic() < down_until:
            raise RequestError("http://x: cannot connect", retryable=True, unreachable=True)
        return output()

    options = RunOptions(concurrency=4, max_attempts=1)
    summary = await run_once(tmp_path, [arm("A", ScriptedBackend(answer))], work(60), options)
    assert (summary.arms[0].answered, summary.arms[0].errored) == (60, 0)


async def test_a_failed_save_stops_the_run(tmp_path: Path) -> None:
    backend = ScriptedBackend()
    with new_journal(tmp_path) as j:

        class FullDisk:
            final_keys, failed_keys, flush = j.final_keys, j.failed_keys, j.flush
            saved = 0

            def put(self, s: Any) -> None:
                if self.saved == 50:
                    raise JournalError("cannot save: disk full")
                self.saved += 1
                j.put(s)

        with pytest.raises(JournalError, match="disk full"):
            await run([arm("A", backend)], work(1000), FullDisk(), options=QUICK)
    assert len(backend.asked) < 70
    with stored(tmp_path) as seen:
        assert seen.count() == 50


# -- stopping and resuming ---------------------------------------------------------------------


async def test_a_stop_lets_requests_in_flight_finish_and_a_resumed_run_asks_only_the_rest(
    tmp_path: Path,
) -> None:
    stop = StopRequest()

    def answer(k: SampleKey, r: Request, n: int) -> Output:
        if n == 30:
            stop.request()
        return output(r.text)

    first = ScriptedBackend(answer, delay_s=0.01)
    with pytest.raises(InterruptedRunError, match=r"of 100 samples.*--resume"):
        await run_once(tmp_path, [arm("A", first)], work(100), stop=stop)
    with stored(tmp_path) as j:
        before = {s.key: s for s in j.samples()}
    assert 30 <= len(before) == len(first.asked) <= 40  # nothing under way was thrown away
    second = ScriptedBackend()
    summary = await run_once(tmp_path, [arm("A", second)], work(100))
    assert not set(first.asked) & set(second.asked)
    assert (summary.arms[0].skipped, summary.arms[0].answered) == (len(before), 100 - len(before))
    with stored(tmp_path) as j:
        assert {k: s for s in j.samples() if (k := s.key) in before} == before
        assert j.count() == 100


async def test_a_stop_makes_no_errors_out_of_items_under_retry(tmp_path: Path) -> None:
    stop = StopRequest()

    def answer(k: SampleKey, r: Request, n: int) -> Output:
        if n > 10:
            raise RequestError("http://x: HTTP 503", retryable=True)
        return output()

    async def later() -> None:
        await asyncio.sleep(0.3)
        stop.request()

    options = RunOptions(concurrency=4, backoff_s=20)
    started = time.monotonic()
    stopping = asyncio.create_task(later())
    with pytest.raises(InterruptedRunError):
        await run_once(tmp_path, [arm("A", ScriptedBackend(answer))], work(50), options, stop=stop)
    await stopping
    assert time.monotonic() - started < 3
    with stored(tmp_path) as j:
        assert (j.count(), j.failed_keys()) == (10, set())


async def test_a_second_stop_does_not_wait_for_what_is_in_flight(tmp_path: Path) -> None:
    stop = StopRequest()

    async def later() -> None:
        for _ in range(2):
            await asyncio.sleep(0.2)
            stop.request()

    slow = ScriptedBackend(lambda k, r, n: output(), delay_s=0)

    async def hang(key: SampleKey, request: Request) -> Output:
        slow.asked.append(key)
        if len(slow.asked) > 1:
            await asyncio.sleep(60)
        return output()

    slow.complete = hang  # type: ignore[method-assign]
    started = time.monotonic()
    stopping = asyncio.create_task(later())
    with pytest.raises(InterruptedRunError):
        await run_once(tmp_path, [arm("A", slow)], work(50), RunOptions(), stop=stop)
    await stopping
    assert time.monotonic() - started < 3


async def test_a_resumed_run_asks_failed_items_again_and_answered_ones_never(tmp_path: Path) -> None:
    with new_journal(tmp_path) as j:
        for i in range(5):
            j.put(sample(i))
        j.put(sample(5, outputs=(), error="HTTP 500"))
    backend = ScriptedBackend()
    await run_once(tmp_path, [arm("A", backend)], work(8))
    assert Counter(backend.asked) == Counter([key(5), key(6), key(7)])
    with stored(tmp_path) as j:
        assert j.get(key(0)) == sample(0)
        assert j.failed_keys() == set()


async def test_an_arm_far_behind_the_others_can_be_resumed(tmp_path: Path) -> None:
    """The first open item of one arm may be many blocks after another arm's."""
    with new_journal(tmp_path) as j:
        order = [i for _, i in chain.from_iterable(interleave(1, 100, block_items=4, seed=1))]
        for i in order[:80]:
            j.put(sample(i, arm="A"))
    a, b = ScriptedBackend(), ScriptedBackend()
    async with asyncio.timeout(20):
        await run_once(tmp_path, [arm("A", a), arm("B", b)], work(100))
    assert (len(a.asked), len(b.asked)) == (20, 100)


async def test_an_item_that_changed_since_it_was_answered_is_refused(tmp_path: Path) -> None:
    with new_journal(tmp_path) as j:
        j.put(sample(1))
    changed = [WorkItem(task=EchoTask(), item=item(1, content_hash="other"))]
    with pytest.raises(JournalError, match=r"item '1' changed since arm 'A'"):
        await run_once(tmp_path, [arm("A", ScriptedBackend())], changed)


RUNNER = """
import asyncio, sys
sys.path.insert(0, {doubles!r})
from pathlib import Path
from run_doubles import EchoTask, new_journal
from equipoise.evals.backends.sglang_http import SglangHttp
from equipoise.evals.errors import InterruptedRunError
from equipoise.evals.journal import Journal
from equipoise.evals.runner import Arm, RunOptions, WorkItem, run

async def main():
    path = Path({directory!r}) / "journal.sqlite"
    task = EchoTask()
    work = [WorkItem(task=task, item=i) for i in task.items({n}, 0)]
    arms = [Arm(model="m", name=n, backend=SglangHttp({url!r}, cache_salt=n)) for n in ("A1", "A2", "B")]
    options = RunOptions(concurrency=8)
    with Journal.resume(path, plan_hash="plan-1") if path.exists() else new_journal(path.parent) as j:
        print("started", flush=True)
        try:
            await run(arms, work, j, options=options)
        except InterruptedRunError as e:
            print(e, flush=True)
            sys.exit(4)

asyncio.run(main())
"""


def start_runner(directory: Path, url: str, n: int) -> "asyncio.Future[asyncio.subprocess.Process]":
    doubles = str(Path(__file__).parent / "doubles")
    code = textwrap.dedent(RUNNER).format(doubles=doubles, directory=str(directory), url=url, n=n)
    return asyncio.ensure_future(
        asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    )


async def asked(server: FakeServer, n: int) -> None:
    """Wait until the server was asked ``n`` things."""
    while len(server.bodies) < n:  # noqa: ASYNC110  the server has no event for it
        await asyncio.sleep(0.01)


async def slow_answer(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(0.02)
    body = await request.json()
    return web.json_response(generated(f"{body['text']} {os.urandom(4).hex()}"))


async def test_a_run_killed_without_warning_resumes_with_no_key_twice_and_none_missing(
    tmp_path: Path,
) -> None:
    n = 200
    async with FakeServer(slow_answer).running() as server:
        for kill_after in (120, 320):
            child = await start_runner(tmp_path, server.url, n)
            await asked(server, kill_after)
            child.send_signal(signal.SIGKILL)
            await child.wait()
            with stored(tmp_path) as j:
                before = {s.key: s for s in j.samples()}
            assert before
            assert len(before) < 3 * n
        child = await start_runner(tmp_path, server.url, n)
        assert await child.wait() == 0
    with stored(tmp_path) as j:
        after = {s.key: s for s in j.samples()}
        assert j.count() == len(after) == 3 * n
    assert {k: after[k] for k in before} == before
    # A key was asked again only where its answer had not been saved when the kill came.
    prompts = Counter((b["cache_salt"], b["text"]) for b in server.bodies)
    assert sum(prompts.values()) - 3 * n <= 2 * (3 * 8 + 300)
    assert set(prompts) == {(a, f"{i}/0") for a in ("A1", "A2", "B") for i in range(n)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_a_run_cleanly_and_says_how_to_go_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with FakeServer(slow_answer).running() as server:
        child = await start_runner(tmp_path, server.url, 2000)
        await asked(server, 100)
        child.send_signal(number)
        out, _ = await asyncio.wait_for(child.communicate(), 20)
        assert child.returncode == 4
        assert "--resume" in out.decode()
        with stored(tmp_path) as j:
            assert j.count() == len(server.bodies)  # nothing that was answered is lost


async def test_progress_counts_every_sample_once(tmp_path: Path) -> None:
    seen: dict[str, list[Any]] = {}

    class Sink:
        def start(self, label: str, *, total: int, done: int) -> None:
            seen[label] = [total, done, 0]

        def advance(self, label: str, *, failed: bool) -> None:
            seen[label][1] += 1
            seen[label][2] += failed

    def answer(k: SampleKey, r: Request, n: int) -> Output:
        if k.item_id == "2":
            raise RequestError("http://x: HTTP 500", retryable=True)
        return output()

    await run_once(tmp_path, [arm("A", ScriptedBackend(answer))], work(10), progress=Sink())
    assert seen == {"m A": [10, 10, 1]}
    await run_once(tmp_path, [arm("A", ScriptedBackend())], work(10), progress=Sink())
    assert seen == {"m A": [10, 10, 0]}
