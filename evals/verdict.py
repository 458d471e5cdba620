"""What was decided: labels, reasons in plain words, exit codes. The rules are in evals/policy.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "ControlVerdict",
    "GateStatus",
    "LogprobVerdict",
    "NoiseFloorVerdict",
    "Outcome",
    "RunVerdict",
    "SuiteVerdict",
    "TaskLabel",
    "TaskVerdict",
]


class TaskLabel(StrEnum):
    """Verdict of a task or of the pooled mean, in order of precedence."""

    INVALID = "INVALID"
    DEGRADED = "DEGRADED"
    SUSPECT = "SUSPECT"
    INCONCLUSIVE = "INCONCLUSIVE"
    DETECTED_WITHIN_MARGIN = "DETECTED-WITHIN-MARGIN"
    EQUIVALENT = "EQUIVALENT"
    NON_INFERIOR = "NON-INFERIOR"


class Outcome(StrEnum):
    """Verdict of a suite or a run, the worst first."""

    INVALID = "INVALID"
    DEGRADED = "DEGRADED"
    INCONCLUSIVE = "INCONCLUSIVE"
    SIGNED_OFF = "SIGNED OFF"

    @property
    def exit_code(self) -> int:
        """What the command line returns; 2 is left to usage errors."""
        return {"INVALID": 4, "DEGRADED": 1, "INCONCLUSIVE": 3, "SIGNED OFF": 0}[self.value]


class GateStatus(StrEnum):
    """A check beside the accuracies: the logprob gate, the noise floor, a control."""

    PASSED = "passed"
    FAILED = "failed"
    CACHE_NOT_READ = "cache not read"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskVerdict:
    """Verdict of one task, or of the pooled mean (whose ``task`` is "pooled mean").

    Attributes
    ----------
    worst_case_label
        The label if every missing answer counted the worst way; equal to ``label`` if nothing is missing.
    reasons
        Why the label holds, in plain words.
    improved
        The gain alarm rejects on a NON-INFERIOR task: the candidate is better.
    blind
        The gross control left the task non-inferior: it cannot see the fault it should see.
    loss_alarm_p, truncation_alarm_p
        Two-sided p-values, adjusted over the tasks (Holm); NaN if there was nothing to test.
    items_needed
        For INCONCLUSIVE and SUSPECT: items of this task that would probably decide; None if no number would.
    would_decide
        The same in words, repeats included; empty under any other label.
    """

    task: str
    critical: bool
    label: TaskLabel
    worst_case_label: TaskLabel
    reasons: tuple[str, ...]
    improved: bool = False
    blind: bool = False
    loss_alarm_p: float
    truncation_alarm_p: float
    items_needed: int | None = None
    would_decide: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobVerdict:
    """The gate of a teacher-forced task: is the upper bound of delta-NLL below ``gate_nats``?"""

    task: str
    critical: bool
    status: GateStatus
    gate_nats: float
    exceeded: bool  # failed, and the lower bound lies above the gate
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloorVerdict:
    """Does the baseline agree with itself? ``unattainable`` names tasks whose margin A/A does not meet."""

    status: GateStatus
    reason: str
    unattainable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlVerdict:
    """Was a planted fault caught? Its labels come from the tests that judge the candidate.

    ``status`` PASSED means caught. ``blind_tasks`` found the fault non-inferior.
    """

    status: GateStatus
    required: bool
    reason: str
    pooled_label: TaskLabel | None = None
    task_labels: Mapping[str, TaskLabel] = field(default_factory=dict)
    blind_tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteVerdict:
    """Verdict of one model."""

    model: str
    outcome: Outcome
    indistinguishable: bool
    reasons: tuple[str, ...]
    tasks: tuple[TaskVerdict, ...]
    pooled: TaskVerdict
    logprobs: tuple[LogprobVerdict, ...]
    noise_floor: NoiseFloorVerdict
    gross_control: ControlVerdict
    mild_control: ControlVerdict  # reported, never required

    @property
    def exit_code(self) -> int:
        return self.outcome.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """Verdict of a run: the worst of its models'."""

    outcome: Outcome
    indistinguishable: bool
    models: tuple[SuiteVerdict, ...]

    @property
    def exit_code(self) -> int:
        return self.outcome.exit_code
