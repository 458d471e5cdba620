"""The decision: the only place that knows thresholds.

``decide`` turns the evidence about each model into labels, an outcome and an exit code. Rules are tried in
the order of `TaskLabel` and `Outcome`; the first that matches wins, so they exclude each other and leave no
hole. Evidence that is missing never passes a check.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from scipy.stats import norm

from equipoise.evals import checks
from equipoise.evals.errors import EquipoiseError
from equipoise.evals.evidence import Comparison, PooledComparison, SuiteEvidence, TaskEvidence
from equipoise.evals.plan import Plan
from equipoise.evals.rules import (
    NO_ALARM,
    Alarms,
    Limits,
    explain,
    first_matching_label,
    pooled_alarms,
    task_alarms,
)
from equipoise.evals.statistics.deciding import units_to_decide
from equipoise.evals.statistics.power import items_to_decide
from equipoise.evals.statistics.tango import TangoResult
from equipoise.evals.types import ArmRole
from equipoise.evals.verdict import (
    GateStatus,
    LogprobVerdict,
    NoiseFloorVerdict,
    Outcome,
    RunVerdict,
    SuiteVerdict,
    TaskLabel,
    TaskVerdict,
)

__all__ = ["POOLED", "Policy", "decide", "decide_model", "policy_of"]

POOLED = "pooled mean"
_UNDECIDED = (TaskLabel.SUSPECT, TaskLabel.INCONCLUSIVE)
_NO_LIMITS = Limits(lower=-1.0, upper=1.0, missing_lower=-1.0, missing_upper=1.0, nogo_upper=1.0, margin=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Thresholds of a decision. Margins and alpha are the plan's and come with the evidence.

    Attributes
    ----------
    critical
        Names of the tasks (accuracy and teacher-forced) that sign-off needs.
    allow_detected
        Whether a real loss within the margin may be signed off.
    require_noise_floor, require_control
        Whether a run without the baseline asked twice, or without a gross control, is INVALID. A run
        that lacks one is never "indistinguishable", whatever the policy.
    max_baseline_truncation, max_missing
        Largest share of truncated baseline answers of a task; of missing answers of an arm.
    missingness_alpha, noise_alarm_p
        Below these p-values arms miss answers unequally; the baseline differs from itself.
    logprob_noise_factor
        The logprob gate is at least this multiple of the A/A change.
    min_cache_read
        Smallest share of planned sequences whose cache was read, for the logprob gate to count.
    decision_power
        Wanted probability of a decision when saying how many items would decide.
    """

    critical: frozenset[str]
    allow_detected: bool = False
    require_noise_floor: bool = True
    require_control: bool = True
    max_baseline_truncation: float = 0.02
    max_missing: float = 0.005
    missingness_alpha: float = 0.01
    noise_alarm_p: float = 0.001
    logprob_noise_factor: float = 3.0
    min_cache_read: float = 0.9
    decision_power: float = 0.8

    @property
    def required_roles(self) -> tuple[ArmRole, ...]:
        """Arms without which nothing is decided."""
        wanted = {
            ArmRole.BASELINE_REPEAT: self.require_noise_floor,
            ArmRole.GROSS_CONTROL: self.require_control,
        }
        return tuple(role for role, required in wanted.items() if required)


def policy_of(plan: Plan) -> Policy:
    """The policy that a plan registers."""
    return Policy(
        critical=frozenset(t.name for t in plan.tasks if t.critical),
        allow_detected=plan.decision.allow_detected,
        require_noise_floor=plan.decision.require_noise_floor,
        require_control=plan.decision.require_control,
        max_baseline_truncation=plan.decision.max_baseline_truncation,
        max_missing=plan.decision.max_missing,
    )


def decide(evidence: Sequence[SuiteEvidence], policy: Policy) -> RunVerdict:
    """Decide every model; the run's outcome is the worst of theirs.

    Raises
    ------
    EquipoiseError
        If there is no evidence at all.
    """
    if not evidence:
        raise EquipoiseError("nothing to decide: the run has evidence about no model")
    models = tuple(decide_model(e, policy) for e in evidence)
    return RunVerdict(
        outcome=_worst(m.outcome for m in models),
        indistinguishable=all(m.indistinguishable for m in models),
        models=models,
    )


