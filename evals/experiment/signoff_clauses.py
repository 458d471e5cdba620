"""The clauses of a sign-off policy, each held against a run: what is demanded, what was found, is it met.

What is not known never meets a demand.
"""

import datetime
import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.evals.plan import Plan
from equipoise.evals.signoff_document import ClauseResult, LedgerFacts
from equipoise.evals.signoff_policy import SignoffPolicy
from equipoise.reports.model import Attempt, Report

__all__ = ["RunUnderPolicy", "clauses", "valid_until"]

NON_INFERIOR = ("EQUIVALENT", "NON-INFERIOR", "DETECTED-WITHIN-MARGIN")
UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUnderPolicy:
    """A run as its journal gives it.

    ``servers`` is by model what was recorded about its arms; ``hardware`` that of the machine that ran them;
    ``suite_tasks`` the critical tasks of the plan's suite as it ships; ``finished`` the last answer's time.
    """

    plan: Plan
    report: Report
    servers: Mapping[str, Mapping[str, Any]]
    hardware: Mapping[str, Any]
    suite_tasks: Sequence[str]
    ledger: LedgerFacts | None
    ledger_problems: Sequence[str]
    finished: datetime.datetime


def valid_until(policy: SignoffPolicy, finished: datetime.datetime) -> datetime.datetime | None:
    """How long a sign-off under this policy holds; None: without end."""
    days = policy.origin.max_age_days
    return None if days is None else finished + datetime.timedelta(days=days)


def clauses(policy: SignoffPolicy, run: RunUnderPolicy, now: datetime.datetime) -> tuple[ClauseResult, ...]:
    """Every demand that the policy makes, in the order of its sections."""
    return (
        *_decision(policy, run),
        *_tasks(policy, run),
        *_evidence(policy, run),
        *_origin(policy, run, now),
    )


def _clause(name: str, demanded: str, found: str, met: bool) -> ClauseResult:
    return ClauseResult(name=name, demanded=demanded, found=found, met=met)


def _at_most(name: str, limit: float, value: float | None) -> ClauseResult:
    met = value is not None and value <= limit
    return _clause(name, f"at most {limit:g}", UNKNOWN if value is None else f"{value:g}", met)


def _decision(policy: SignoffPolicy, run: RunUnderPolicy) -> Iterator[ClauseResult]:
    wanted, plan, report = policy.decision, run.plan, run.report
    margins = {t.name: t.margin for t in plan.tasks if t.margin is not None}
    if wanted.max_suite_margin is not None:
        yield _at_most("decision.max_suite_margin", wanted.max_suite_margin, plan.decision.suite_margin)
    if wanted.max_task_margin is not None:
        limit = wanted.max_task_margin
        wide = [f"{name} {margin:g}" for name, margin in margins.items() if margin > limit]
        found = ", ".join(wide) or f"{max(margins.values()):g}"
        yield _clause("decision.max_task_margin", f"at most {limit:g} of every task", found, not wide)
    for name, limit in wanted.task_margins.items():
        yield _at_most(f"decision.task_margins.{name}", limit, margins.get(name))
    if wanted.max_alpha is not None:
        yield _at_most("decision.max_alpha", wanted.max_alpha, plan.decision.alpha)
    if wanted.max_attempts is not None:
        numbers = [a.number for a in _own_attempts(run) if a.number is not None]
        known = max(numbers) if len(numbers) == len(report.models) and numbers else None
        yield _at_most("decision.max_attempts", wanted.max_attempts, known)
    if wanted.max_false_sign_off is not None:
        bound = report.run.attempts_bound
        yield _at_most("decision.max_false_sign_off", wanted.max_false_sign_off, bound)
    if not wanted.allow_detected:
        seen = [where for where, verdict in _gating(report) if verdict == "DETECTED-WITHIN-MARGIN"]
        yield _clause("decision.allow_detected", "no loss detected", ", ".join(seen) or "none", not seen)
    if wanted.require_indistinguishable:
        yield _required(
            "decision.require_indistinguishable", "indistinguishable", report.run.indistinguishable
        )
    if wanted.require_worst_case:
        yield _worst_case(report)


def _own_attempts(run: RunUnderPolicy) -> list[Attempt]:
    return [a for a in run.report.run.attempts if a.current]


def _gating(report: Report) -> Iterator[tuple[str, str]]:
    """The critical tasks and pooled means: where, and their verdict."""
    for model in report.models:
        yield from ((f"{model.name}: {row.task}", row.verdict) for row in model.tasks if row.critical)
        if model.pooled is not None:
            yield f"{model.name}: pooled mean", model.pooled.verdict


def _required(name: str, what: str, met: bool, found: str = "") -> ClauseResult:
    return _clause(name, what, found or ("yes" if met else "no"), met)


def _worst_case(report: Report) -> ClauseResult:
    """Missing answers counted against the candidate leave every gate non-inferior."""
    worst: list[tuple[str, str | None]] = []
    for model in report.models:
        worst += [(f"{model.name}: {t.task}", t.worst_case_verdict) for t in model.tasks if t.critical]
        worst.append((f"{model.name}: pooled mean", model.worst_case_verdict))
    against = [f"{where} {verdict or UNKNOWN}" for where, verdict in worst if verdict not in NON_INFERIOR]
    return _required(
        "decision.require_worst_case",
        "holds with every missing answer against the candidate",
        bool(worst) and not against,
        ", ".join(against),
    )


