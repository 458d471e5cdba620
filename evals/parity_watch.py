"""Parity during the run: the same item must become the same prompt in every arm, and stay so.

A server can be restarted with other flags, or swapped behind its address, in mid-run. So a sample of the
items is rendered by each arm's server just before it is asked, and the prompt's token count of every reply
is held against the other arms'. The first difference stops the run: what follows could only be invalid.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from equipoise.evals.errors import ParityError, RequestError
from equipoise.evals.parity_probes import RenderedPrompt, Tokenizing, digest_of, token_ids
from equipoise.evals.run_types import Arm, WorkItem
from equipoise.evals.types import Sample

__all__ = ["ParityWatch"]

ONE_IN = 16  # items that are rendered; all are counted

_Item = tuple[str, str, str, int]  # model, task, item, repeat


@dataclass(frozen=True, slots=True)
class _Seen:
    arm: str
    prompt: RenderedPrompt


class ParityWatch:
    """Holds what the arms made of each item so far.

    Parameters
    ----------
    counts : mapping or None
        Prompt tokens of first replies that an earlier session got, by item: (arm, tokens).
    """

    def __init__(self, counts: Mapping[_Item, tuple[str, int]] | None = None) -> None:
        self._rendered: dict[_Item, _Seen] = {}
        self._counts: dict[_Item, tuple[str, int]] = dict(counts or {})
        self.rendered = self.counted = self.not_rendered = 0

    async def before(self, arm: Arm, work: WorkItem) -> None:
        """Render a sampled item as this arm's server does.

        A server that does not answer is left to the item itself; it is counted in ``not_rendered``.

        Raises
        ------
        ParityError
            Another arm's server rendered it otherwise.
        """
        backend = arm.backend
        if not isinstance(backend, Tokenizing) or work.repeat or not sampled(work):
            return
        request = work.next_request(())
        try:
            ids = None if request is None else await token_ids(backend, request)
        except RequestError:
            self.not_rendered += 1
            return
        if ids is None:
            return
        self.rendered += 1
        prompt = RenderedPrompt(tokens=len(ids), sha256=digest_of(ids))
        first = self._rendered.setdefault(_key(arm, work), _Seen(arm.name, prompt))
        if first.prompt != prompt:
            raise ParityError(
                f"{_where(arm, work)}: rendered as {prompt.tokens} tokens ({_short(prompt)}), by arm "
                f"{first.arm!r} as {first.prompt.tokens} ({_short(first.prompt)}): the servers no longer "
                "make the same prompt of it; all answers are saved, but start a new run with servers alike"
            )

    @property
    def summary(self) -> dict[str, int]:
        """Items rendered, prompts counted, items that could not be rendered."""
        return {"rendered": self.rendered, "counted": self.counted, "not_rendered": self.not_rendered}

    def after(self, arm: Arm, work: WorkItem, sample: Sample) -> None:
        """Hold the first reply's prompt tokens against the other arms'.

        Raises
        ------
        ParityError
            Another arm's server counted another number.
        """
        if not sample.outputs:
            return
        self.counted += 1
        tokens = sample.outputs[0].prompt_tokens
        first_arm, first = self._counts.setdefault(_key(arm, work), (arm.name, tokens))
        if first != tokens:
            raise ParityError(
                f"{_where(arm, work)}: {tokens} prompt tokens, {first} in arm {first_arm!r}: the arms were "
                "not asked the same; all answers are saved, but start a new run with servers alike"
            )


def sampled(work: WorkItem) -> bool:
    """Whether this item is rendered: one in ``ONE_IN``, by a hash of its name."""
    digest = hashlib.sha256(f"{work.task.name}/{work.item.id}".encode()).digest()
    return digest[0] % ONE_IN == 0


def _key(arm: Arm, work: WorkItem) -> _Item:
    return arm.model, work.task.name, work.item.id, work.repeat


def _where(arm: Arm, work: WorkItem) -> str:
    return f"model {arm.model!r} arm {arm.name!r}, task {work.task.name!r} item {work.item.id!r}"


def _short(prompt: RenderedPrompt) -> str:
    return f"SHA-256 {prompt.sha256[:12]}" if prompt.sha256 else "ids not known"
