"""What a run shows about one model: estimates, intervals and tests, before any threshold is applied.

A comparison is always "some arm minus A1" and is filed under the role of that arm: CANDIDATE (the primary
comparison), BASELINE_REPEAT (the noise floor), GROSS_CONTROL and MILD_CONTROL.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.evals.endpoints import TaskEndpoints
from equipoise.evals.statistics.delta import DeltaEstimate, DifferenceTest
from equipoise.evals.statistics.detectable import DetectableLoss
from equipoise.evals.statistics.excess import ExcessDiscordance
from equipoise.evals.statistics.kl_comparison import KlComparison
from equipoise.evals.statistics.logprob import LogprobComparison
from equipoise.evals.statistics.mcnemar import McNemarResult
from equipoise.evals.statistics.missingness import DifferentialMissingness
from equipoise.evals.statistics.mover import MoverResult
from equipoise.evals.statistics.newcombe import NewcombeInterval
from equipoise.evals.statistics.trend import StratifiedSignResult, TrendResult
from equipoise.evals.subgroups import Subgroups
from equipoise.evals.types import ArmRole

__all__ = [
    "ArmMissing",
    "Comparison",
    "Exploration",
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

    ``lost`` sums, over items, the share of the candidate's answers that are truncated beyond the
    baseline's (more truncation is worse), ``gained`` the reverse; with one answer an item they count the
    discordant pairs. ``both_completed`` repeats the primary analysis on items with no truncated answer.
    """

    baseline: int  # truncated answers
    candidate: int
    baseline_answers: int
    candidate_answers: int
    lost: float
    gained: float
    test: DifferenceTest
    both_completed: DeltaEstimate | None

    @property
    def baseline_rate(self) -> float:
        return self.baseline / self.baseline_answers

    @property
    def candidate_rate(self) -> float:
        return self.candidate / self.candidate_answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One arm against A1 on one task. All limits are of ``delta = candidate - baseline``.

    Attributes
    ----------
    repeats_baseline, repeats_candidate
        Answers an item in each arm.
    clusters
        Number of clusters where items share them, else None: every item stands alone.
    lost, gained
        Sums over items of the negative and positive parts of delta; with one 0/1 score an item, the
        discordant pairs b and c.
    estimate
        The primary analysis; its method depends on the shape of the data.
    nogo_upper
        Upper limit of delta at the level left for "degraded"; the estimate's own unless the plan
        registered looks, which have spent a part of that level.
    alarm
        Two-sided test of no difference at all.
    within_share
        Share of delta's variance that more repeats of the same items would shrink; None with one answer an
        item, where it cannot be known.
    mcnemar, newcombe
        Beside the primary analysis where each item has one 0/1 score and stands alone; else None.
    """

    task: str
    baseline_arm: str
    candidate_arm: str
    n: int
    n_planned: int
    excluded: Mapping[str, int]
    repeats_baseline: int
    repeats_candidate: int
    clusters: int | None
    baseline_accuracy: float
    candidate_accuracy: float
    lost: float
    gained: float
    discordant_share: float  # of items whose mean score differs
    estimate: DeltaEstimate
    nogo_upper: float
    alarm: DifferenceTest
    mcnemar: McNemarResult | None
    newcombe: NewcombeInterval | None
    truncation: Truncation
    missing: MissingBounds
    detectable: DetectableLoss
    within_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvidence:
    """All comparisons of one accuracy task. A role is absent where it did not run or nothing paired.

    ``unpaired`` says why nothing did: counts by reason, by "arm against arm".
    """

    task: str
    margin: float
    n_planned: int
    comparisons: Mapping[ArmRole, Comparison]
    excess: ExcessDiscordance | None
    unpaired: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def primary(self) -> Comparison | None:
        """Candidate against baseline; None if no item was scored in both."""
        return self.comparisons.get(ArmRole.CANDIDATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledComparison:
    """The macro-mean over the tasks, and tests on all their items together.

    ``lost`` and ``gained`` are the tasks' sums. ``sign_test`` asks whether they fall evenly on both sides:
    McNemar's on the summed discordant pairs, or sign flips over all items where scores are graded or
    repeated. ``missing_lower`` and ``missing_upper`` are the limits of the mean under the tasks' missing
    bounds; ``detectable`` is for the sign test, at one loss common to all tasks.
    """

    mover: MoverResult
    nogo_upper: float
    missing_lower: float
    missing_upper: float
    lost: float
    gained: float
    sign_test: DifferenceTest
    truncation_test: DifferenceTest
    detectable: DetectableLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobEvidence:
    """A teacher-forced task. Only sequences whose prefix both arms read from their cache count.

    ``sequences_planned``, ``sequences_paired`` and ``sequences_cache_not_read`` are of the primary
    comparison; the latter were scored in both arms and left out. ``divergences`` has the arms' KL where
    lists of likely tokens are there; ``kl_undefined`` says why the primary comparison has none.
    """

    task: str
    margin_nats: float
    sequences_planned: int
    sequences_paired: int
    sequences_cache_not_read: int
    excluded: Mapping[str, int]
    comparisons: Mapping[ArmRole, LogprobComparison]
    divergences: Mapping[ArmRole, KlComparison] = field(default_factory=dict)
    kl_undefined: str = ""
    max_kl_nats: float | None = None


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
class Exploration:
    """What is looked at beside the decision.

    Attributes
    ----------
    endpoints
        Each arm's secondary endpoints by task, adjusted over all of them (Benjamini-Hochberg).
    subgroups
        The candidate's, adjusted likewise.
    stratified
        Do tasks and lengths of prompt agree in losing a little? A loss too small for every single task's
        test; None if nothing paired.
    trend
        Does the candidate's loss grow with the prompt, over all tasks? None if no length is known.
    trend_unknown
        Paired items left out of the trend because their prompt's length is not known.
    """

    endpoints: Mapping[ArmRole, tuple[TaskEndpoints, ...]]
    subgroups: Subgroups
    stratified: StratifiedSignResult | None
    trend: TrendResult | None
    trend_unknown: int


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
    exploration: Exploration | None = None
