"""One model's part of the report, from its evidence and verdict. Copies values; computes nothing new."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from equipoise.evals.evidence import Comparison, SuiteEvidence, TaskEvidence
from equipoise.evals.experiment.logprob_rows import logprob_row
from equipoise.evals.experiment.plan_check import pass_probability, predicted_power
from equipoise.evals.experiment.questions import Question
from equipoise.evals.experiment.report_flips import flips_of
from equipoise.evals.experiment.report_secondary import secondary_report
from equipoise.evals.experiment.scored import ModelSamples
from equipoise.evals.plan import Plan
from equipoise.evals.types import ArmRole
from equipoise.evals.verdict import (
    ControlVerdict,
    GateStatus,
    SuiteVerdict,
    TaskVerdict,
)
from equipoise.reports.model import (
    Control,
    ErrorSample,
    Exclusion,
    Interval,
    Missing,
    ModelReport,
    NoiseFloor,
    NoiseRow,
    PooledRow,
    Power,
    PowerRow,
    TaskRow,
)

__all__ = ["control_row", "evidence_report", "model_report"]

MAX_ERRORS = 10
MAX_ERROR_CHARS = 500


def model_report(  # noqa: PLR0917
    plan: Plan,
    questions: Sequence[Question],
    evidence: SuiteEvidence,
    verdict: SuiteVerdict,
    data: ModelSamples,
    own_checkpoints: Mapping[str, str] = MappingProxyType({}),
) -> ModelReport:
    """Everything a reader is told about one model.

    ``own_checkpoints``: by arm, what it stores, for arms that serve other weights than the model's path.
    """
    errors = _errors(data)
    controls = (
        (plan.arm(ArmRole.GROSS_CONTROL), verdict.gross_control),
        (plan.arm(ArmRole.MILD_CONTROL), verdict.mild_control),
    )
    return replace(
        evidence_report(evidence, verdict),
        controls=tuple(
            control_row(
                evidence,
                arm.role,
                v,
                name=arm.name,
                variant=own_checkpoints.get(arm.name) or arm.variant or arm.url or arm.replay or "",
            )
            for arm, v in controls
            if arm is not None
        ),
        power=_power(plan, evidence),
        errors_total=len(errors),
        errors=errors[:MAX_ERRORS],
        flips=flips_of(plan, questions, data),
    )


def evidence_report(evidence: SuiteEvidence, verdict: SuiteVerdict) -> ModelReport:
    """What follows from evidence and verdict alone, with no plan at hand."""
    verdicts = {v.task: v for v in verdict.tasks}
    return ModelReport(
        name=evidence.model,
        verdict=verdict.outcome.value,
        sentence=_sentence(verdict),
        tasks=tuple(_task_row(t, verdicts[t.task]) for t in evidence.tasks),
        pooled=_pooled_row(evidence, verdict.pooled),
        worst_case_verdict=verdict.pooled.worst_case_label.value,
        logprobs=tuple(logprob_row(e, v) for e, v in zip(evidence.logprobs, verdict.logprobs, strict=True)),
        noise_floor=_noise_floor(evidence, verdict),
        missing=tuple(
            Missing(arm=m.arm, planned=m.planned, missing=m.missing) for m in evidence.arms_missing
        ),
        exclusions=_exclusions(evidence),
        secondary=secondary_report(evidence),
    )


def _sentence(verdict: SuiteVerdict) -> str:
    """The labels that the model's verdict rests on; the reasons stand with each task."""
    gating = [v for v in verdict.tasks if v.critical]
    parts = [f"{v.task} {v.label.value}" for v in (*gating, verdict.pooled)]
    parts += [
        f"{v.task} (supporting) DEGRADED"
        for v in verdict.tasks
        if not v.critical and v.label.value == "DEGRADED"
    ]
    return ", ".join(parts)


def _interval(low: float, high: float, alpha: float, method: str) -> Interval:
    """The two one-sided bounds as one interval, at level 1 - 2 alpha."""
    return Interval(lo=low, hi=high, level=1.0 - 2.0 * alpha, method=method)


def _task_row(task: TaskEvidence, verdict: TaskVerdict) -> TaskRow:
    c = task.primary
    if c is None:
        return TaskRow(
            task=task.task,
            critical=verdict.critical,
            n=0,
            verdict=verdict.label.value,
            accuracy_baseline=None,
            accuracy_candidate=None,
            delta=None,
            interval=None,
            margin=task.margin,
            lost=None,
            gained=None,
            reason="; ".join(verdict.reasons),
        )
    t = c.estimate
    return TaskRow(
        task=task.task,
        critical=verdict.critical,
        n=c.n,
        verdict=verdict.label.value,
        accuracy_baseline=c.baseline_accuracy,
        accuracy_candidate=c.candidate_accuracy,
        delta=t.delta,
        interval=_interval(t.lower, t.upper, t.alpha, t.method),
        margin=task.margin,
        lost=_count(c.lost),
        gained=_count(c.gained),
        p_non_inferiority=t.noninferiority_p,
        p_equivalence=t.equivalence_p,
        p_mcnemar=c.mcnemar.exact_p if c.mcnemar else None,
        p_mid=c.mcnemar.mid_p if c.mcnemar else None,
        p_alarm=verdict.loss_alarm_p,
        p_truncation_alarm=verdict.truncation_alarm_p,
        truncation_baseline=c.truncation.baseline_rate,
        truncation_candidate=c.truncation.candidate_rate,
        smallest_detectable_loss=c.detectable.loss,
        worst_case_verdict=verdict.worst_case_label.value,
        repeats=min(c.repeats_baseline, c.repeats_candidate),
        clusters=c.clusters,
        blind=verdict.blind,
        improved=verdict.improved,
        reason="; ".join(verdict.reasons),
        would_decide=verdict.would_decide,
    )


