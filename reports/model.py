"""The one Report object: everything a reader is told, as plain values, before any formatting.

Renderers only format it. Fractions are fractions (0.05, never 5), ``delta = candidate - baseline``
(higher is better), a negative log-likelihood is in nats a token (lower is better). None means
undefined or not measured, and ``undefined`` of the same part says why. Fields added later must have
a default, so that older files stay readable; any other change raises SCHEMA_VERSION.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.reports.evidence import (
    Control,
    ErrorSample,
    Exclusion,
    Interval,
    Missing,
    NoiseFloor,
    NoiseRow,
    PooledRow,
    Power,
    PowerRow,
    TaskRow,
)
from equipoise.reports.flips import Excerpt, FirstDifference, Flip, Flips, LogprobTrace, Reply
from equipoise.reports.node import Node
from equipoise.reports.secondary import (
    CompletedRow,
    EndpointRow,
    LengthRow,
    Secondary,
    SubgroupRow,
    TrendRow,
)
from equipoise.reports.teacher_forced import Divergence, LogprobRow, PositionBucket
from equipoise.reports.vocabulary import EXIT_CODES, KINDS, STATES, SUITE_VERDICTS, require

__all__ = [
    "SCHEMA_VERSION",
    "Arm",
    "Attempt",
    "CompletedRow",
    "Control",
    "Divergence",
    "EndpointRow",
    "ErrorSample",
    "Excerpt",
    "Exclusion",
    "FirstDifference",
    "Flip",
    "Flips",
    "Interval",
    "LengthRow",
    "LogprobRow",
    "LogprobTrace",
    "Missing",
    "ModelReport",
    "NoiseFloor",
    "NoiseRow",
    "ParityDifference",
    "PooledRow",
    "PositionBucket",
    "Power",
    "PowerRow",
    "Provenance",
    "Reply",
    "Report",
    "Run",
    "Secondary",
    "SubgroupRow",
    "TaskRow",
    "TrendRow",
]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Node):
    """One attempt at the candidate; ``number`` is 1 + the earlier ones that could have signed off."""

    model: str
    run_id: str
    number: int | None  # None of an earlier one that was signed off
    registered: str  # UTC, ISO 8601
    plan_hash: str
    outcome: str  # of the model, or "unfinished"
    alpha: float  # one-sided, spent by it
    current: bool = False  # this run


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Node):
    """What was decided. ``verdict`` is None unless ``state`` is "final".

    ``headline`` is one sentence without the verdict word. ``pairs`` counts the paired items of the
    primary comparison over models and tasks; ``smallest_detectable_loss`` is the smallest true
    loss of a pooled mean that this run would have noticed with probability ``detection_power``
    (of several models, the worst). A comparison of results that were already there is no run of a
    registered plan: it is not eligible for sign-off, and where all its gates pass it says so, no more.
    """

    plan_name: str
    plan_hash: str
    run_id: str
    created: str  # UTC, ISO 8601
    state: str  # final | incomplete | no verdict
    verdict: str | None  # one of SUITE_VERDICTS
    exit_code: int
    headline: str
    pairs: int
    alpha: float = 0.05  # one-sided
    suite_margin: float | None = None
    smallest_detectable_loss: float | None = None
    detection_power: float = 0.8
    indistinguishable: bool = False
    kind: str = "run"  # run | comparison
    eligible_for_sign_off: bool = True
    reasons: tuple[str, ...] = ()
    would_decide: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()  # what the verdict does not claim, in plain words
    attempts: tuple[Attempt, ...] = ()  # this one last of each model; empty if no ledger was kept
    max_attempts: int = 1  # that the plan allows
    attempts_bound: float | None = None  # chance that a bad candidate is signed off in any attempt, at most
    early_stop: str = ""  # which registered look stopped the run and what that saved; empty if none did
    undefined: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        require("Run.state", self.state, STATES)
        require("Run.kind", self.kind, KINDS)
        if self.kind == "comparison" and self.eligible_for_sign_off:
            raise ValueError("a comparison of existing results is never eligible for sign-off")
        if not self.eligible_for_sign_off and (self.verdict == "SIGNED OFF" or self.indistinguishable):
            raise ValueError("what is not eligible for sign-off is neither signed off nor indistinguishable")
        if self.eligible_for_sign_off and self.verdict == "GATES PASSED":
            raise ValueError("GATES PASSED is the word for results that are not eligible for sign-off")
        if self.state != "final":
            if self.verdict is not None or self.exit_code == 0 or self.indistinguishable:
                raise ValueError(
                    f"a run that is {self.state!r} has no verdict, is not indistinguishable and never exits 0"
                )
            return
        require("Run.verdict", self.verdict, SUITE_VERDICTS)
        if self.early_stop and (self.verdict == "SIGNED OFF" or self.indistinguishable):
            raise ValueError(f"a run that stopped early cannot be {self.verdict}: nothing passes at a look")
        if self.exit_code != EXIT_CODES[str(self.verdict)]:
            raise ValueError(f"{self.verdict} exits {EXIT_CODES[str(self.verdict)]}, not {self.exit_code}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport(Node):
    """One model: its verdict in a sentence and what it rests on. Lists that do not apply are empty."""

    name: str
    verdict: str | None  # as of a run; None while the run has none
    sentence: str
    tasks: tuple[TaskRow, ...] = ()
    pooled: PooledRow | None = None
    worst_case_verdict: str | None = None  # with every missing answer counted against the candidate
    logprobs: tuple[LogprobRow, ...] = ()
    noise_floor: NoiseFloor | None = None
    controls: tuple[Control, ...] = ()
    power: Power | None = None
    missing: tuple[Missing, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    errors_total: int = 0
    errors: tuple[ErrorSample, ...] = ()  # a bounded sample
    flips: Flips | None = None
    secondary: Secondary | None = None

    @property
    def rows(self) -> tuple[TaskRow | PooledRow, ...]:
        """The tasks in their order, the pooled mean last."""
        return (*self.tasks, *([self.pooled] if self.pooled is not None else []))

    def check(self) -> None:
        if self.verdict is not None:
            require("ModelReport.verdict", self.verdict, SUITE_VERDICTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(Node):
    """One arm as it was resolved, not as it was asked for."""

    model: str
    name: str
    role: str  # baseline | baseline_repeat | candidate | gross_control | mild_control
    variant: str = ""
    url: str = ""
    server_command: tuple[str, ...] = ()
    kv_cache_dtype: str = ""
    attention_backend: str = ""
    max_total_tokens: int | None = None
    control: str = ""  # the planted fault, empty for honest arms
    explained: tuple[str, ...] = ()  # what the server does with its KV cache, found before its launch


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityDifference(Node):
    """A fact in which the arms differ, and the rule of the plan that allows it."""

    model: str
    fact: str
    baseline: str
    candidate: str
    allowed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(Node):
    """How to get the same numbers again."""

    plan_path: str = ""
    models: Mapping[str, str] = field(default_factory=dict)  # name -> path or hub id, with its digest
    arms: tuple[Arm, ...] = ()
    parity_differences: tuple[ParityDifference, ...] = ()
    prompts_compared: str = ""  # how many prompts of the arms were held against each other, in words
    generation: Mapping[str, str] = field(default_factory=dict)  # tasks -> what the plan set for answers
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    git_commit: str = ""
    git_dirty: bool | None = None
    started: str = ""  # UTC, ISO 8601
    finished: str = ""
    duration_s: float | None = None
    requests: int | None = None
    retries: int | None = None
    command: str = ""
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Node):
    """The whole report; ``render(report)`` of each renderer takes this and nothing else."""

    run: Run
    models: tuple[ModelReport, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    schema_version: int = SCHEMA_VERSION

    def check(self) -> None:
        """What its own rows do not carry is refused, whoever claims it.

        A run that is not final shows no results either: looking at them before the planned end
        would be a look that the stated error does not cover.
        """
        if self.run.state != "final":
            early = [
                m.name
                for m in self.models
                if m.verdict is not None or m.rows or m.controls or m.logprobs or m.secondary is not None
            ]
            if early:
                raise ValueError(
                    f"a run that is {self.run.state!r} shows no results, but {', '.join(early)} has some"
                )
        if not self.run.eligible_for_sign_off:
            claimed = [m.name for m in self.models if m.verdict == "SIGNED OFF"]
            if claimed:
                raise ValueError(f"not eligible for sign-off, but {', '.join(claimed)} is SIGNED OFF")
        if not self.run.indistinguishable:
            return
        against = [] if self.run.verdict == "SIGNED OFF" else [f"the verdict is {self.run.verdict}"]
        if not self.models:
            against.append("no model was tested")
        for model in self.models:
            rows = [(row.task, row.verdict) for row in model.tasks if row.critical]
            rows.append(("the pooled mean", model.pooled.verdict if model.pooled else "missing"))
            against += [
                f"{model.name}: {name} is {verdict}" for name, verdict in rows if verdict != "EQUIVALENT"
            ]
            if model.noise_floor is None or not model.noise_floor.passed:
                against.append(f"{model.name}: the noise floor did not pass")
            if not any(c.required and c.caught for c in model.controls):
                against.append(f"{model.name}: no required control was caught")
        if against:
            raise ValueError("a report cannot say indistinguishable: " + "; ".join(against))
