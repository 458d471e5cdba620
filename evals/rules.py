"""The rules of a verdict as pure functions: from limits and alarms to a label, and why, in plain words."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from equipoise.evals.evidence import Comparison, PooledComparison, SuiteEvidence
from equipoise.evals.statistics.holm import holm
from equipoise.evals.types import ArmRole
from equipoise.evals.verdict import TaskLabel

__all__ = [
    "NO_ALARM",
    "Alarms",
    "Limits",
    "explain",
    "first_matching_label",
    "labels_of_arm",
    "pooled_alarms",
    "task_alarms",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """One-sided limits of delta beside their margin; as observed, and with missing answers at their worst.

    ``missing_lower`` and ``missing_upper`` are the observed limits where nothing is missing; ``nogo_upper``
    is the observed upper limit unless looks have spent a part of the level of "degraded".
    """

    lower: float
    upper: float
    missing_lower: float
    missing_upper: float
    nogo_upper: float
    margin: float

    @classmethod
    def of(cls, evidence: Comparison | PooledComparison) -> "Limits":
        """The limits of a task's comparison or of the pooled mean."""
        if isinstance(evidence, Comparison):
            estimate, missing = evidence.estimate, evidence.missing
            return cls(
                lower=estimate.lower,
                upper=estimate.upper,
                missing_lower=missing.lower,
                missing_upper=missing.upper,
                nogo_upper=evidence.nogo_upper,
                margin=estimate.margin,
            )
        return cls(
            lower=evidence.mover.lower,
            upper=evidence.mover.upper,
            missing_lower=evidence.missing_lower,
            missing_upper=evidence.missing_upper,
            nogo_upper=evidence.nogo_upper,
            margin=evidence.mover.margin,
        )

    @property
    def noninferior(self) -> bool:
        """``L > -m``, also if every missing answer counts against the candidate. NaN never passes."""
        return self.lower > -self.margin and self.missing_lower > -self.margin

    @property
    def within_margin_above(self) -> bool:
        """``U < m``, also if every missing answer counts for the candidate."""
        return self.upper < self.margin and self.missing_upper < self.margin

    @property
    def degraded(self) -> bool:
        """``U < -m``."""
        return self.nogo_upper < -self.margin

    @property
    def worst_case(self) -> "Limits":
        """The limits with missing answers at their worst, in place of the observed ones."""
        return Limits(
            lower=self.missing_lower,
            upper=self.missing_upper,
            missing_lower=self.missing_lower,
            missing_upper=self.missing_upper,
            nogo_upper=max(self.missing_upper, self.nogo_upper),
            margin=self.margin,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarms:
    """Two-sided tests of "no difference at all": on the scores, split by direction, and on truncation."""

    loss: bool
    gain: bool
    truncation: bool
    score_p: float
    truncation_p: float


NO_ALARM = Alarms(loss=False, gain=False, truncation=False, score_p=nan, truncation_p=nan)


def first_matching_label(  # noqa: PLR0911 - one return for each rule
    limits: Limits, alarms: Alarms, *, invalid: bool = False, noise_attains_margin: bool = True
) -> TaskLabel:
    """The first rule that matches, in the order of `TaskLabel`.

    Parameters
    ----------
    limits, alarms
        Of the candidate against the baseline.
    invalid
        Whether some condition of validity is broken.
    noise_attains_margin
        Whether the baseline against itself is non-inferior at the margin; if not, nothing can be.
    """
    if invalid:
        return TaskLabel.INVALID
    if limits.degraded:
        return TaskLabel.DEGRADED
    if not limits.noninferior and (alarms.loss or alarms.truncation):
        return TaskLabel.SUSPECT
    if not limits.noninferior or not noise_attains_margin:
        return TaskLabel.INCONCLUSIVE
    if alarms.loss or alarms.truncation:
        return TaskLabel.DETECTED_WITHIN_MARGIN
    if limits.within_margin_above and not alarms.gain:
        return TaskLabel.EQUIVALENT
    return TaskLabel.NON_INFERIOR


def task_alarms(comparisons: Sequence[Comparison | None], alpha: float) -> list[Alarms]:
    """Each task's alarms, adjusted over the tasks (Holm), scores and truncation each a family."""
    present = [c for c in comparisons if c is not None]
    if not present:
        return [NO_ALARM for _ in comparisons]
    score_p = iter(holm([c.alarm.two_sided_p for c in present]).adjusted)
    truncation_p = iter(holm([c.truncation.test.two_sided_p for c in present]).adjusted)
    return [
        NO_ALARM if c is None else _alarms(c.estimate.delta, next(score_p), next(truncation_p), alpha)
        for c in comparisons
    ]


def pooled_alarms(pooled: PooledComparison, alpha: float) -> Alarms:
    """Sign tests on the items of all tasks together: small losses that go the same way."""
    return _alarms(
        pooled.gained - pooled.lost,
        pooled.sign_test.two_sided_p,
        pooled.truncation_test.two_sided_p,
        alpha,
    )


def labels_of_arm(evidence: SuiteEvidence, role: ArmRole) -> tuple[TaskLabel | None, dict[str, TaskLabel]]:
    """Labels that an arm earns by itself (pooled, and by task), every condition of validity aside."""
    comparisons = [t.comparisons.get(role) for t in evidence.tasks]
    alarms = task_alarms(comparisons, evidence.alpha)
    by_task = {
        t.task: first_matching_label(Limits.of(c), a)
        for t, c, a in zip(evidence.tasks, comparisons, alarms, strict=True)
        if c is not None
    }
    pooled = evidence.pooled.get(role)
    label = first_matching_label(Limits.of(pooled), pooled_alarms(pooled, evidence.alpha)) if pooled else None
    return label, by_task


def explain(  # noqa: PLR0911 - one return for each label
    label: TaskLabel, limits: Limits, alarms: Alarms, *, noise_attains_margin: bool
) -> list[str]:
    """Why a label holds; INVALID is explained by whoever found the broken condition."""
    low, high, m = f"{limits.lower:+.4f}", f"{limits.upper:+.4f}", f"{limits.margin:.4f}"
    alarm = _explain_alarms(alarms)
    match label:
        case TaskLabel.DEGRADED:
            return [f"the loss is larger than the margin: delta is at most {high}, below -{m}", *alarm]
        case TaskLabel.SUSPECT:
            return [_not_shown(limits), *alarm]
        case TaskLabel.INCONCLUSIVE if limits.noninferior and not noise_attains_margin:
            return [f"margin unattainable: the baseline against itself is not non-inferior at {m}"]
        case TaskLabel.INCONCLUSIVE:
            return [_not_shown(limits)]
        case TaskLabel.DETECTED_WITHIN_MARGIN:
            return [f"a difference is there, but delta is at least {low}, above -{m}", *alarm]
        case TaskLabel.EQUIVALENT:
            return [f"delta lies between {low} and {high}, within the margin of {m}"]
        case TaskLabel.NON_INFERIOR:
            return [f"delta is at least {low}, above -{m}", *alarm]
        case _:
            return []


def _not_shown(limits: Limits) -> str:
    if limits.lower > -limits.margin:
        return (
            f"answers are missing: at their worst, delta may be as low as {limits.missing_lower:+.4f}, "
            f"not above -{limits.margin:.4f}"
        )
    return f"a loss of the margin is not excluded: delta may be as low as {limits.lower:+.4f}"


def _alarms(direction: float, score_p: float, truncation_p: float, alpha: float) -> Alarms:
    return Alarms(
        loss=score_p <= alpha and direction < 0,
        gain=score_p <= alpha and direction > 0,
        truncation=truncation_p <= alpha,
        score_p=score_p,
        truncation_p=truncation_p,
    )


def _explain_alarms(alarms: Alarms) -> list[str]:
    reasons = []
    if alarms.loss:
        reasons.append(f"the loss alarm rejects (adjusted p = {alarms.score_p:.2g})")
    if alarms.gain:
        reasons.append(f"the candidate is better (adjusted p = {alarms.score_p:.2g})")
    if alarms.truncation:
        reasons.append(f"answers are truncated at different rates (adjusted p = {alarms.truncation_p:.2g})")
    return reasons
