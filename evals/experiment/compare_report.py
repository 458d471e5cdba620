"""The report of a comparison: a run's rows, and what existing logs cannot vouch for."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from equipoise import __version__
from equipoise.evals.experiment.compare import ARM_NAMES, Compared, ComparedModel
from equipoise.evals.experiment.compare_flips import flips_of
from equipoise.evals.experiment.report_model import control_row, evidence_report
from equipoise.evals.experiment.report_secondary import WORDS
from equipoise.evals.interop.result_set import TaskResults
from equipoise.evals.types import ArmRole
from equipoise.evals.verdict import Outcome, SuiteVerdict
from equipoise.reports.model import Exclusion, ModelReport, Provenance, Report, Run, TaskRow

__all__ = ["comparison_report"]

_PASSED = "GATES PASSED"
_HEADLINES = {
    Outcome.SIGNED_OFF: "here the candidate is not worse than the baseline by more than the margins",
    Outcome.DEGRADED: "here the candidate is worse than the baseline by more than a margin",
    Outcome.INCONCLUSIVE: "these results cannot tell whether the candidate is within the margins",
    Outcome.INVALID: "these results cannot be compared: a condition that the comparison rests on is broken",
}


def comparison_report(compared: Compared, *, command: str = "") -> Report:
    """The report, marked as not eligible for sign-off."""
    verdict, gates = compared.verdict, compared.gates
    models = tuple(_model(m, v) for m, v in zip(compared.models, verdict.models, strict=True))
    evidence = [m.evidence for m in compared.models]
    detectable = [
        e.pooled[ArmRole.CANDIDATE].detectable.loss for e in evidence if ArmRole.CANDIDATE in e.pooled
    ]
    run = Run(
        plan_name="",
        plan_hash="",
        run_id="",
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        state="final",
        verdict=_word(verdict.outcome),
        exit_code=verdict.exit_code,
        headline=_HEADLINES[verdict.outcome],
        pairs=sum(c.n for e in evidence for t in e.tasks if (c := t.primary) is not None),
        alpha=gates.alpha,
        suite_margin=gates.pooled_margin,
        smallest_detectable_loss=max(detectable) if detectable else None,
        kind="comparison",
        eligible_for_sign_off=False,
        reasons=tuple(f"{_prefix(m.model, models)}{_reason(r)}" for m in verdict.models for r in m.reasons),
        would_decide=tuple(_would_decide(models)),
        limits=tuple(_limits(compared)),
        undefined={} if detectable else {"smallest_detectable_loss": "a task has nothing to pool"},
    )
    return Report(run=run, models=models, provenance=_provenance(compared, command))


def _word(outcome: Outcome) -> str:
    return _PASSED if outcome is Outcome.SIGNED_OFF else outcome.value


def _prefix(model: str, models: Sequence[ModelReport]) -> str:
    """Which of several models is spoken of; of one alone the report's title says it."""
    return f"{model}: " if len(models) > 1 else ""


def _reason(text: str) -> str:
    return text.replace("as the plan allows", "as --allow-detected allows")


def _model(compared: ComparedModel, verdict: SuiteVerdict) -> ModelReport:
    report = _without_truncation(evidence_report(compared.evidence, verdict), compared)
    role = ArmRole.GROSS_CONTROL
    controls = (
        (
            control_row(
                compared.evidence,
                role,
                verdict.gross_control,
                name=ARM_NAMES[role],
                variant=compared.sets[role].source,
            ),
        )
        if role in compared.sets
        else ()
    )
    return replace(
        report,
        verdict=_word(verdict.outcome),
        controls=controls,
        exclusions=(*report.exclusions, *_outside(compared)),
        flips=flips_of(compared),
    )


def _without_truncation(report: ModelReport, compared: ComparedModel) -> ModelReport:
    """Truncation is not known, rather than zero, where a log does not record it."""
    unknown = {
        task: [ARM_NAMES[r] for r in (ArmRole.BASELINE, ArmRole.CANDIDATE) if not sets[r].truncation_known]
        for task, sets in compared.results.items()
    }
    rows = tuple(
        replace(
            row,
            truncation_baseline=None,
            truncation_candidate=None,
            p_truncation_alarm=None,
            undefined={
                **row.undefined,
                "truncation": f"not recorded in the results of the {' and the '.join(unknown[row.task])}",
            },
        )
        if unknown[row.task]
        else row
        for row in report.tasks
    )
    secondary = report.secondary
    if secondary is not None:
        secondary = replace(
            secondary,
            endpoints=tuple(
                e for e in secondary.endpoints if e.endpoint != WORDS["truncation"] or not unknown[e.task]
            ),
            completed=tuple(c for c in secondary.completed if not unknown[c.task]),
        )
    return replace(report, tasks=rows, secondary=secondary)