def _count(x: float) -> int | float:
    """Pairs where they are whole; sums of score differences where answers are graded or repeated."""
    return int(x) if x == int(x) else x


def _pooled_row(evidence: SuiteEvidence, verdict: TaskVerdict) -> PooledRow | None:
    pooled = evidence.pooled.get(ArmRole.CANDIDATE)
    primaries = [c for t in evidence.tasks if (c := t.primary) is not None]
    if pooled is None or not primaries:
        return None
    m = pooled.mover
    return PooledRow(
        n_tasks=len(primaries),
        n=sum(c.n for c in primaries),
        verdict=verdict.label.value,
        accuracy_baseline=sum(c.baseline_accuracy for c in primaries) / len(primaries),
        accuracy_candidate=sum(c.candidate_accuracy for c in primaries) / len(primaries),
        delta=m.delta,
        interval=_interval(m.lower, m.upper, m.alpha, m.method),
        margin=m.margin,
        lost=_count(pooled.lost),
        gained=_count(pooled.gained),
        smallest_detectable_loss=pooled.detectable.loss,
        reason="; ".join(verdict.reasons),
        would_decide=verdict.would_decide,
    )


def _noise_floor(evidence: SuiteEvidence, verdict: SuiteVerdict) -> NoiseFloor | None:
    pooled = evidence.pooled.get(ArmRole.BASELINE_REPEAT)
    if pooled is None:
        return None
    rows = [(t, c) for t in evidence.tasks if (c := t.comparisons.get(ArmRole.BASELINE_REPEAT)) is not None]
    excess = [(t.excess, t.n_planned) for t in evidence.tasks if t.excess is not None]
    n = sum(e.n for e, _ in excess)
    return NoiseFloor(
        n=sum(c.n for _, c in rows),
        lost=_count(pooled.lost),
        gained=_count(pooled.gained),
        p=pooled.sign_test.two_sided_p,
        passed=verdict.noise_floor.status is GateStatus.PASSED,
        excess_discordance=sum(e.excess * e.n for e, _ in excess) / n if n else None,
        delta=pooled.mover.delta,
        interval=_interval(pooled.mover.lower, pooled.mover.upper, pooled.mover.alpha, pooled.mover.method),
        reason=verdict.noise_floor.reason,
        tasks=tuple(
            NoiseRow(task=t.task, n=c.n, lost=_count(c.lost), gained=_count(c.gained), p=c.alarm.two_sided_p)
            for t, c in rows
        ),
    )


def control_row(
    evidence: SuiteEvidence, role: ArmRole, verdict: ControlVerdict, *, name: str, variant: str
) -> Control:
    """A planted fault and whether it was caught; ``variant`` says what it is."""
    pooled = evidence.pooled.get(role)
    comparisons: Mapping[str, Comparison] = {
        t.task: c for t in evidence.tasks if (c := t.comparisons.get(role)) is not None
    }
    return Control(
        arm=name,
        strength="gross" if role is ArmRole.GROSS_CONTROL else "mild",
        variant=variant,
        required=verdict.required,
        caught=verdict.status is GateStatus.PASSED,
        delta=pooled.mover.delta if pooled else None,
        interval=_interval(pooled.mover.lower, pooled.mover.upper, pooled.mover.alpha, pooled.mover.method)
        if pooled
        else None,
        task_verdicts={name: label.value for name, label in verdict.task_labels.items()},
        task_deltas={name: c.estimate.delta for name, c in comparisons.items()},
        blind_tasks=verdict.blind_tasks,
        reason=verdict.reason,
    )


def _power(plan: Plan, evidence: SuiteEvidence) -> Power:
    predicted = predicted_power(plan)
    seen = {t.task: t.primary for t in evidence.tasks}
    rows = []
    for design, power in zip(predicted.tasks, predicted.task_noninferior, strict=True):
        c = seen.get(design.name)
        rows.append(
            PowerRow(
                task=design.name,
                n=design.n,
                predicted_power=power,
                p_d_assumed=design.p_d,
                p_d_observed=c.discordant_share if c is not None else None,
            )
        )
    return Power(
        assumed_loss=plan.decision.assumed_loss,
        joint=pass_probability(plan, predicted),
        pooled=predicted.pooled_noninferior,
        tasks=tuple(rows),
    )


def _exclusions(evidence: SuiteEvidence) -> tuple[Exclusion, ...]:
    found = [
        Exclusion(task=t.task, arm=f"{c.candidate_arm} against {c.baseline_arm}", reason=reason, count=count)
        for t in evidence.tasks
        for c in t.comparisons.values()
        for reason, count in c.excluded.items()
    ]
    found += [
        Exclusion(task=t.task, arm=arms, reason=reason, count=count)
        for t in evidence.tasks
        for arms, excluded in t.unpaired.items()
        for reason, count in excluded.items()
    ]
    return (
        *found,
        *(
            Exclusion(task=e.task, arm="candidate against baseline", reason=reason, count=count)
            for e in evidence.logprobs
            for reason, count in e.excluded.items()
        ),
    )


def _errors(data: ModelSamples) -> tuple[ErrorSample, ...]:
    return tuple(
        ErrorSample(arm=arm, task=task, item_id=s.key.item_id, message=s.error[:MAX_ERROR_CHARS])
        for (arm, task), samples in data.samples.items()
        for s in samples
        if s.error is not None
    )
