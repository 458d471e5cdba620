"""Which of several choices does the model find most likely? As lm-eval asks and judges it.

The choice with the highest sum of logprobs is taken (``acc``), of that sum over the choice's characters
(``acc_norm``) or over its bytes (``acc_bytes``); of equal ones the first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from equipoise.evals.types import Output, TaskItem
from equipoise.tasks.loglikelihood import Continuation, LoglikelihoodTask, Query, likely_replies

__all__ = ["MultipleChoiceTask", "choice_query", "partial_query"]

#: What a choice's sum of logprobs is divided by.
_LENGTHS: Mapping[str, Callable[[str], int]] = MappingProxyType(
    {"acc": lambda _: 1, "acc_norm": len, "acc_bytes": lambda choice: len(choice.encode())}
)


@dataclass(frozen=True, kw_only=True)
class MultipleChoiceTask(LoglikelihoodTask):
    """``metric`` is one of the task's ``metrics``: those that lm-eval has for it, and ``acc_bytes``."""

    metric: str = "acc"

    metrics: ClassVar[tuple[str, ...]] = tuple(_LENGTHS)
    option_names: ClassVar[tuple[str, ...]] = ("metric",)

    def __post_init__(self) -> None:
        if self.metric not in self.metrics:
            raise ValueError(f"metric must be one of {', '.join(self.metrics)}, not {self.metric!r}")

    def judge(self, item: TaskItem, scored: Sequence[Continuation]) -> tuple[float, str]:
        choices: list[str] = item.inputs["choices"]
        values = [self._value(s.logprob, choice) for s, choice in zip(scored, choices, strict=True)]
        best = max(range(len(values)), key=values.__getitem__)
        return float(best == item.inputs["gold"]), choices[best].strip()

    def _value(self, logprob: float, choice: str) -> float:
        length = _LENGTHS[self.metric](choice)
        return logprob / length if length else float("-inf")

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        return likely_replies(item, self._logprobs(item, item.inputs["gold"]), greedy=False)

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        return likely_replies(item, self._logprobs(item, 1 if item.inputs["gold"] == 0 else 0), greedy=True)

    def _logprobs(self, item: TaskItem, best: int) -> list[float]:
        """Of which ``best`` is the highest by every metric."""
        return [-1e-3 if i == best else -1e3 * len(c.encode()) for i, c in enumerate(item.inputs["choices"])]


def choice_query(context: str, choices: Sequence[str], gold: int, *, cluster: str = "") -> Query:
    """Each choice behind the context.

    Spaces that end a context move to its continuations, as in lm-eval: with them the tokens would be others.

    Raises
    ------
    ValueError
        There is one choice, or the right one is none of them.
    """
    bare, gap = _apart(context)
    return Query(
        context=bare,
        continuations=tuple(f"{gap} {choice}" for choice in choices),
        target=_chosen(choices, gold),
        extra={"choices": list(choices), "gold": gold},
        cluster=cluster,
    )


def partial_query(contexts: Sequence[str], continuation: str, gold: int, *, cluster: str = "") -> Query:
    """The same continuation behind each context: the contexts are the choices.

    Raises
    ------
    ValueError
        There is one context, or the right one is none of them.
    """
    target = _chosen(contexts, gold)
    parts = [_apart(context) for context in contexts]
    return Query(
        contexts=tuple(bare for bare, _ in parts),
        continuations=tuple(f"{gap} {continuation}" for _, gap in parts),
        target=target,
        extra={"choices": list(contexts), "gold": gold},
        cluster=cluster,
    )


def _apart(context: str) -> tuple[str, str]:
    bare = context.rstrip()
    return bare, context[len(bare) :]


def _chosen(choices: Sequence[str], gold: int) -> str:
    if len(choices) < 2 or not 0 <= gold < len(choices):
        raise ValueError(f"choice {gold} of {len(choices)} cannot be the right one of several")
    return choices[gold]
