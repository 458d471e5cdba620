"""What is known about a task: its data, its licence, and how the vendors say it should be asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

__all__ = ["Advice", "Carded", "Protocol_", "TaskCard", "WithOptions"]

Protocol_ = Literal["chat", "completion", "loglikelihood", "teacher-forced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """How a vendor says that its models should be asked; None where it says nothing.

    ``repeats`` are answers per item in its own evaluations, ``source`` where it says so.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int | None = None
    thinking: Literal["on", "off"] | None = None
    repeats: int | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCard:
    """A task in words, for ``equipoise tasks``.

    Parameters
    ----------
    items : int or None
        How many the data set has; None for generated ones.
    clusters : str
        What items share a ``cluster_id`` by ("document", "conversation"); empty if nothing.
    advice : mapping
        By model family: ``kimi``, ``glm``.
    """

    title: str
    group: str  # knowledge, math, code, instructions, reasoning, multiple choice, tools, long context, ...
    protocol: Protocol_
    licence: str  # of the data
    citation: str
    items: int | None
    clusters: str = ""
    advice: Mapping[str, Advice] = field(default_factory=dict)
    note: str = ""

    @property
    def warning(self) -> str:
        """What to know of the protocol before its scores are believed."""
        if self.protocol not in ("loglikelihood", "teacher-forced"):
            return ""
        return (
            "On a GPU, scoring a given text reads fresh keys and values and says nothing of an FP8 cache. "
            "Here the context is sent first, so that what is scored reads it back from the prefix cache; "
            "that needs SGLang's own API with its prefix cache on, and the report says how many tokens were "
            "cached."
        )


@runtime_checkable
class Carded(Protocol):
    """A task that has a card; every task of ours does."""

    @property
    def card(self) -> TaskCard: ...


@runtime_checkable
class WithOptions(Protocol):
    """A task whose dataclass fields in ``option_names`` a plan may set (see `options.with_options`)."""

    @property
    def option_names(self) -> tuple[str, ...]: ...