def decide_model(evidence: SuiteEvidence, policy: Policy) -> SuiteVerdict:
    """Verdicts of one model's tasks, of its pooled mean, and of the model.

    Raises
    ------
    EquipoiseError
        If the policy calls a task critical that the evidence does not have.
    """
    known = {t.task for t in evidence.tasks} | {t.task for t in evidence.logprobs}
    if not policy.critical <= known:
        unknown = sorted(policy.critical - known)
        raise EquipoiseError(f"critical tasks {unknown} have no evidence; the evidence has {sorted(known)}")
    broken = checks.broken_in_suite(
        evidence,
        required_roles=policy.required_roles,
        max_missing=policy.max_missing,
        missingness_alpha=policy.missingness_alpha,
        noise_alarm_p=policy.noise_alarm_p,
    )
    alarms = task_alarms([t.primary for t in evidence.tasks], evidence.alpha)
    tasks = tuple(
        _decide_task(t, a, evidence, policy, broken) for t, a in zip(evidence.tasks, alarms, strict=True)
    )
    noise = checks.noise_floor_verdict(evidence, critical=policy.critical, noise_alarm_p=policy.noise_alarm_p)
    pooled = _decide_pooled(evidence, policy, broken, noise)
    logprobs = tuple(
        checks.logprob_verdict(
            e,
            critical=e.task in policy.critical,
            noise_factor=policy.logprob_noise_factor,
            min_cache_read=policy.min_cache_read,
        )
        for e in evidence.logprobs
    )
    gross = checks.control_verdict(
        evidence, ArmRole.GROSS_CONTROL, critical=policy.critical, required=policy.require_control
    )
    outcome, reasons = _outcome(tasks, pooled, logprobs, policy)
    gating = [v.label for v in (*tasks, pooled) if v.critical]
    return SuiteVerdict(
        model=evidence.model,
        outcome=outcome,
        indistinguishable=outcome is Outcome.SIGNED_OFF
        and all(label is TaskLabel.EQUIVALENT for label in gating)
        and noise.status is GateStatus.PASSED
        and gross.status is GateStatus.PASSED,
        reasons=tuple(reasons),
        tasks=tasks,
        pooled=pooled,
        logprobs=logprobs,
        noise_floor=noise,
        gross_control=gross,
        mild_control=checks.control_verdict(
            evidence, ArmRole.MILD_CONTROL, critical=policy.critical, required=False
        ),
    )


def _decide_task(
    task: TaskEvidence,
    alarms: Alarms,
    evidence: SuiteEvidence,
    policy: Policy,
    broken_in_suite: Sequence[str],
) -> TaskVerdict:
    critical = task.task in policy.critical
    broken = checks.broken_in_task(
        task,
        evidence,
        critical=critical,
        max_baseline_truncation=policy.max_baseline_truncation,
        noise_alarm_p=policy.noise_alarm_p,
    )
    verdict = _verdict(
        task.task,
        critical=critical,
        limits=Limits.of(task.primary) if task.primary else _NO_LIMITS,
        alarms=alarms,
        broken=[*broken, *broken_in_suite],
        noise_attains_margin=checks.noise_attains(task),
        blind=checks.is_blind(task),
    )
    if verdict.label not in _UNDECIDED or task.primary is None:
        return verdict
    # Items decide what noise hides only once A/A itself can meet the margin.
    undecided = task.primary if checks.noise_attains(task) else task.comparisons[ArmRole.BASELINE_REPEAT]
    return _with_advice(verdict, undecided, policy.decision_power)


def _decide_pooled(
    evidence: SuiteEvidence, policy: Policy, broken: Sequence[str], noise: NoiseFloorVerdict
) -> TaskVerdict:
    pooled = evidence.pooled.get(ArmRole.CANDIDATE)
    verdict = _verdict(
        POOLED,
        critical=True,
        limits=Limits.of(pooled) if pooled else _NO_LIMITS,
        alarms=pooled_alarms(pooled, evidence.alpha) if pooled else NO_ALARM,
        broken=[*(() if pooled else ("a task has nothing to pool",)), *broken],
        noise_attains_margin=POOLED not in noise.unattainable,
    )
    if verdict.label not in _UNDECIDED or pooled is None:
        return verdict
    undecided = pooled if POOLED not in noise.unattainable else evidence.pooled[ArmRole.BASELINE_REPEAT]
    items = _pooled_items_to_decide(evidence, undecided, policy.decision_power)
    if items is None:
        return _advised(verdict, None, _NO_NUMBER)
    return _advised(verdict, items, f"about {items:,} items of all tasks together, in their present shares")


