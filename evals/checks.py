"""What must hold before a verdict means anything: validity, noise floor, controls, the logprob gate.

Every threshold comes in as an argument; `equipoise.evals.policy` holds them.
"""

from collections.abc import Collection

from equipoise.evals.evidence import LogprobEvidence, SuiteEvidence, TaskEvidence
from equipoise.evals.rules import Limits, labels_of_arm
from equipoise.evals.types import ArmRole
from equipoise.evals.verdict import ControlVerdict, GateStatus, LogprobVerdict, NoiseFloorVerdict

__all__ = ["broken_in_suite", "broken_in_task", "control_verdict", "logprob_verdict", "noise_floor_verdict"]


def broken_in_suite(
    evidence: SuiteEvidence,
    *,
    required_roles: Collection[ArmRole],
    max_missing: float,
    missingness_alpha: float,
    noise_alarm_p: float,
) -> list[str]:
    """Conditions that make every verdict of the model INVALID, one sentence each."""
    broken = [f"parity: {violation}" for violation in evidence.parity_violations]
    for role in sorted(required_roles):
        if role not in evidence.roles_run:
            broken.append(f"the plan requires a {role.value.replace('_', ' ')}, and none was run")
    for arm in evidence.arms_missing:
        # The mild control decides nothing, so what it lacks invalidates nothing.
        if arm.role is not ArmRole.MILD_CONTROL and arm.rate > max_missing:
            broken.append(
                f"{arm.missing} of {arm.planned} answers are missing in arm {arm.arm} "
                f"({arm.rate:.2%}, allowed {max_missing:.2%})"
            )
    test = evidence.differential_missingness
    if test is not None and test.p < missingness_alpha:
        broken.append(
            f"answers are missing at different rates: {test.baseline_missing} of the baseline's, "
            f"{test.candidate_missing} of the candidate's (p = {test.p:.2g})"
        )
    noise = evidence.pooled.get(ArmRole.BASELINE_REPEAT)
    if (
        noise is not None
        and min(noise.sign_test.two_sided_p, noise.truncation_test.two_sided_p) < noise_alarm_p
    ):
        broken.append("the baseline differs from itself over all tasks (A/A alarm)")
    if ArmRole.GROSS_CONTROL in evidence.roles_run:
        control = evidence.pooled.get(ArmRole.GROSS_CONTROL)
        if control is None:
            broken.append("the gross control has no pooled mean: a task has no answers of it")
        elif not Limits.of(control).degraded:
            broken.append(
                f"the gross control was not caught: its pooled delta may be as high as "
                f"{control.mover.upper:+.4f}, not below -{control.mover.margin:.4f}"
            )
    return broken


def broken_in_task(
    task: TaskEvidence,
    evidence: SuiteEvidence,
    *,
    critical: bool,
    max_baseline_truncation: float,
    noise_alarm_p: float,
) -> list[str]:
    """Conditions that make one task INVALID, one sentence each."""
    broken = []
    primary = task.primary
    if primary is None:
        broken.append("no item was scored in both arms")
    elif primary.truncation.baseline_rate > max_baseline_truncation:
        cut = primary.truncation
        broken.append(
            f"{cut.baseline} of {cut.baseline_answers} baseline answers are truncated "
            f"(allowed {max_baseline_truncation:.2%}); raise the token budget"
        )
    noise = task.comparisons.get(ArmRole.BASELINE_REPEAT)
    if noise is not None:
        p = min(noise.alarm.two_sided_p, noise.truncation.test.two_sided_p)
        if p < noise_alarm_p:
            broken.append(f"the baseline differs from itself (A/A alarm, p = {p:.2g})")
    elif ArmRole.BASELINE_REPEAT in evidence.roles_run:
        broken.append("no item was scored in both baseline runs")
    if critical and ArmRole.GROSS_CONTROL in evidence.roles_run:
        control = task.comparisons.get(ArmRole.GROSS_CONTROL)
        if control is None:
            broken.append("no item was scored in the baseline and the gross control")
        elif is_blind(task):
            broken.append(
                "blind: the gross control is non-inferior here (delta at least "
                f"{control.estimate.lower:+.4f}); a blind task cannot be critical"
            )
    return broken


def is_blind(task: TaskEvidence) -> bool:
    """Whether the gross control was run and left the task non-inferior."""
    control = task.comparisons.get(ArmRole.GROSS_CONTROL)
    return control is not None and control.estimate.lower > -task.margin


def noise_attains(task: TaskEvidence) -> bool:
    """Whether the baseline against itself is non-inferior at the task's margin, or was not run."""
    noise = task.comparisons.get(ArmRole.BASELINE_REPEAT)
    return noise is None or Limits.of(noise).noninferior


