"""What a run shows about one model: estimates, intervals and tests, before any threshold is applied.

A comparison is always "some arm minus A1" and is filed under the role of that arm: CANDIDATE (the primary
comparison), BASELINE_REPEAT (the noise floor), GROSS_CONTROL and MILD_CONTROL.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.evals.statistics.detectable import DetectableLoss
from equipoise.evals.statistics.excess import ExcessDiscordance
from equipoise.evals.statistics.logprob import LogprobComparison
from equipoise.evals.statistics.mcnemar import McNemarResult
from equipoise.evals.statistics.missingness import DifferentialMissingness
from equipoise.evals.statistics.mover import MoverResult
from equipoise.evals.statistics.newcombe import NewcombeInterval
from equipoise.evals.statistics.tango import TangoResult
from equipoise.evals.types import ArmRole

__all__ = [
    "ArmMissing",
    "Comparison",
    "LogprobEvidence",
    "MissingBounds",
    "PooledComparison",
    "SuiteEvidence",
    "TaskEvidence",
    "Truncation",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBounds:
    """Delta and its one-sided limits if every unpaired item had gone the worst, and the best, way.

    ``worst_delta`` and ``lower`` count a missing candidate as wrong and a missing baseline as right;
    ``best_delta`` and ``upper`` the reverse. Without missing items they are the observed ones.
    """

    unpaired: int
    worst_delta: float
    lower: float
    best_delta: float
    upper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Answers that ran into the token budget, as a paired endpoint.

    ``test.b`` counts pairs truncated under the baseline only, ``test.c`` under the candidate only.
    ``both_completed`` repeats the primary analysis on pairs with no truncation on either side.
    """

    baseline: int
    candidate: int
    n: int
    test: McNemarResult
    both_completed: TangoResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One arm against A1 on one task. All limits are of ``delta = candidate - baseline``."""

    task: str
    baseline_arm: str
    candidate_arm: str
    n: int
    n_planned: int
    excluded: Mapping[str, int]
    baseline_accuracy: float
    candidate_accuracy: float
    tango: TangoResult
    newcombe: NewcombeInterval
    mcnemar: McNemarResult
    truncation: Truncation
    missing: MissingBounds
    detectable: DetectableLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvidence:
    """All comparisons of one accuracy task. A role is absent where it did not run or nothing paired."""

    task: str
    margin: float
    n_planned: int
    comparisons: Mapping[ArmRole, Comparison]
    excess: ExcessDiscordance | None

    @property
    def primary(self) -> Comparison | None:
        """Candidate against baseline; None if no item was scored in both."""
        return self.comparisons.get(ArmRole.CANDIDATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledComparison:
    """The macro-mean over the tasks, and sign tests on the tasks' summed discordant pairs.

    ``missing_lower`` and ``missing_upper`` are the limits of the mean under the tasks' missing bounds;
    ``detectable`` is for the sign test, at one loss common to all tasks.
    """

    mover: MoverResult
    missing_lower: float
    missing_upper: float
    sign_test: McNemarResult
    truncation_test: McNemarResult
    detectable: DetectableLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobEvidence:
    """A teacher-forced task. Only sequences whose prefix both arms read from their cache count.

    ``sequences_planned``, ``sequences_paired`` and ``sequences_cache_not_read`` are of the primary
    comparison; the latter were scored in both arms and left out.
    """

    task: str
    margin_nats: float
    sequences_planned: int
    sequences_paired: int
    sequences_cache_not_read: int
    excluded: Mapping[str, int]
    comparisons: Mapping[ArmRole, LogprobComparison]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmMissing:
    """Samples of one arm, over the suite, that have no score."""

    role: ArmRole
    arm: str
    missing: int
    planned: int

    @property
    def rate(self) -> float:
        return self.missing / self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteEvidence:
    """Everything known about one model.

    Attributes
    ----------
    roles_run
        Arms that the run had: a role that is absent here was never asked.
    pooled
        By role; absent where a task has nothing to pool.
    parity_violations
        Differences between the arms that the plan does not allow, one sentence each.
    """

    model: str
    alpha: float
    suite_margin: float
    roles_run: frozenset[ArmRole]
    tasks: tuple[TaskEvidence, ...]
    pooled: Mapping[ArmRole, PooledComparison]
    logprobs: tuple[LogprobEvidence, ...] = ()
    arms_missing: tuple[ArmMissing, ...] = ()
    differential_missingness: DifferentialMissingness | None = None
    parity_violations: tuple[str, ...] = field(default=())
