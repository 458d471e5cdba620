"""Asks every item in every arm, once, and hands each sample to the journal. No scoring.

Rules
-----
* Arms advance together (see `schedule`): none is more than a few blocks ahead of the slowest.
* The first request of each arm must be answered before the others are sent, so that a wrong URL
  or key costs a handful of requests.
* A failure that may pass is retried with growing, jittered pauses; Retry-After pauses the whole
  arm. Refused connections do not use up an item's attempts: either the server comes back, or the
  run stops.
* An item that fails for good becomes a sample with an error, which is never scored. A number of
  them in a row stops the run.
* A signal stops the run cleanly: what is in flight may finish for a short while, the journal is
  flushed, and the error says how to go on.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any

from equipoise.evals.errors import (
    InterruptedRunError,
    JournalError,
    ServerError,
    UsageError,
)
from equipoise.evals.lane import Entry, Lane
from equipoise.evals.run_types import (
    Arm,
    ArmSummary,
    ProgressSink,
    RunOptions,
    RunSummary,
    SampleStore,
    SampleWatch,
    WorkItem,
)
from equipoise.evals.schedule import interleave
from equipoise.evals.stopping import StopRequest, stop_on_signals
from equipoise.evals.types import Sample, SampleKey

__all__ = ["Arm", "ArmSummary", "ProgressSink", "RunOptions", "RunSummary", "SampleStore", "WorkItem", "run"]

GATE_ITEMS = 3  # one unlucky item must not keep a whole run from starting


async def run(
    arms: Sequence[Arm],
    work: Sequence[WorkItem],
    store: SampleStore,
    *,
    options: RunOptions,
    progress: ProgressSink | None = None,
    stop: StopRequest | None = None,
    watch: SampleWatch | None = None,
) -> RunSummary:
    """Ask everything that ``store`` has not settled yet.

    Parameters
    ----------
    arms : sequence of Arm
        At least one; names are unique within a model.
    work : sequence of WorkItem
        What every arm is asked; the order does not matter.
    store : SampleStore
        The journal; open for writing.
    stop : StopRequest or None
        Ends the run early; by default SIGINT and SIGTERM do.
    watch : SampleWatch or None
        Sees every item and answer, and may stop the run.

    Raises
    ------
    UsageError
        Nothing to ask, or the same item twice.
    ServerError
        An arm's server died, cannot be reached, or fails item after item.
    JournalError
        A sample could not be saved, or an item changed since it was answered.
    InterruptedRunError
        A signal came; what was answered is saved.
    """
    if not work or not arms:
        raise UsageError("nothing to ask: the plan's tasks have no items, or it has no arms")
    if stop is None:
        with stop_on_signals() as own_stop:
            return await run(
                arms, work, store, options=options, progress=progress, stop=own_stop, watch=watch
            )
    started = time.monotonic()
    lanes = _lanes(arms, work, store, options, stop)
    for lane in lanes:
        if progress is not None:
            progress.start(lane.label, total=lane.planned, done=lane.skipped)
    try:
        await _Run(lanes, store, options, progress, stop, watch=watch).everything()
    finally:
        store.flush()
    return RunSummary(arms=tuple(lane.summary() for lane in lanes), wall_s=time.monotonic() - started)


def _lanes(
    arms: Sequence[Arm],
    work: Sequence[WorkItem],
    store: SampleStore,
    options: RunOptions,
    stop: StopRequest,
) -> list[Lane]:
    settled, failed = store.final_keys(), store.failed_keys()
    entries: list[list[Entry]] = [[] for _ in arms]
    seen: set[SampleKey] = set()
    blocks = interleave(len(arms), len(work), block_items=options.block_items, seed=options.seed)
    for number, block in enumerate(blocks):
        for a, w in block:
            arm, one = arms[a], work[w]
            key = SampleKey(
                model=arm.model, arm=arm.name, task=one.task.name, item_id=one.item.id, repeat=one.repeat
            )
            if key in seen:
                raise UsageError(f"task {key.task!r} has item {key.item_id!r} twice in arm {key.arm!r}")
            seen.add(key)
            if key not in settled:
                entries[a].append(Entry(number, key, one, key in failed))
            elif settled[key] != one.item.content_hash:
                raise JournalError(
                    f"task {key.task!r} item {key.item_id!r} changed since arm {key.arm!r} answered it; "
                    "resume with the task's old version, or start a new run"
                )
    return [
        Lane(arm, entries[a], planned=len(work), options=options, stop=stop) for a, arm in enumerate(arms)
    ]


class _Run:
    def __init__(
        self,
        lanes: Sequence[Lane],
        store: SampleStore,
        options: RunOptions,
        progress: ProgressSink | None,
        stop: StopRequest,
        *,
        watch: SampleWatch | None,
    ) -> None:
        self.watch = watch
        self.lanes = lanes
        self.store = store
        self.options = options
        self.progress = progress
        self.stop = stop
        self.total = asyncio.Semaphore(options.total_concurrency or len(lanes) * options.concurrency)
        self.moved = asyncio.Event()

    async def everything(self) -> None:
        await self._supervise([self._gate(lane) for lane in self.lanes if lane.entries])
        await self._supervise(
            [
                self._worker(lane)
                for lane in self.lanes
                for _ in range(min(self.options.concurrency, len(lane.entries)))
            ]
        )

    async def _supervise(self, jobs: Sequence[Awaitable[None]]) -> None:
        """Run jobs until all end, one raises, or a stop is requested."""
        tasks = [asyncio.ensure_future(job) for job in jobs]
        all_done: asyncio.Future[Any] = asyncio.gather(*tasks)
        stopping: asyncio.Future[Any] = asyncio.ensure_future(self.stop.wait())
        hurry: asyncio.Future[Any] = asyncio.ensure_future(self.stop.wait_hurry())
        try:
            await asyncio.wait({all_done, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not all_done.done():
                self.moved.set()  # whoever waits for another arm need not
                await asyncio.wait(
                    {all_done, hurry}, timeout=self.options.grace_s, return_when=asyncio.FIRST_COMPLETED
                )
            if all_done.done():
                all_done.result()  # raises the first failure
        finally:
            for task in (*tasks, stopping, hurry):
                task.cancel()
            await asyncio.gather(all_done, *tasks, return_exceptions=True)
        if self.stop.requested and any(lane.asked < len(lane.entries) for lane in self.lanes):
            settled = sum(lane.skipped + lane.answered + lane.refused for lane in self.lanes)
            planned = sum(lane.planned for lane in self.lanes)
            raise InterruptedRunError(
                f"interrupted: {settled} of {planned} samples are settled and saved; continue with --resume"
            )

    # -- taking items ----------------------------------------------------------------------

    async def _gate(self, lane: Lane) -> None:
        """One request must be answered before the flood."""
        failures = tries = 0
        while tries < GATE_ITEMS and (entry := lane.pop()) is not None:
            tries += 1
            sample = await lane.ask(entry, gate=True)
            if sample is None:
                return
            self._save(lane, entry, sample)
            if sample.final:
                return
            failures += not entry.failed_before
            if failures and (tries == GATE_ITEMS or lane.block is None):
                raise ServerError(
                    f"{lane.where}: the first requests were not answered ({sample.error}); the others were "
                    "not sent: check the URL and that the server is up, then continue with --resume"
                )

    async def _worker(self, lane: Lane) -> None:
        while (entry := await self._take(lane)) is not None:
            async with self.total:
                if self.watch is not None:
                    await self.watch.before(lane.arm, entry.work)
                sample = await lane.ask(entry)
            if sample is None:  # a stop was requested between two attempts
                return
            self._save(lane, entry, sample)
            if lane.failures_in_a_row >= self.options.max_failures_in_a_row:
                raise ServerError(
                    f"{lane.where}: {lane.failures_in_a_row} items in a row failed; the last: "
                    f"{sample.error}; the run was stopped and all answers are saved: mend the server, then "
                    "continue with --resume"
                )

    async def _take(self, lane: Lane) -> Entry | None:
        """The lane's next item, once the other arms are near enough; None at the end or on a stop."""
        while not self.stop.requested and (block := lane.block) is not None:
            slowest = min(b for other in self.lanes if (b := other.block) is not None)
            if block <= slowest + self.options.max_lead_blocks:
                entry = lane.pop()
                if lane.block != block:
                    self.moved.set()
                    self.moved = asyncio.Event()
                return entry
            await self.moved.wait()
        return None

    def _save(self, lane: Lane, entry: Entry, sample: Sample) -> None:
        self.store.put(sample)
        if self.watch is not None:
            self.watch.after(lane.arm, entry.work, sample)
        if sample.error is None:
            lane.answered += 1
            lane.failures_in_a_row = 0
        elif sample.refused:
            lane.refused += 1  # the server is well, and says no
        else:
            lane.errored += 1
            lane.failures_in_a_row += not entry.failed_before
        if self.progress is not None:
            self.progress.advance(lane.label, failed=not sample.final)
