"""One arm's queue, and how one item is asked: turns, retries, pauses, giving up."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.evals.errors import RequestError, ServerError, UsageError
from equipoise.evals.run_types import Arm, ArmSummary, RunOptions, WorkItem
from equipoise.evals.stopping import StopRequest
from equipoise.evals.types import REFUSED_PREFIX, Output, Request, Sample, SampleKey

__all__ = ["Entry", "Lane"]

ALIVE_INTERVAL_S = 1.0
UNREACHABLE_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One item in the queue of an arm."""

    block: int
    key: SampleKey
    work: WorkItem
    failed_before: bool  # in an earlier session; failing again says nothing new about the server


class _Stopped(Exception):
    """A stop was requested between two requests."""


@dataclass(slots=True)
class _Tally:
    sent: int = 0  # requests of one item


class Lane:
    """One arm's queue and the state of its server as seen from here."""

    def __init__(
        self, arm: Arm, entries: Sequence[Entry], *, planned: int, options: RunOptions, stop: StopRequest
    ) -> None:
        self.arm = arm
        self.label = f"{arm.model} {arm.name}"
        self.entries = entries
        self.next = 0
        self.planned = planned
        self.skipped = planned - len(entries)
        self.answered = self.refused = self.errored = 0
        self.failures_in_a_row = 0
        self._options = options
        self._stop = stop
        self._paused_until = 0.0  # monotonic seconds
        self._unreachable_since: float | None = None
        self._alive_checked = 0.0
        self._rng = random.Random(f"backoff:{options.seed}:{self.label}")

    @property
    def block(self) -> int | None:
        """The block of the next item; None when all are issued."""
        return self.entries[self.next].block if self.next < len(self.entries) else None

    def pop(self) -> Entry | None:
        """Take the next item; None at the end."""
        if self.next == len(self.entries):
            return None
        self.next += 1
        return self.entries[self.next - 1]

    @property
    def asked(self) -> int:
        """Items of this session that ended, well or not."""
        return self.answered + self.refused + self.errored

    @property
    def where(self) -> str:
        return f"model {self.arm.model!r} arm {self.arm.name!r} at {self.arm.backend.label}"

    def summary(self) -> ArmSummary:
        return ArmSummary(
            model=self.arm.model,
            arm=self.arm.name,
            planned=self.planned,
            skipped=self.skipped,
            answered=self.answered,
            refused=self.refused,
            errored=self.errored,
        )

    # -- asking ----------------------------------------------------------------------------

    async def ask(self, entry: Entry, *, gate: bool = False) -> Sample | None:
        """All turns of one item; None when a stop was requested before it was settled.

        Parameters
        ----------
        gate : bool
            Do not wait for a server that cannot be reached.

        Raises
        ------
        ServerError
            The server died, or has been unreachable for too long.
        """
        key, item = entry.key, entry.work.item
        outputs: list[Output] = []
        tally = _Tally()
        error: str | None = None
        started_unix_s, started = time.time(), time.monotonic()
        try:
            while (request := entry.work.next_request(tuple(outputs))) is not None:
                outputs.append(await self._turn(key, request, tally, gate=gate))
        except _Stopped:
            return None
        except RequestError as e:
            error = f"{REFUSED_PREFIX} {e}" if e.refused else str(e)
        except Exception as e:
            e.add_note(f"{self.where}, task {key.task!r} item {key.item_id!r}")
            raise
        if not outputs and error is None:
            raise UsageError(f"task {key.task!r} asks nothing for item {key.item_id!r}")
        return Sample(
            key=key,
            content_hash=item.content_hash,
            outputs=tuple(outputs),
            attempts=tally.sent,
            started_unix_s=started_unix_s,
            latency_s=time.monotonic() - started,
            error=error,
        )

    async def _turn(self, key: SampleKey, request: Request, tally: _Tally, *, gate: bool) -> Output:
        """One request, retried; raises RequestError when it has failed for good."""
        attempt = 0
        while True:
            while not self._stop.requested and (left_s := self._paused_until - time.monotonic()) > 0:
                await self._sleep(left_s)
            # A stop lets begun items go on to their next turn, but begins nothing and retries nothing.
            if self._stop.requested and (tally.sent == 0 or attempt > 0):
                raise _Stopped
            tally.sent += 1
            try:
                return await self._request(key, request)
            except RequestError as e:
                if not e.unreachable:
                    attempt += 1
                await self._consider(e, attempt, gate=gate)

    async def _request(self, key: SampleKey, request: Request) -> Output:
        try:
            async with asyncio.timeout(self._options.timeout_s):
                output = await self.arm.backend.complete(key, request)
        except TimeoutError as e:
            raise RequestError(
                f"{self.arm.backend.label}: no reply within {self._options.timeout_s:g} s", retryable=True
            ) from e
        self._unreachable_since = None
        return output

    async def _consider(self, e: RequestError, attempt: int, *, gate: bool) -> None:
        """Return after the pause before another attempt; raise ``e`` when there is to be none."""
        if e.refused:
            raise e
        now = time.monotonic()
        if self.arm.alive is not None and now - self._alive_checked >= ALIVE_INTERVAL_S:
            self._alive_checked = now
            await self.arm.alive()
        if e.unreachable:
            since = self._unreachable_since = self._unreachable_since or now
            if gate or now - since > self._options.unreachable_limit_s:
                raise ServerError(
                    f"{self.where}: unreachable for {now - since:.0f} s ({e}); the run was stopped and all "
                    "answers are saved: start the server, or mend the URL, then continue with --resume"
                )
            await self._sleep(self._rng.uniform(0.5, 1.5) * UNREACHABLE_PAUSE_S)
            return
        if not e.retryable or attempt >= self._options.max_attempts:
            raise e
        backoff_s = min(self._options.max_backoff_s, self._options.backoff_s * 2 ** (attempt - 1))
        if e.retry_after_s is not None:
            if e.retry_after_s > self._options.max_retry_after_s:
                raise e
            self._paused_until = max(self._paused_until, now + e.retry_after_s)
            backoff_s = self._options.backoff_s  # only spreads what was paused together
        await self._sleep(self._rng.uniform(0.5, 1.5) * backoff_s)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but wake up for a stop."""
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return
