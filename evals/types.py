"""The one data model: what is asked, what came back, how it scored, how two arms pair.

Frozen, slotted, keyword-only dataclasses; no I/O, and nothing of ours is imported here but leaves.
Data flows one way::

    Task.items -> TaskItem -> Task.next_request -> Request -> Backend.complete -> Output
    outputs of one item -> Sample (journalled) -> Task.score -> Score
    two arms' scores -> PairedTable -> evidence -> verdict -> report
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from equipoise.evals.chat import ChatOptions, Message, ToolCall
from equipoise.evals.top_logprobs import TopLogprobs

__all__ = [
    "REFUSED_PREFIX",
    "AnswerFacts",
    "ArmAnswers",
    "ArmRole",
    "Backend",
    "ChatOptions",
    "FloatArray",
    "Message",
    "Output",
    "PairedTable",
    "PromptLogprobs",
    "Request",
    "Sample",
    "SampleKey",
    "SamplingParams",
    "Score",
    "ScoreStatus",
    "Task",
    "TaskItem",
    "ToolCall",
    "TopLogprobs",
]

FloatArray = npt.NDArray[np.float64]

#: Begins the error of a sample that the server would not answer (context overflow, content policy).
REFUSED_PREFIX = "refused:"


class ArmRole(StrEnum):
    """What an arm is for. Exactly one baseline and one candidate; the rest are optional."""

    BASELINE = "baseline"  # A1
    BASELINE_REPEAT = "baseline_repeat"  # A2, the noise floor
    CANDIDATE = "candidate"  # B
    GROSS_CONTROL = "gross_control"  # P, must be caught
    MILD_CONTROL = "mild_control"  # reported, not required


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskItem:
    """One question.

    ``id`` is unique and stable within the task; ``content_hash`` covers inputs and target, so
    that two runs pair only where they asked the same thing. Items that share a document or a
    conversation share ``cluster_id`` (by default an item is its own cluster).
    """

    task: str
    id: str
    inputs: Mapping[str, Any]  # JSON values only
    target: str
    content_hash: str
    cluster_id: str
    #: what kind of item it is, such as {"subject": "law"}: for exploration by subgroup, not hashed
    strata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Ask for the logprobs of prompt tokens from position ``start`` on.

    The prefix below ``start`` may come from the prefix cache; what is scored then depends on the
    KV cache as stored, which is the point. ``top_n`` > 0 also returns the most likely tokens (not more
    than the vocabulary has: a server may fail on that); ``top_positions`` says at which prompt
    positions they are kept, None at all of them.
    """

    start: int
    top_n: int = 0
    top_positions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; exactly one of ``text``, ``input_ids`` and ``messages`` is given.

    ``chat`` goes with ``messages``.
    """

    sampling: SamplingParams
    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    messages: tuple[Message, ...] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    output_logprobs: bool = False
    chat: ChatOptions = field(default_factory=ChatOptions)

    def __post_init__(self) -> None:
        if sum(x is not None for x in (self.text, self.input_ids, self.messages)) != 1:
            raise ValueError("a Request needs exactly one of text, input_ids and messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One reply of a server.

    ``text`` is None when the server sent null content (never read as an empty answer). ``reasoning`` is what
    the model thought, where the server (or `settle`, see thinking.py) tells it from the answer; empty where
    it is known to have thought nothing. ``tool_calls`` is None where the reply has none.
    ``prompt_logprobs`` holds, for positions ``prompt_logprobs_start`` .. prompt end, the logprob
    (nats) of the token there; the first may be None (nothing precedes it).
    """

    text: str | None
    finish_reason: str  # "stop", "length", "abort", ...
    prompt_tokens: int
    completion_tokens: int
    latency_s: float
    cached_tokens: int | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    output_logprobs: tuple[float, ...] | None = None
    output_tokens: tuple[str, ...] | None = (
        None  # the same tokens as text, where they came with their logprobs
    )
    prompt_logprobs_start: int | None = None
    prompt_logprobs: tuple[float | None, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None  # of the same positions
    prompt_top1_ids: tuple[int | None, ...] | None = None  # the model's own first choice there
    prompt_top_logprobs: TopLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SampleKey:
    """What makes a sample one of its kind; the journal's primary key."""

    model: str
    arm: str
    task: str
    item_id: str
    repeat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All replies to one item from one arm, or the error that ended the attempts.

    A multi-turn item has one output a turn. ``error`` set means: never scored. ``attempts`` counts
    the requests sent for the item, over all turns and retries.
    """

    key: SampleKey
    content_hash: str
    outputs: tuple[Output, ...]
    attempts: int
    started_unix_s: float
    latency_s: float
    error: str | None = None

    @property
    def refused(self) -> bool:
        """Whether the server said that it will not serve this item: an outcome, not a fault."""
        return self.error is not None and self.error.startswith(REFUSED_PREFIX)

    @property
    def final(self) -> bool:
        """Whether the item is settled; anything else is asked again when the run is resumed."""
        return self.error is None or self.refused


class ScoreStatus(StrEnum):
    SCORED = "scored"
    TRUNCATED = "truncated"  # ran into the token budget: wrong under intention-to-treat
    ERRORED = "errored"  # no answer: value is None, never 0
    REFUSED = "refused"  # the server answered that it would not (HTTP 400, null content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The value of one sample, in [0, 1] for accuracy tasks; None where nothing can be scored.

    Teacher-forced tasks give the scored tokens' logprobs (nats) instead, with the top-1 token's
    agreement, the likeliest tokens at the same positions, and the number of tokens that the server
    read from its cache. ``vocabulary_size``, if known, tells whether those lists are everything.
    """

    value: float | None
    status: ScoreStatus
    extracted: str | None = None
    reason: str = ""
    token_logprobs: tuple[float, ...] | None = None
    token_positions: tuple[int, ...] | None = None
    token_is_top1: tuple[bool, ...] | None = None
    token_top_logprobs: TopLogprobs | None = None
    vocabulary_size: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFacts:
    """What an answer shows beside its score; None where it is not known.

    ``completion_tokens`` sums over turns; ``prompt_tokens`` is the longest prompt. ``degenerate`` says
    whether it got stuck in a loop.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    degenerate: bool | None = None


class Task(Protocol):
    """One task, one file. ``kind`` says whether it yields accuracies or teacher-forced logprobs."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def kind(self) -> Literal["accuracy", "logprob"]: ...
    @property
    def needs_chat_template(self) -> bool: ...

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """The first ``n`` items of ``seed``; the same for every arm."""
        ...

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """The next request, given the replies so far; None when the item is done."""
        ...

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """Score a finished sample. Must not raise on any model output."""
        ...


class Backend(Protocol):
    """Something that answers requests. ``complete`` raises RequestError, never returns an error."""

    @property
    def label(self) -> str:
        """What messages call it: a URL, or a file."""
        ...

    async def complete(self, key: SampleKey, request: Request) -> Output: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmAnswers:
    """Facts about one arm's answers in a `PairedTable`, shape [n, repeats] each; None: not known at all.

    ``unextracted`` marks answers in which the grader found nothing to grade.
    """

    completion_tokens: FloatArray | None = None  # NaN where one answer's is not known
    unextracted: npt.NDArray[np.bool_] | None = None
    degenerate: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedTable:
    """Two arms' scores on the items both answered.

    ``baseline`` and ``candidate`` have shape [n, repeats]; ``excluded`` counts, by reason, the
    items of the plan that are not in the table. ``n_planned`` = n + sum(excluded).
    """

    model: str
    task: str
    baseline_arm: str
    candidate_arm: str
    item_ids: tuple[str, ...]
    cluster_ids: tuple[str, ...]
    baseline: FloatArray  # [n, K]
    candidate: FloatArray  # [n, K]
    baseline_truncated: npt.NDArray[np.bool_]  # [n, K]
    candidate_truncated: npt.NDArray[np.bool_]  # [n, K]
    n_planned: int
    missing_baseline: int = 0  # planned items without a scored baseline sample
    missing_candidate: int = 0
    #: mean scores of items that only one arm answered; they bound what missing answers could change
    unpaired_baseline: FloatArray = field(default_factory=lambda: np.empty(0))
    unpaired_candidate: FloatArray = field(default_factory=lambda: np.empty(0))
    excluded: Mapping[str, int] = field(default_factory=dict)
    baseline_answers: ArmAnswers = field(default_factory=ArmAnswers)
    candidate_answers: ArmAnswers = field(default_factory=ArmAnswers)
    prompt_tokens: FloatArray | None = None  # [n], of the baseline's prompts; NaN where not known
    strata: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # name -> [n] labels, "" for none

    @property
    def n(self) -> int:
        return len(self.item_ids)