def _verdict(
    task: str,
    *,
    critical: bool,
    limits: Limits,
    alarms: Alarms,
    broken: Sequence[str],
    noise_attains_margin: bool,
    blind: bool = False,
) -> TaskVerdict:
    label, worst = (
        first_matching_label(x, alarms, invalid=bool(broken), noise_attains_margin=noise_attains_margin)
        for x in (limits, limits.worst_case)
    )
    return TaskVerdict(
        task=task,
        critical=critical,
        label=label,
        worst_case_label=worst,
        reasons=tuple(broken or explain(label, limits, alarms, noise_attains_margin=noise_attains_margin)),
        improved=label is TaskLabel.NON_INFERIOR and alarms.gain,
        blind=blind,
        loss_alarm_p=alarms.score_p,
        truncation_alarm_p=alarms.truncation_p,
    )


_NO_NUMBER = "no feasible number of items: the difference seen is too near the margin"


def _with_advice(verdict: TaskVerdict, undecided: Comparison, power: float) -> TaskVerdict:
    """Items, or items and repeats, that would probably decide if the rates seen are the truth."""
    estimate = undecided.estimate
    if isinstance(estimate, TangoResult):
        b, c = round(estimate.b), round(estimate.c)
        size = items_to_decide(b, c, estimate.n, margin=estimate.margin, alpha=estimate.alpha, power=power)
        if size.items is None:
            return _advised(verdict, None, _NO_NUMBER)
        return _advised(verdict, size.items, f"about {size.items:,} items")
    units = units_to_decide(
        estimate,
        power=power,
        within_share=undecided.within_share,
        repeats=min(undecided.repeats_baseline, undecided.repeats_candidate),
    )
    return _advised(verdict, units.advised_items, units.advice)


def _advised(verdict: TaskVerdict, items: int | None, advice: str) -> TaskVerdict:
    return replace(
        verdict,
        reasons=(*verdict.reasons, f"to decide: {advice}, if the rates seen are the truth"),
        items_needed=items,
        would_decide=advice,
    )


def _pooled_items_to_decide(evidence: SuiteEvidence, pooled: PooledComparison, power: float) -> int | None:
    """Items of all tasks: the limits shrink with the square root of the number of items."""
    mean = pooled.mover
    towards, room = (
        (mean.delta - mean.lower, mean.delta + mean.margin)
        if mean.delta > -mean.margin
        else (mean.upper - mean.delta, -mean.margin - mean.delta)
    )
    items = sum(c.n for t in evidence.tasks for c in (t.comparisons[ArmRole.CANDIDATE],))
    if room <= 0.0:
        return None
    z = float(norm.ppf(1.0 - mean.alpha))
    factor = (towards * (z + float(norm.ppf(power))) / (z * room)) ** 2
    needed = ceil(items * factor)
    return needed if needed <= 10_000_000 else None


def _outcome(
    tasks: Sequence[TaskVerdict], pooled: TaskVerdict, logprobs: Sequence[LogprobVerdict], policy: Policy
) -> tuple[Outcome, list[str]]:
    """The first outcome that some verdict calls for, and every verdict that calls for it."""
    verdicts = (*tasks, pooled)
    gates = [g for g in logprobs if g.critical]
    invalid = [v for v in verdicts if v.label is TaskLabel.INVALID]
    if invalid:
        return Outcome.INVALID, list(dict.fromkeys(_reasons(invalid)))
    degraded = [v for v in verdicts if v.label is TaskLabel.DEGRADED]
    exceeded = [g for g in gates if g.exceeded]
    if degraded or exceeded:
        return Outcome.DEGRADED, [*_reasons(degraded), *(f"{g.task}: {g.reason}" for g in exceeded)]
    undecided = [v for v in verdicts if v.critical and v.label in _UNDECIDED]
    if not policy.allow_detected:
        undecided += [v for v in verdicts if v.critical and v.label is TaskLabel.DETECTED_WITHIN_MARGIN]
    unshown = [g for g in gates if g.status is not GateStatus.PASSED]
    if undecided or unshown:
        return Outcome.INCONCLUSIVE, [*_reasons(undecided), *(f"{g.task}: {g.reason}" for g in unshown)]
    detected = [v.task for v in verdicts if v.critical and v.label is TaskLabel.DETECTED_WITHIN_MARGIN]
    reasons = ["every critical task and the pooled mean are non-inferior at their margins"]
    if detected:
        names = ", ".join(detected)
        reasons.append(f"a difference was detected and proven within the margin, as the plan allows: {names}")
    return Outcome.SIGNED_OFF, reasons


def _reasons(verdicts: Iterable[TaskVerdict]) -> list[str]:
    return [f"{v.task}: {reason}" for v in verdicts for reason in v.reasons]


def _worst(outcomes: Iterable[Outcome]) -> Outcome:
    order = list(Outcome)
    return min(outcomes, key=order.index)