def noise_floor_verdict(
    evidence: SuiteEvidence, *, critical: Collection[str], noise_alarm_p: float
) -> NoiseFloorVerdict:
    """Passed: no A/A alarm, and A/A non-inferior on every critical task and pooled."""
    role = ArmRole.BASELINE_REPEAT
    if role not in evidence.roles_run:
        return NoiseFloorVerdict(status=GateStatus.NOT_RUN, reason="the baseline was asked only once")
    pooled = evidence.pooled.get(role)
    if pooled is None:
        return NoiseFloorVerdict(status=GateStatus.FAILED, reason="a task has no pairs of baseline runs")
    tests = [(t.task, t.comparisons[role].alarm, t.comparisons[role].truncation.test) for t in evidence.tasks]
    tests.append(("pooled mean", pooled.sign_test, pooled.truncation_test))
    alarmed = [name for name, *pair in tests if min(t.two_sided_p for t in pair) < noise_alarm_p]
    unattainable = [t.task for t in evidence.tasks if not noise_attains(t)]
    if not Limits.of(pooled).noninferior:
        unattainable.append("pooled mean")
    failing = [name for name in unattainable if name in critical or name == "pooled mean"]
    if alarmed:
        reason = f"the baseline differs from itself on {', '.join(alarmed)}"
    elif failing:
        reason = f"margin unattainable: A/A is not non-inferior on {', '.join(failing)}"
    else:
        reason = "the baseline asked twice is non-inferior to itself"
    return NoiseFloorVerdict(
        status=GateStatus.FAILED if alarmed or failing else GateStatus.PASSED,
        reason=reason,
        unattainable=tuple(unattainable),
    )


def control_verdict(
    evidence: SuiteEvidence, role: ArmRole, *, critical: Collection[str], required: bool
) -> ControlVerdict:
    """Caught: its pooled mean is degraded, and no critical task finds it non-inferior."""
    if role not in evidence.roles_run:
        return ControlVerdict(status=GateStatus.NOT_RUN, required=required, reason="no such control was run")
    pooled_label, task_labels = labels_of_arm(evidence, role)
    pooled = evidence.pooled.get(role)
    blind = tuple(
        t.task
        for t in evidence.tasks
        if role in t.comparisons and t.comparisons[role].estimate.lower > -t.margin
    )
    blind_critical = [name for name in blind if name in critical]
    if pooled is None:
        caught, reason = False, "a task has no answers of this control"
    elif not Limits.of(pooled).degraded:
        caught, reason = False, f"its pooled delta may be as high as {pooled.mover.upper:+.4f}"
    elif blind_critical:
        caught, reason = False, f"critical tasks find it non-inferior: {', '.join(blind_critical)}"
    else:
        caught, reason = True, f"its pooled delta is at most {pooled.mover.upper:+.4f}"
    return ControlVerdict(
        status=GateStatus.PASSED if caught else GateStatus.FAILED,
        required=required,
        reason=reason,
        pooled_label=pooled_label,
        task_labels=task_labels,
        blind_tasks=blind,
    )


def logprob_verdict(
    evidence: LogprobEvidence, *, critical: bool, noise_factor: float, min_cache_read: float
) -> LogprobVerdict:
    """Passed: the upper bound of delta-NLL is below the larger of the margin and ``noise_factor`` x A/A.

    Where the plan sets ``max_kl_nats``, the upper bound of the mean KL must be below that too.
    """
    noise = evidence.comparisons.get(ArmRole.BASELINE_REPEAT)
    floor = noise_factor * abs(noise.delta_nll_nats) if noise is not None else 0.0
    gate = max(evidence.margin_nats, floor)
    candidate = evidence.comparisons.get(ArmRole.CANDIDATE)
    used = evidence.sequences_paired - evidence.sequences_cache_not_read
    exceeded = False
    if candidate is None or used < min_cache_read * evidence.sequences_planned:
        unread = evidence.sequences_cache_not_read
        status = GateStatus.CACHE_NOT_READ if unread else GateStatus.NOT_RUN
        reason = (
            f"{used} of {evidence.sequences_planned} sequences are usable; in {unread} the cache was not read"
        )
    elif candidate.upper < gate:
        status = GateStatus.PASSED
        reason = f"delta-NLL is at most {candidate.upper:.5f} nats a token, below {gate:.5f}"
    else:
        status = GateStatus.FAILED
        exceeded = candidate.lower > gate
        reason = (
            candidate.reason or f"delta-NLL may be {candidate.upper:.5f} nats a token, not below {gate:.5f}"
        )
    if evidence.max_kl_nats is not None and status in (GateStatus.PASSED, GateStatus.FAILED):
        within, beyond, kl_reason = _kl_gate(evidence, evidence.max_kl_nats)
        status = status if within else GateStatus.FAILED
        exceeded = exceeded or beyond
        reason = f"{reason}; {kl_reason}"
    return LogprobVerdict(
        task=evidence.task, critical=critical, status=status, gate_nats=gate, exceeded=exceeded, reason=reason
    )


def _kl_gate(evidence: LogprobEvidence, max_kl_nats: float) -> tuple[bool, bool, str]:
    """Whether the mean KL is shown below the limit, whether it is shown above it, and why."""
    kl = evidence.divergences.get(ArmRole.CANDIDATE)
    if kl is None:
        return False, False, f"no KL to hold against {max_kl_nats:.5f}: {evidence.kl_undefined}"
    beyond = kl.lower > max_kl_nats
    if kl.tokens_without_lists:
        missing = f"{kl.tokens_without_lists} of {kl.tokens + kl.tokens_without_lists} tokens have no KL"
        return False, beyond, f"{missing}: a server did not list their likely tokens"
    if kl.ceiling_upper < max_kl_nats:  # NaN is not
        return True, False, f"KL is at most {kl.ceiling_upper:.5f} nats a token, below {max_kl_nats:.5f}"
    why = kl.ceiling_reason or f"KL may be {kl.ceiling_upper:.5f} nats a token, not below {max_kl_nats:.5f}"
    return False, beyond, why
