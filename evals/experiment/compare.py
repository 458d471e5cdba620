"""Two existing result sets in, the same evidence, verdict and report out as of a run; no server needed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from equipoise.evals.analysis import TaskTables, analyse
from equipoise.evals.errors import UsageError
from equipoise.evals.evidence import SuiteEvidence
from equipoise.evals.experiment.compare_runs import read_run
from equipoise.evals.interop.formats import READERS, RUN, detect_format, read_results, split_source
from equipoise.evals.interop.pairing import PairedResults, pair_results
from equipoise.evals.interop.result_set import ReadOptions, ResultSet, TaskResults
from equipoise.evals.policy import Policy, decide
from equipoise.evals.types import ArmRole
from equipoise.evals.verdict import RunVerdict

__all__ = [
    "ARM_NAMES",
    "DEFAULT_MARGIN",
    "FORMATS",
    "Compared",
    "ComparedModel",
    "Gates",
    "Inputs",
    "Source",
    "compare",
]

#: of every task and of the pooled mean, where none is given: 2 points, a first look and no release gate
DEFAULT_MARGIN = 0.02
FORMATS = (RUN, *READERS)
UNNAMED_TASK = "all items"
ARM_NAMES: Mapping[ArmRole, str] = {
    ArmRole.BASELINE: "baseline",
    ArmRole.CANDIDATE: "candidate",
    ArmRole.BASELINE_REPEAT: "baseline-repeat",
    ArmRole.GROSS_CONTROL: "control",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where one result set is: PATH, RUN_DIR:ARM, FILE:COLUMN or FILE.json:PATH.

    ``score_column`` replaces the options' own for this source.
    """

    text: str
    score_column: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The result sets by role (baseline and candidate at least), and how to read and match them.

    Attributes
    ----------
    format
        One of `FORMATS`, or None to tell each source's format from its content.
    common_only
        Compare the items that both sets have, instead of counting the others as missing.
    """

    sources: Mapping[ArmRole, Source]
    read: ReadOptions = field(default_factory=ReadOptions)
    format: str | None = None
    common_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Margins and thresholds, as a plan would hold them. All tasks are critical.

    ``margin`` None stands for `DEFAULT_MARGIN`, ``suite_margin`` None for the task margin.
    """

    margin: float | None = None
    suite_margin: float | None = None
    alpha: float = 0.05
    allow_detected: bool = False
    max_missing: float = 0.005
    max_baseline_truncation: float = 0.02
    seed: int = 0

    @property
    def task_margin(self) -> float:
        return DEFAULT_MARGIN if self.margin is None else self.margin

    @property
    def pooled_margin(self) -> float:
        return self.task_margin if self.suite_margin is None else self.suite_margin


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedModel:
    """One model's sets by role, its paired tables by task and role, and the evidence from them."""

    sets: Mapping[ArmRole, ResultSet]
    results: Mapping[str, Mapping[ArmRole, TaskResults]]
    paired: Mapping[str, Mapping[ArmRole, PairedResults]]
    evidence: SuiteEvidence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compared:
    """Everything a report of the comparison is made of."""

    inputs: Inputs
    gates: Gates
    models: tuple[ComparedModel, ...]
    verdict: RunVerdict


def compare(inputs: Inputs, gates: Gates) -> Compared:
    """Read, match, pair, analyse and decide.

    The policy is a run's, but that a noise floor and a control are required only where they are given.

    Raises
    ------
    UsageError
        A source cannot be read, or the sets have other models or tasks.
    ParityError
        The sets do not pair: another question under one id, an item twice, another metric.
    """
    _refuse_one_source(inputs.sources)
    by_role = {role: _read(source, inputs) for role, source in inputs.sources.items()}
    _refuse_one_set(inputs.sources, by_role)
    models = tuple(_compare_model(sets, inputs, gates) for sets in _match_models(by_role))
    policy = Policy(
        critical=frozenset(task for m in models for task in m.paired),
        allow_detected=gates.allow_detected,
        require_noise_floor=ArmRole.BASELINE_REPEAT in inputs.sources,
        require_control=ArmRole.GROSS_CONTROL in inputs.sources,
        max_missing=gates.max_missing,
        max_baseline_truncation=gates.max_baseline_truncation,
    )
    verdict = decide([m.evidence for m in models], policy)
    return Compared(inputs=inputs, gates=gates, models=models, verdict=verdict)


def _refuse_one_source(sources: Mapping[ArmRole, Source]) -> None:
    """Before anything is read: one path and column in two roles, however the path is written."""
    seen: dict[tuple[Path, str, str | None], ArmRole] = {}
    for role, source in sources.items():
        path, selector = split_source(source.text)
        key = (path.resolve(), selector, source.score_column)
        if key in seen:
            raise _with_itself(sources, seen[key], role)
        seen[key] = role


def _refuse_one_set(
    sources: Mapping[ArmRole, Source], by_role: Mapping[ArmRole, Sequence[ResultSet]]
) -> None:
    """Once read: a run and its default arm, a table and its default column, a folder and a file of it."""
    for one, other in combinations(sources, 2):
        (path, selector), (other_path, other_selector) = (split_source(sources[r].text) for r in (one, other))
        path, other_path = path.resolve(), other_path.resolve()
        within = path.is_relative_to(other_path) or other_path.is_relative_to(path)
        chosen_apart = selector and other_selector
        if within and not chosen_apart and _results(by_role[one]) == _results(by_role[other]):
            raise _with_itself(sources, one, other)


