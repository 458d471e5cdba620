"""During the run each item must become the same prompt in every arm; the first difference stops the run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from run_doubles import EchoTask, ScriptedBackend, new_journal, output

from equipoise.evals.errors import ParityError, RequestError
from equipoise.evals.experiment.probing import recheck
from equipoise.evals.journal import Journal
from equipoise.evals.parity_probes import ArmFacts
from equipoise.evals.parity_watch import ONE_IN, ParityWatch, sampled
from equipoise.evals.run_types import Arm, RunOptions, WorkItem
from equipoise.evals.runner import run
from equipoise.evals.types import ChatOptions, Message, Output, Request, SampleKey


class Rendering(ScriptedBackend):
    """Letters are tokens; from request ``changes_at`` on the server renders one token more."""

    def __init__(self, *, changes_at: int | None = None, counted: int = 3, unwell: bool = False) -> None:
        super().__init__(self._reply, label="http://rendering")
        self.changes_at, self.counted, self.unwell = changes_at, counted, unwell
        self.rendered = 0

    def _reply(self, key: SampleKey, request: Request, number: int) -> Output:
        return output(prompt_tokens=self.counted)

    async def tokenize(self, text: str) -> tuple[int, ...]:
        if self.unwell:
            raise RequestError("HTTP 503")
        self.rendered += 1
        changed = self.changes_at is not None and self.rendered >= self.changes_at
        return (*map(ord, text), *([0] if changed else []))

    async def tokenize_chat(
        self, messages: Sequence[Message], chat: ChatOptions | None = None
    ) -> tuple[int, ...]:
        return await self.tokenize("".join(m.content or "" for m in messages))


async def asked(tmp_path: Path, *backends: Rendering, items: int = 64) -> tuple[ParityWatch, int]:
    """Run the arms A1, B ... with a watch; the watch, and how many samples were saved."""
    watch, task = ParityWatch(), EchoTask()
    arms = [Arm(model="m", name=n, backend=b) for n, b in zip(("A1", "B"), backends, strict=False)]
    work = [WorkItem(task=task, item=i) for i in task.items(items, 0)]
    with new_journal(tmp_path) as journal:
        try:
            await run(arms, work, journal, options=RunOptions(concurrency=2), watch=watch)
        finally:
            saved = len(journal.final_keys())
    return watch, saved


def test_one_item_in_sixteen_is_rendered() -> None:
    task = EchoTask()
    share = sum(sampled(WorkItem(task=task, item=i)) for i in task.items(4000, 0)) / 4000
    assert share == pytest.approx(1 / ONE_IN, rel=0.2)


async def test_arms_that_render_alike_are_counted(tmp_path: Path) -> None:
    ours, theirs = Rendering(), Rendering()
    watch, saved = await asked(tmp_path, ours, theirs)
    assert watch.summary == {"rendered": ours.rendered + theirs.rendered, "counted": 128, "not_rendered": 0}
    assert ours.rendered == theirs.rendered > 0
    assert saved == 128


async def test_a_server_that_renders_otherwise_from_some_point_on_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match=r"task 'echo' item '\d+': rendered as [345] tokens .* by arm"):
        await asked(tmp_path, Rendering(), Rendering(changes_at=2))


async def test_another_count_of_prompt_tokens_stops_the_run_and_keeps_the_answers(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match=r"\d prompt tokens, \d in arm"):
        await asked(tmp_path, Rendering(counted=3), Rendering(counted=4))
    with Journal.read(tmp_path / "journal.sqlite") as journal:
        assert len(journal.final_keys()) > 0


async def test_a_server_that_cannot_render_now_is_counted_and_does_not_stop_the_run(tmp_path: Path) -> None:
    watch, saved = await asked(tmp_path, Rendering(), Rendering(unwell=True))
    assert watch.not_rendered > 0
    assert saved == 128


class Described(ScriptedBackend):
    def __init__(self, **facts: Any) -> None:
        super().__init__(label="http://described")
        self.facts = facts

    async def describe(self) -> dict[str, Any]:
        return self.facts


async def test_a_server_that_was_swapped_behind_its_address_is_found_at_the_end() -> None:
    before = ArmFacts(arm="B", label="x", facts={"tp_size": 8, "port": 1}, tokens={})
    await recheck({"B": Described(tp_size=8, port=2)}, {"B": before})
    await recheck({"B": ScriptedBackend(), "C": Described(tp_size=1)}, {"B": before})  # nothing to compare
    with pytest.raises(ParityError, match=r"arm 'B' at http://described changed .*tp_size: 4, before 8"):
        await recheck({"B": Described(tp_size=4, port=1)}, {"B": before})
