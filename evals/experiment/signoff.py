"""``equipoise signoff``: hold a run against an organisation's policy, and vouch for it or refuse.

Everything is computed from the journal, nothing is taken from the reports that lie beside it.
"""

import datetime
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from equipoise import __version__
from equipoise.evals.errors import SignoffError
from equipoise.evals.experiment.attempt_register import ledger_beside, recorded_attempts
from equipoise.evals.experiment.questions import questions_of
from equipoise.evals.experiment.results import JOURNAL_NAME, facts_by_model, plan_of, report_of
from equipoise.evals.experiment.signoff_clauses import RunUnderPolicy, clauses, valid_until
from equipoise.evals.experiment.signoff_ledger import ledger_facts
from equipoise.evals.experiment.signoff_report import model_result, report_problem, run_facts
from equipoise.evals.journal import Journal
from equipoise.evals.plan import Plan, with_suite
from equipoise.evals.signoff_document import (
    MANIFEST_SUFFIX,
    ClauseResult,
    JournalFacts,
    PlanFacts,
    PolicyFacts,
    Signoff,
)
from equipoise.evals.signoff_journal import Manifest, manifest_of
from equipoise.evals.signoff_policy import SignoffPolicy
from equipoise.reports import json as json_report
from equipoise.reports.model import Report

__all__ = ["Made", "critical_tasks_of", "make_signoff"]

POLICY_NOT_MET = 3  # as INCONCLUSIVE: what is asked for is not shown
RUN_CHANGED = 4  # as INVALID: what lies there is not what the run left
MAX_FILES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A sign-off, not yet signed with a key, and what it was made from."""

    signoff: Signoff
    manifest: Manifest
    report: Report


def make_signoff(
    directory: Path,
    policy: SignoffPolicy,
    *,
    manifest_name: str,
    output: Path | None = None,
    ledger: Path | None = None,
    suites: Path | None = None,
    now: datetime.datetime | None = None,
    run_id: str | None = None,
) -> Made:
    """Decide whether a run is signed off under a policy, and put down what that rests on.

    Parameters
    ----------
    manifest_name : str
        Of the file beside the sign-off that lists the journal's content.
    output : Path or None
        Where the sign-off lies or will lie: it does not vouch for itself.
    ledger : Path or None
        By default the one beside the run directory.
    suites : Path or None
        The folder of suites that ship, for policies that ask for one.
    now, run_id
        For computing an earlier sign-off again; by default the time and the directory's name.

    Raises
    ------
    UsageError
        There is no run, or its questions cannot be made here (data sets are missing).
    JournalError
        The journal is damaged, or its plan was changed.
    """
    now = (now or datetime.datetime.now(datetime.UTC)).replace(microsecond=0)
    ledger = ledger or ledger_beside(directory)
    manifest = manifest_of(directory / JOURNAL_NAME)
    with Journal.read(directory / JOURNAL_NAME) as journal:
        plan = plan_of(journal)
        report = report_of(journal, plan, questions_of(plan), run_id=run_id or directory.resolve().name)
        created = journal.metadata.created_unix_s
        last = [value["unix_s"] for _, _, value in journal.records("finished")]
        finished = datetime.datetime.fromtimestamp(int(last[-1] if last else created), datetime.UTC)
        outcomes = {m.name: m.verdict for m in report.models}
        facts, ledger_problems = ledger_facts(ledger, recorded_attempts(journal), outcomes)
        run = RunUnderPolicy(
            plan=plan,
            report=report,
            servers=facts_by_model(journal),
            hardware=journal.metadata.provenance.get("hardware", {}),
            suite_tasks=critical_tasks_of(plan, suites if policy.tasks.suites else None),
            ledger=facts,
            ledger_problems=ledger_problems,
            finished=finished,
        )
        registered = json.loads(journal.metadata.plan_text)
        plan_hash = journal.metadata.plan_hash
    held = clauses(policy, run, now)
    code, reasons = _decide(directory, report, held, ledger_problems)
    until = valid_until(policy, finished) if code == 0 else None
    signoff = Signoff(
        decision="SIGNED OFF" if code == 0 else "REFUSED",
        exit_code=code,
        reasons=tuple(reasons),
        signed=now.isoformat(timespec="seconds"),
        valid_until=until.isoformat(timespec="seconds") if until is not None else None,
        equipoise=__version__,
        run=run_facts(report, created, finished),
        models=tuple(model_result(m) for m in report.models),
        plan=PlanFacts(name=plan.name, sha256=plan_hash, values=registered),
        journal=JournalFacts(
            sha256=manifest.sha256,
            manifest=manifest_name,
            samples=manifest.count("sample"),
            records=manifest.count("record"),
        ),
        report_sha256=hashlib.sha256(json_report.render(report).encode("ascii")).hexdigest(),
        files=dict(_digests(directory, output)),
        ledger=facts,
        provenance=json.loads(json_report.render(report))["provenance"],
        policy=PolicyFacts(
            name=policy.name, sha256=policy.content_hash, values=policy.values(), clauses=held
        ),
    )
    return Made(signoff=signoff, manifest=manifest, report=report)


def critical_tasks_of(plan: Plan, suites: Path | None) -> tuple[str, ...]:
    """The critical tasks of the plan's suite as it ships; empty where there is none or it is not known."""
    if plan.suite is None or suites is None:
        return ()
    shared = with_suite({"suite": plan.suite}, suites, source=f"the plan {plan.name}")["tasks"]
    return tuple(str(t.get("name")) for t in shared if t.get("critical"))


def _decide(
    directory: Path, report: Report, held: Iterable[ClauseResult], ledger_problems: Iterable[str]
) -> tuple[int, list[str]]:
    """The exit code, and why it is not 0: the run's own verdict comes first, then what lies there."""
    said = {
        report.run.exit_code: [
            f"the verdict of the run is {report.run.verdict or report.run.state}: {report.run.headline}",
            *report.run.reasons,
        ]
    }
    changed = [*report_problem(directory, report), *ledger_problems]
    if changed:
        said.setdefault(RUN_CHANGED, []).extend(changed)
    unmet = [f"policy: {c.name}: demanded {c.demanded}, found {c.found}" for c in held if not c.met]
    if unmet:
        said.setdefault(POLICY_NOT_MET, []).extend(unmet)
    passed = said.pop(0, [])
    codes = [report.run.exit_code] if report.run.exit_code else sorted(said, reverse=True)
    reasons = [reason for reasons in said.values() for reason in reasons]
    return (codes[0], reasons) if codes else (0, passed[1:])


def _digests(directory: Path, output: Path | None) -> Mapping[str, str]:
    """SHA-256 by name of the run's files, but for the journal, told by its content, and sign-offs."""
    found: dict[str, str] = {}
    own = output.resolve() if output is not None else None
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if _is_left_out(path, directory) or not stat.S_ISREG(path.lstat().st_mode):
                continue
            if path.resolve() == own:
                continue
            if len(found) >= MAX_FILES:
                raise SignoffError(f"{directory} has over {MAX_FILES:,} files; keep only the run's own there")
            with path.open("rb") as file:
                sha = hashlib.file_digest(file, "sha256").hexdigest()
            found[path.relative_to(directory).as_posix()] = sha
    return found


def _is_left_out(path: Path, directory: Path) -> bool:
    at_top = path.parent == directory
    journal = path.name == JOURNAL_NAME or path.name.startswith(f"{JOURNAL_NAME}-")
    signoff = path.name.endswith(MANIFEST_SUFFIX) or path.name.startswith("signoff")
    return (at_top and (journal or signoff)) or path.name.endswith((".partial", ".lock", ".new"))
