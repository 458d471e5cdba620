"""Does a task hold against its own data: every item loads, right answers score 1, wrong ones less?"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from equipoise.evals.types import Output, Sample, SampleKey, ScoreStatus, Task, TaskItem
from equipoise.tasks.reference import Counted, Referenced

__all__ = ["TaskValidation", "validate_task"]

GENERATED_ITEMS = 200
MAX_FAULTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskValidation:
    """What was found; ``right`` and ``wrong`` count items whose right (wrong) answer scored as it should.

    ``right_of`` and ``wrong_of`` are the items that have such an answer. ``faults`` are the first few, in
    words, of ``faulty``.
    """

    task: str
    items: int
    right: int
    right_of: int
    wrong: int
    wrong_of: int
    longest_prompt_chars: int
    wall_s: float
    faulty: int
    faults: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return self.faulty == 0 and self.items > 0


def validate_task(
    task: Task, *, n: int | None = None, seed: int = 1, advance: Callable[[int], None] | None = None
) -> TaskValidation:
    """Load ``n`` items (all there are; 200 of a generated task), ask each, and grade its answers.

    ``advance`` is called with the items done, for a progress bar.

    Raises
    ------
    UsageError
        The data cannot be loaded, or a row is malformed.
    """
    started = time.monotonic()
    if n is None:
        n = task.count() if isinstance(task, Counted) else GENERATED_ITEMS
    items = task.items(n, seed)
    faults: list[str] = []
    twice = [i for i, k in Counter(item.id for item in items).items() if k > 1]
    faults += [f"item id {i!r} is given twice" for i in twice]
    right = right_of = wrong = wrong_of = longest = 0
    for done, item in enumerate(items, start=1):
        request = task.next_request(item, ())
        if request is None:
            faults.append(f"item {item.id!r} asks nothing")
            continue
        prompt = "".join(m.content or "" for m in request.messages or ()) + (request.text or "")
        longest = max(longest, len(prompt))
        if isinstance(task, Referenced):
            found = _graded(task, item, task.right(item))
            right_of += found is not None
            if found is not None and found.value == 1.0:
                right += 1
            elif found is not None:
                faults.append(f"item {item.id!r}: a right answer scored {found.value}: {found.reason}")
            found = _graded(task, item, task.wrong(item))
            wrong_of += found is not None
            if found is not None and found.value is not None and found.value < 1.0:
                wrong += 1
            elif found is not None:
                faults.append(f"item {item.id!r}: a wrong answer scored {found.value}: {found.reason}")
        if advance is not None:
            advance(done)
    return TaskValidation(
        task=task.name,
        items=len(items),
        right=right,
        right_of=right_of,
        wrong=wrong,
        wrong_of=wrong_of,
        longest_prompt_chars=longest,
        wall_s=time.monotonic() - started,
        faulty=len(faults),
        faults=tuple(faults[:MAX_FAULTS]),
    )


@dataclass(frozen=True, slots=True)
class _Graded:
    value: float | None
    reason: str


def _graded(task: Task, item: TaskItem, outputs: Sequence[Output] | None) -> _Graded | None:
    """The score of these replies; None if there are none to grade, or the task gives logprobs."""
    if outputs is None or task.kind == "logprob":
        return None
    key = SampleKey(model="validate", arm="reference", task=task.name, item_id=item.id)
    sample = Sample(
        key=key,
        content_hash=item.content_hash,
        outputs=tuple(outputs),
        attempts=len(outputs),
        started_unix_s=0.0,
        latency_s=0.0,
    )
    score = task.score(item, sample)
    if score.status is not ScoreStatus.SCORED:
        return _Graded(None, f"{score.status.value}: {score.reason}")
    return _Graded(score.value, score.reason)
