"""What a run is made of: arms, work, options, and what the runner needs of a journal."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from equipoise.evals.generation import Generation
from equipoise.evals.types import Backend, Output, Request, Sample, SampleKey, Task, TaskItem

__all__ = [
    "Arm",
    "ArmSummary",
    "ProgressSink",
    "RunOptions",
    "RunSummary",
    "SampleStore",
    "SampleWatch",
    "WorkItem",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm of one model.

    ``alive``, if given, is awaited when a request fails, and raises ServerError (with the log's
    last lines) when the server behind the arm has died.
    """

    model: str
    name: str
    backend: Backend
    alive: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One question, asked in every arm."""

    task: Task
    item: TaskItem
    repeat: int = 0
    generation: Generation = field(default_factory=Generation)

    def next_request(self, outputs: Sequence[Output]) -> Request | None:
        """The task's next request as the plan has answers generated; None when the item is done."""
        return self.generation.next_request(self.task, self.item, outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How requests are sent; the same for every arm."""

    seed: int = 1
    concurrency: int = 32  # items in flight, per arm
    total_concurrency: int | None = None  # over all arms of this call
    block_items: int = 16
    max_lead_blocks: int = 2
    timeout_s: float = 120.0  # one request
    max_attempts: int = 4  # one request
    backoff_s: float = 0.5  # doubles with every attempt
    max_backoff_s: float = 30.0
    max_retry_after_s: float = 300.0
    max_failures_in_a_row: int = 8  # items of one arm
    unreachable_limit_s: float = 30.0
    grace_s: float = 10.0  # for requests in flight, after a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """Counts of one arm; ``skipped`` were settled before this call."""

    model: str
    arm: str
    planned: int
    skipped: int
    answered: int
    refused: int
    errored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    arms: tuple[ArmSummary, ...]
    wall_s: float


class SampleStore(Protocol):
    """What the runner needs of a journal."""

    def final_keys(self) -> Mapping[SampleKey, str]:
        """Settled keys, with the content hash of what was asked."""
        ...

    def failed_keys(self) -> Collection[SampleKey]:
        """Keys that were asked and ended in an error."""
        ...

    def put(self, sample: Sample) -> None: ...
    def flush(self) -> None: ...


class SampleWatch(Protocol):
    """Sees every item before it is asked and every answer; what it raises stops the run."""

    async def before(self, arm: Arm, work: WorkItem) -> None: ...
    def after(self, arm: Arm, work: WorkItem, sample: Sample) -> None: ...


class ProgressSink(Protocol):
    def start(self, label: str, *, total: int, done: int) -> None: ...
    def advance(self, label: str, *, failed: bool) -> None: ...
