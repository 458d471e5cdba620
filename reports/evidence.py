"""The measured parts of a report: rows of tables, noise floor, controls. Plain values; see model.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.reports.node import Node
from equipoise.reports.vocabulary import CONTROL_STRENGTHS, TASK_VERDICTS, require

__all__ = [
    "Control",
    "ErrorSample",
    "Exclusion",
    "Interval",
    "Missing",
    "NoiseFloor",
    "NoiseRow",
    "PooledRow",
    "Power",
    "PowerRow",
    "TaskRow",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Node):
    """A two-sided interval; at ``level`` 0.90 its ends are the one-sided 95% bounds of the decision."""

    lo: float | None
    hi: float | None
    level: float = 0.90
    method: str = ""
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow(Node):
    """One accuracy task, candidate against baseline (B against A1)."""

    task: str
    critical: bool
    n: int
    verdict: str
    accuracy_baseline: float | None
    accuracy_candidate: float | None
    delta: float | None
    interval: Interval | None
    margin: float
    # b: baseline right, candidate wrong; c: the reverse. Sums of score differences if graded or repeated.
    lost: float | None
    gained: float | None
    p_non_inferiority: float | None = None
    p_equivalence: float | None = None
    p_mcnemar: float | None = None  # exact, two-sided
    p_mid: float | None = None
    p_alarm: float | None = None  # two-sided loss alarm, Holm over tasks
    p_truncation_alarm: float | None = None  # the same for truncation
    truncation_baseline: float | None = None  # fractions of answers
    truncation_candidate: float | None = None
    smallest_detectable_loss: float | None = None
    worst_case_verdict: str | None = None  # with missing answers counted against the candidate
    repeats: int = 1
    clusters: int | None = None  # where items share them
    blind: bool = False  # the gross control went unnoticed here
    improved: bool = False
    reason: str = ""
    would_decide: str = ""
    undefined: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        require(f"verdict of task {self.task!r}", self.verdict, TASK_VERDICTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledRow(Node):
    """The macro-mean over the model's accuracy tasks."""

    n_tasks: int
    n: int
    verdict: str
    accuracy_baseline: float | None
    accuracy_candidate: float | None
    delta: float | None
    interval: Interval | None
    margin: float
    lost: float | None = None
    gained: float | None = None
    p_non_inferiority: float | None = None
    p_equivalence: float | None = None
    smallest_detectable_loss: float | None = None
    reason: str = ""
    would_decide: str = ""
    undefined: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        require("verdict of the pooled mean", self.verdict, TASK_VERDICTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRow(Node):
    """A2 against A1 on one task."""

    task: str
    n: int
    lost: float
    gained: float
    p: float | None
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor(Node):
    """The baseline asked twice: A2 against A1, over all tasks of the model."""

    n: int
    lost: float
    gained: float
    p: float | None
    passed: bool
    excess_discordance: float | None = None  # of the candidate over A2 against A1
    excess_interval: Interval | None = None
    delta: float | None = None  # A2 - A1, pooled mean
    interval: Interval | None = None
    reason: str = ""
    tasks: tuple[NoiseRow, ...] = ()
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control(Node):
    """A planted fault. Its task verdicts are those of the same tests that judged the candidate."""

    arm: str
    strength: str  # gross | mild
    variant: str
    required: bool  # whether a miss invalidates the run
    caught: bool
    delta: float | None  # pooled mean
    interval: Interval | None
    task_verdicts: Mapping[str, str] = field(default_factory=dict)
    task_deltas: Mapping[str, float] = field(default_factory=dict)
    blind_tasks: tuple[str, ...] = ()
    reason: str = ""
    undefined: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        require("Control.strength", self.strength, CONTROL_STRENGTHS)
        for task, verdict in self.task_verdicts.items():
            require(f"{self.strength} control, verdict of task {task!r}", verdict, TASK_VERDICTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRow(Node):
    """What the plan promised for one task, beside what was seen."""

    task: str
    n: int
    predicted_power: float | None
    p_d_assumed: float | None  # share of discordant pairs
    p_d_observed: float | None
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Power(Node):
    """Predicted power to sign off at the plan's assumed loss."""

    assumed_loss: float
    joint: float | None  # all critical tasks and the pooled mean together
    pooled: float | None = None
    tasks: tuple[PowerRow, ...] = ()
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing(Node):
    """Answers of one arm that never came, of those planned."""

    arm: str
    planned: int
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion(Node):
    """Items of one task that could not be paired, by arm and reason."""

    task: str
    arm: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSample(Node):
    """One request that failed for good."""

    arm: str
    task: str
    item_id: str
    message: str