def _outside(compared: ComparedModel) -> Iterator[Exclusion]:
    for task, by_role in compared.paired.items():
        for role, pairs in by_role.items():
            for reason, count in pairs.outside.items():
                arms = f"{ARM_NAMES[role]} against {ARM_NAMES[ArmRole.BASELINE]}"
                yield Exclusion(task=task, arm=arms, reason=f"{reason} (--common)", count=count)


def _would_decide(models: Sequence[ModelReport]) -> Iterator[str]:
    for model in models:
        for row in model.rows:
            name = row.task if isinstance(row, TaskRow) else "the pooled mean"
            if row.would_decide:
                yield f"{_prefix(model.name, models)}{name}: {row.would_decide}"


def _limits(compared: Compared) -> Iterator[str]:
    """Which protections of a run these results lack, and what their logs cannot tell."""
    gates, sources = compared.gates, compared.inputs.sources
    yield (
        "it is not eligible for sign-off: nothing was registered before the results existed; what decides a "
        "release is `equipoise run`"
    )
    chosen = "the default, not chosen for this case: give --margin" if gates.margin is None else "as given"
    yield (
        f"task margin {gates.task_margin:g} ({chosen}), pooled margin {gates.pooled_margin:g}; smaller "
        "losses are not excluded"
    )
    if ArmRole.BASELINE_REPEAT not in sources:
        yield "no A/A noise floor: how far the baseline differs from itself is not known (--baseline-repeat)"
    else:
        yield "the baseline and its repeat were not asked interleaved: load and servers may have differed"
    if ArmRole.GROSS_CONTROL not in sources:
        yield "no planted control: that these tasks would notice a fault is not shown (--control)"
    yield (
        "no parity: servers, versions, templates and sampling of the sets were not compared beyond what is "
        "said here"
    )
    for model in compared.models:
        yield from _limits_of_model(model)


def _limits_of_model(model: ComparedModel) -> Iterator[str]:
    for task, by_role in model.results.items():
        yield from _settings_that_differ(task, by_role)
        pairs = model.paired[task][ArmRole.CANDIDATE]
        unchecked = pairs.table.n - pairs.hash_checked
        if unchecked > 0:
            yield (
                f"{task}: {unchecked:,} of {pairs.table.n:,} pairs rest on the item id alone: that both sets "
                "asked the same question is not checked"
            )
        right = pairs.truncated_scored_right
        if any(right):
            yield (
                f"{task}: truncated answers count as wrong, also {right[0]:,} of the baseline's and "
                f"{right[1]:,} of the candidate's that their tool had scored above 0"
            )
        blind = [ARM_NAMES[r] for r, results in by_role.items() if not results.truncation_known]
        if blind:
            yield f"{task}: whether answers were truncated is not recorded ({', '.join(blind)})"
    said: dict[str, list[str]] = {}
    for role, results in model.sets.items():
        notes = (f"{name or 'scores'}: {note}" for name, t in results.tasks.items() for note in t.notes)
        for note in (*results.unknown, *notes):
            said.setdefault(f"({results.format}): {note}", []).append(ARM_NAMES[role])
    yield from (f"{', '.join(dict.fromkeys(arms))} {note}" for note, arms in said.items())


def _settings_that_differ(task: str, by_role: Mapping[ArmRole, TaskResults]) -> Iterator[str]:
    baseline = by_role[ArmRole.BASELINE]
    for role, results in by_role.items():
        if role is ArmRole.BASELINE:
            continue
        if results.hash_kind != baseline.hash_kind:
            yield (
                f"{task}: the logs' formats differ ({baseline.metric!r} against {results.metric!r}): that "
                "both score alike is not checked"
            )
            continue
        for name in sorted(baseline.settings.keys() | results.settings.keys()):
            one, other = baseline.settings.get(name, "not set"), results.settings.get(name, "not set")
            if one != other:
                yield f"{task}: {name} is {one[:80]} in the baseline, {other[:80]} in the {ARM_NAMES[role]}"


def _provenance(compared: Compared, command: str) -> Provenance:
    described: dict[str, str] = {}
    for model in compared.models:
        for role, results in model.sets.items():
            metrics = sorted({t.metric for t in results.tasks.values() if t.metric})
            name = ARM_NAMES[role] if len(compared.models) == 1 else f"{results.model} {ARM_NAMES[role]}"
            described[name] = (
                f"{results.source} ({results.format}, model {results.model or 'not named'}, "
                f"scored by {', '.join(metrics) or 'score'})"
            )
    return Provenance(
        models=described,
        seeds={"resamples": compared.gates.seed},
        versions={"equipoise": __version__},
        command=command,
    )