def _tasks(policy: SignoffPolicy, run: RunUnderPolicy) -> Iterator[ClauseResult]:
    critical = {t.name for t in run.plan.tasks if t.critical}
    for name in policy.tasks.critical:
        yield _required(f"tasks.critical.{name}", "in the plan and critical", name in critical)
    if policy.tasks.suites:
        suite = run.plan.suite
        found = suite or "no suite"
        missing = [name for name in run.suite_tasks if name not in critical]
        met = suite in policy.tasks.suites and bool(run.suite_tasks) and not missing
        if missing:
            found += f", not critical in the plan: {', '.join(missing)}"
        elif suite and not run.suite_tasks:
            found += ", whose critical tasks are not known"
        yield _clause("tasks.suites", f"one of {', '.join(policy.tasks.suites)}, whole", found, met)


def _evidence(policy: SignoffPolicy, run: RunUnderPolicy) -> Iterator[ClauseResult]:
    wanted, report = policy.evidence, run.report
    if wanted.require_noise_floor:
        without = [m.name for m in report.models if m.noise_floor is None or not m.noise_floor.passed]
        yield _of_models("evidence.require_noise_floor", "the noise floor passed", report, without)
    if wanted.require_control:
        without = [
            m.name for m in report.models if not any(c.strength == "gross" and c.caught for c in m.controls)
        ]
        yield _of_models("evidence.require_control", "a gross fault was caught", report, without)
    if wanted.max_detectable_loss is not None:
        seen = report.run.smallest_detectable_loss
        yield _at_most("evidence.max_detectable_loss", wanted.max_detectable_loss, seen)
    if wanted.require_ledger:
        found = "; ".join(run.ledger_problems) or ("yes" if run.ledger else "no ledger was kept or found")
        yield _clause(
            "evidence.require_ledger",
            "a whole ledger that has this run",
            found,
            run.ledger is not None and not run.ledger_problems,
        )
    if wanted.require_servers:
        recorded = [a.name for a in run.plan.arms if a.replay is not None]
        found = f"recorded answers: {', '.join(recorded)}" if recorded else "yes"
        yield _clause("evidence.require_servers", "every arm is a server", found, not recorded)


def _of_models(name: str, what: str, report: Report, without: Sequence[str]) -> ClauseResult:
    met = bool(report.models) and not without
    return _required(name, what, met, f"not of {', '.join(without)}" if without else "")


def _origin(policy: SignoffPolicy, run: RunUnderPolicy, now: datetime.datetime) -> Iterator[ClauseResult]:
    wanted, source = policy.origin, run.report.provenance
    if wanted.require_clean_git:
        state = {True: "with uncommitted changes", False: "clean", None: UNKNOWN}[source.git_dirty]
        met = bool(source.git_commit) and source.git_dirty is False
        yield _clause(
            "origin.require_clean_git", "a clean commit", f"{source.git_commit[:12]} {state}".strip(), met
        )
    if wanted.sglang_versions:
        yield _versions(wanted.sglang_versions, run)
    if wanted.gpu is not None:
        yield _gpu(wanted.gpu, run)
    if wanted.models:
        strange = [m.name for m in run.plan.models if not _matches(m.name, wanted.models)]
        yield _clause("origin.models", " or ".join(wanted.models), ", ".join(strange) or "yes", not strange)
    until = valid_until(policy, run.finished)
    if until is not None:
        age = (now - run.finished) / datetime.timedelta(days=1)
        # A time before the last answer is a clock that is wrong.
        met = run.finished <= now <= until
        yield _clause("origin.max_age_days", f"at most {wanted.max_age_days:g}", f"{age:.2f}", met)


def _versions(wanted: Sequence[str], run: RunUnderPolicy) -> ClauseResult:
    strange = []
    for model, name, arm in _arms(run):
        version = str(arm.get("server", {}).get("version") or "")
        if not _matches(version, wanted):
            strange.append(f"{model} {name}: {version or UNKNOWN}")
    known = bool(run.servers)
    found = "; ".join(strange) or ("yes" if known else UNKNOWN)
    return _clause("origin.sglang_versions", " or ".join(wanted), found, known and not strange)


def _gpu(wanted: str, run: RunUnderPolicy) -> ClauseResult:
    """Of the machine that started the servers; what stands behind a URL or in a recording is not known."""
    elsewhere = [f"{model} {name}" for model, name, arm in _arms(run) if not arm.get("command")]
    on_cpu = [model for model, facts in run.servers.items() if facts.get("device") != "cuda"]
    gpus = [str(gpu).partition(",")[0] for gpu in run.hardware.get("gpus") or ()]
    strange = [gpu for gpu in gpus if re.search(wanted, gpu) is None]
    if elsewhere:
        found = f"{UNKNOWN} of {', '.join(elsewhere)}"
    elif on_cpu or not gpus:
        found = f"no GPU ({', '.join(on_cpu) or 'none found'})"
    else:
        found = ", ".join(strange or dict.fromkeys(gpus))
    met = bool(run.servers) and bool(gpus) and not (elsewhere or on_cpu or strange)
    return _clause("origin.gpu", wanted, found, met)


def _arms(run: RunUnderPolicy) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for model, facts in run.servers.items():
        for arm in run.plan.arms:
            yield model, arm.name, facts["arms"].get(arm.name, {})


def _matches(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)