def _results(sets: Sequence[ResultSet]) -> list[Mapping[str, TaskResults]]:
    return [s.tasks for s in sets]


def _with_itself(sources: Mapping[ArmRole, Source], one: ArmRole, other: ArmRole) -> UsageError:
    names = dict.fromkeys((sources[one].text, sources[other].text))
    is_both = f"{' and '.join(names)} {'are one set,' if len(names) > 1 else 'is'} both"
    return UsageError(
        f"{is_both} the {ARM_NAMES[one]} and the {ARM_NAMES[other]}: a set "
        "compared with itself always passes; give another set, RUN_DIR:ARM or FILE:COLUMN"
    )


def _read(source: Source, inputs: Inputs) -> tuple[ResultSet, ...]:
    path, selector = split_source(source.text)
    format_ = inputs.format or detect_format(path)
    if format_ == RUN:
        return read_run(path, selector, inputs.read.tasks)
    options = inputs.read
    if source.score_column is not None:
        options = replace(options, score_column=source.score_column)
    if _one_file(inputs.sources.values()):
        options = replace(options, row_ids=True)
    return (read_results(path, selector, format_, options),)


def _one_file(sources: Iterable[Source]) -> bool:
    """Whether all sources are columns of one file of rows, so that a row's number tells the item."""
    sources = list(sources)
    paths = {split_source(s.text)[0].resolve() for s in sources}
    columns = all(s.score_column is not None for s in sources)
    return len(paths) == 1 and (columns or next(iter(paths)).suffix.lower() != ".json")


def _match_models(
    by_role: Mapping[ArmRole, Sequence[ResultSet]],
) -> list[Mapping[ArmRole, ResultSet]]:
    """One mapping a model. Sets of one model each need not have the same model name."""
    if all(len(sets) == 1 for sets in by_role.values()):
        return [{role: sets[0] for role, sets in by_role.items()}]
    names = {role: [s.model for s in sets] for role, sets in by_role.items()}
    first = names[ArmRole.BASELINE]
    for role, others in names.items():
        if sorted(others) != sorted(first):
            raise UsageError(
                f"the baseline has the models {', '.join(first)}, the {ARM_NAMES[role]} {', '.join(others)}; "
                "compare runs of the same models"
            )
    return [
        {role: next(s for s in sets if s.model == name) for role, sets in by_role.items()} for name in first
    ]


def _compare_model(sets: Mapping[ArmRole, ResultSet], inputs: Inputs, gates: Gates) -> ComparedModel:
    tasks = _match_tasks(sets)
    baseline, candidate = sets[ArmRole.BASELINE], sets[ArmRole.CANDIDATE]
    model = (
        candidate.model
        if candidate.model == baseline.model
        else f"{candidate.model} against {baseline.model}"
    )
    paired: dict[str, Mapping[ArmRole, PairedResults]] = {
        name: {
            role: pair_results(
                results[ArmRole.BASELINE],
                results[role],
                model=model,
                task=name,
                baseline_arm=ARM_NAMES[ArmRole.BASELINE],
                candidate_arm=ARM_NAMES[role],
                common_only=inputs.common_only,
            )
            for role in results
            if role is not ArmRole.BASELINE
        }
        for name, results in tasks.items()
    }
    evidence = analyse(
        model,
        [
            TaskTables(task=name, margin=gates.task_margin, tables={r: p.table for r, p in by_role.items()})
            for name, by_role in paired.items()
        ],
        suite_margin=gates.pooled_margin,
        alpha=gates.alpha,
        rng=np.random.default_rng(gates.seed),
    )
    return ComparedModel(sets=sets, results=tasks, paired=paired, evidence=evidence)


def _match_tasks(sets: Mapping[ArmRole, ResultSet]) -> dict[str, dict[ArmRole, TaskResults]]:
    """Tasks by name, in the baseline's order; a single task without a name is whatever the others' is."""
    chosen = {role: s.tasks for role, s in sets.items()}
    if all(len(tasks) == 1 for tasks in chosen.values()):
        names = {next(iter(tasks)) for tasks in chosen.values()} - {""}
        if len(names) <= 1:
            name = next(iter(names), UNNAMED_TASK)
            return {name: {role: next(iter(tasks.values())) for role, tasks in chosen.items()}}
    first = chosen[ArmRole.BASELINE]
    for role, tasks in chosen.items():
        alone = [*(first.keys() - tasks.keys()), *(tasks.keys() - first.keys())]
        if alone:
            raise UsageError(
                f"the baseline ({sets[ArmRole.BASELINE].source}) has the tasks {_names(first)}, the "
                f"{ARM_NAMES[role]} ({sets[role].source}) {_names(tasks)}; choose with --task what to compare"
            )
    return {name or UNNAMED_TASK: {role: chosen[role][name] for role in chosen} for name in first}


def _names(tasks: Mapping[str, TaskResults]) -> str:
    return ", ".join(name or "one without a name" for name in tasks)
