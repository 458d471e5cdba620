"""Answers from the journal of an earlier run, by key: no server, the same answers.

Used to repeat an analysis, or to put a recorded arm beside a live one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from equipoise.evals.errors import ParityError, RequestError, UsageError
from equipoise.evals.journal import Journal
from equipoise.evals.types import REFUSED_PREFIX, Output, Request, Sample, SampleKey

__all__ = ["Replay"]


class Replay:
    """Backend that reads a journal.

    Parameters
    ----------
    path : Path
        The journal file of the run to replay.
    arm : str or None
        The recorded arm to answer for; by default the arm that the key names.

    Raises
    ------
    JournalError
        There is no readable journal.
    UsageError
        It holds no such arm.
    """

    def __init__(self, path: Path, *, arm: str | None = None) -> None:
        self._journal = Journal.read(path)
        self._arm = arm
        #: replies still to be given, by key: a request carries no turn number
        self._turns: dict[SampleKey, tuple[Sample, int]] = {}
        if arm is not None and self._journal.count(arm=arm) == 0:
            self._journal.close()
            raise UsageError(f"{path}: the recorded run has no answers of an arm {arm!r}")

    @property
    def label(self) -> str:
        return str(self._journal.path)

    async def complete(self, key: SampleKey, request: Request) -> Output:
        """The recorded reply; the turns of an item come in their order.

        Raises
        ------
        RequestError
            No such key was recorded, it has fewer replies, or it ended in an error then.
        """
        sample, turn = self._turns.pop(key, (None, 0))
        if sample is None:
            sample = self._journal.get(self._recorded(key))
        if sample is None:
            raise RequestError(f"{self.label}: no recorded answer of {self._recorded(key)}")
        if turn < len(sample.outputs):
            if turn + 1 < len(sample.outputs) or sample.error is not None:
                self._turns[key] = (sample, turn + 1)
            return sample.outputs[turn]
        error = sample.error or f"only {len(sample.outputs)} replies were recorded"
        raise RequestError(
            f"{self.label}: {key}: {error.removeprefix(REFUSED_PREFIX).strip()}",
            refused=error.startswith(REFUSED_PREFIX),
        )

    def verify(self, asked: Mapping[SampleKey, str]) -> None:
        """Check, before the first item, that the recorded run asked the same things.

        Parameters
        ----------
        asked : mapping
            The content hash of every item that will be asked, by key.

        Raises
        ------
        ParityError
            An item was recorded with another content hash, or not at all.
        """
        recorded = {s.key: s.content_hash for s in self._journal.samples(arm=self._arm)}
        missing = [k for k in asked if self._recorded(k) not in recorded]
        changed = [k for k in asked if recorded.get(self._recorded(k), asked[k]) != asked[k]]
        for what, keys in (("not recorded", missing), ("recorded with other content", changed)):
            if keys:
                raise ParityError(
                    f"{self.label}: {len(keys)} of {len(asked)} items were {what}, the first is "
                    f"task {keys[0].task!r} item {keys[0].item_id!r}; replay a run of the same items"
                )

    async def close(self) -> None:
        self._journal.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _recorded(self, key: SampleKey) -> SampleKey:
        if self._arm is None:
            return key
        return SampleKey(
            model=key.model, arm=self._arm, task=key.task, item_id=key.item_id, repeat=key.repeat
        )
