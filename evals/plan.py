"""The pre-registered plan: which arms, which tasks, how many items, which margins.

A plan is a TOML file. Unknown keys are refused with their line and the nearest valid key. Its
content hash is written into the journal before the first request, and the report carries it.
"""

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from equipoise.evals.errors import PlanError
from equipoise.evals.types import ArmRole

__all__ = [
    "ArmSpec",
    "DecisionSpec",
    "LooksSpec",
    "ModelSpec",
    "Plan",
    "RunnerSpec",
    "SeedSpec",
    "TaskSpec",
    "hash_of",
    "load_plan",
    "parse_plan",
]

MAX_PLAN_BYTES = 1 << 20
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSpec(_Strict):
    """A model under test: a checkpoint directory, ``embedded:NAME`` or ``hub:ORG/NAME``.

    ``checkpoints`` gives arms (by name) other weights of the same model: a directory each, which must be the
    same but for the weights. Only a candidate or a control that we serve may have one.
    """

    name: Name
    path: str = Field(min_length=1)
    checkpoints: dict[str, Annotated[str, Field(min_length=1)]] = {}


class ArmSpec(_Strict):
    """One arm: a variant that we serve ourselves, or a URL that already serves it.

    Arms of one model with the same variant are one server asked twice, each with a prefix-cache
    namespace of its own.
    """

    name: Name
    role: ArmRole
    variant: str | None = None
    url: str | None = Field(default=None, pattern=r"^https?://\S+$")
    api: Literal["sglang", "openai"] = "sglang"
    served_model: str | None = None  # the model name to ask an OpenAI-compatible endpoint for
    api_key_env: str | None = None  # name of the environment variable; the key itself is never stored
    replay: str | None = None  # a run directory whose journal answers instead of a server
    #: server facts in which this arm alone may differ, beyond those that the plan allows every arm
    allowed_differences: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_source(self) -> "ArmSpec":
        given = [k for k in ("variant", "url", "replay") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(
                f"arm {self.name!r} needs exactly one of variant, url and replay (it has {given or 'none'})"
            )
        if self.api == "openai" and self.url is None:
            raise ValueError(f'arm {self.name!r}: api = "openai" goes with url')
        if self.api == "openai" and self.served_model is None:
            raise ValueError(f'arm {self.name!r}: api = "openai" needs served_model')
        return self


class TaskSpec(_Strict):
    """One task of the plan.

    ``p_d`` is the share of discordant pairs assumed for the power: of single answers, candidate against
    baseline (for graded scores their mean squared difference); ``noise_p_d`` the same of the baseline asked
    twice, the part that repeats shrink.
    ``repeats`` asks every item so many times in every arm. ``temperature`` and ``top_p`` replace the
    task's own sampling (greedy), the same in every arm; without them repeats show only the server's noise.
    ``max_kl_nats`` asks a teacher-forced task for a mean KL below it too. Lists of likely tokens that are not
    the whole vocabulary bound KL from above only with ``max_drop_nats``: the assumption that no token's
    logprob falls by more than that.
    """

    name: Name
    items: int = Field(gt=0, le=1_000_000)
    critical: bool = False
    margin: Fraction | None = None  # accuracy tasks
    margin_nats: float | None = Field(default=None, gt=0)  # teacher-forced tasks
    max_kl_nats: float | None = Field(default=None, gt=0)
    max_drop_nats: float | None = Field(default=None, ge=1, le=1000)
    repeats: int = Field(default=1, ge=1, le=1024)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    p_d: Fraction = 0.045
    noise_p_d: float = Field(default=0.0, ge=0, lt=0.5)


class DecisionSpec(_Strict):
    """The thresholds of the decision; see evals/policy.py for the rules.

    ``max_attempts`` is how often this candidate may be tried; every test runs at ``effective_alpha``.
    ``control_size`` lowers the level of each right-or-wrong task until its exact size is at most that.
    """

    alpha: float = Field(default=0.05, gt=0, le=0.2)
    max_attempts: int = Field(default=1, ge=1, le=100)
    control_size: bool = False
    suite_margin: Fraction
    assumed_loss: float = Field(default=0.0, ge=0, lt=1)
    min_joint_power: float = Field(default=0.85, ge=0, lt=1)
    allow_detected: bool = False
    require_noise_floor: bool = True
    require_control: bool = True
    max_baseline_truncation: float = Field(default=0.02, ge=0, lt=1)
    max_missing: float = Field(default=0.005, ge=0, lt=1)

    @property
    def effective_alpha(self) -> float:
        """One-sided alpha of every test: ``alpha`` split over the attempts that the plan allows."""
        return self.alpha / self.max_attempts


class LooksSpec(_Strict):
    """Looks at the run before its end, which may stop it as degraded or as futile; see evals/looks.py.

    ``fractions`` are shares of every task's items. ``futility`` stops where sign-off has a probability below
    ``gamma`` left, at the plan's assumed loss and p_d.
    """

    fractions: tuple[Fraction, ...] = Field(default=(0.25, 0.5, 0.75), min_length=1, max_length=20)
    spending: Literal["pocock", "obrien-fleming"] = "pocock"
    futility: bool = True
    gamma: float = Field(default=0.02, gt=0, le=0.2)

    @model_validator(mode="after")
    def _increasing(self) -> "LooksSpec":
        if any(a >= b for a, b in zip(self.fractions, self.fractions[1:], strict=False)):
            raise ValueError(f"fractions must increase, got {list(self.fractions)}")
        return self


class RunnerSpec(_Strict):
    """How the requests are sent; none of it may change an answer's meaning."""

    concurrency: int = Field(default=32, ge=1, le=4096)  # per arm
    timeout_s: float = Field(default=120.0, gt=0)
    max_attempts: int = Field(default=4, ge=1, le=20)
    block_items: int = Field(default=16, ge=1)
    context_tokens: int = Field(default=4096, ge=64)  # longest prompt + answer, sizes our servers


class SeedSpec(_Strict):
    items: int = Field(default=1, ge=0)
    schedule: int = Field(default=1, ge=0)
    bootstrap: int = Field(default=1, ge=0)


class Plan(_Strict):
    """A whole plan. See tasks/plans/ for examples."""

    schema_version: Literal[1]
    name: Name
    description: str = ""
    seeds: SeedSpec = SeedSpec()
    decision: DecisionSpec
    runner: RunnerSpec = RunnerSpec()
    looks: LooksSpec | None = None  # None: nothing is looked at before the end
    models: tuple[ModelSpec, ...] = Field(min_length=1)
    arms: tuple[ArmSpec, ...] = Field(min_length=2)
    tasks: tuple[TaskSpec, ...] = Field(min_length=1)
    #: server facts that may differ between arms beyond the KV-cache dtype
    allowed_differences: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "Plan":
        for what, names in (
            ("model", [m.name for m in self.models]),
            ("arm", [a.name for a in self.arms]),
            ("task", [t.name for t in self.tasks]),
        ):
            twice = sorted({n for n in names if names.count(n) > 1})
            if twice:
                raise ValueError(f"{what} {twice[0]!r} is listed twice; give each {what} a name of its own")
        for role in (ArmRole.BASELINE, ArmRole.CANDIDATE):
            have = [a.name for a in self.arms if a.role is role]
            if len(have) != 1:
                raise ValueError(
                    f"the plan needs exactly one arm with role {role.value!r}; it has {have or 'none'}"
                )
        for role in (ArmRole.BASELINE_REPEAT, ArmRole.GROSS_CONTROL, ArmRole.MILD_CONTROL):
            have = [a.name for a in self.arms if a.role is role]
            if len(have) > 1:
                raise ValueError(f"at most one arm may have role {role.value!r}; the plan has {have}")
        if len(self.models) > 1 and any(a.url for a in self.arms):
            raise ValueError(
                "a plan with URLs compares one model: an endpoint serves one; keep one [[models]] entry"
            )
        return self

    @model_validator(mode="after")
    def _tasks_fit(self) -> "Plan":
        if not any(t.margin is not None for t in self.tasks):
            raise ValueError("the plan has no accuracy task: give at least one task a margin")
        for t in self.tasks:
            if (t.margin is None) == (t.margin_nats is None):
                raise ValueError(
                    f"task {t.name!r} needs exactly one of margin (accuracy) and margin_nats (logprobs)"
                )
            if t.margin_nats is None and (t.max_kl_nats is not None or t.max_drop_nats is not None):
                raise ValueError(
                    f"task {t.name!r} has no margin_nats: max_kl_nats and max_drop_nats are for "
                    "teacher-forced tasks"
                )
            sampled = t.repeats > 1 or t.temperature is not None or t.top_p is not None
            if t.margin_nats is not None and sampled:
                raise ValueError(
                    f"task {t.name!r} is teacher-forced and samples nothing: leave out repeats, temperature "
                    "and top_p"
                )
        if not any(t.critical for t in self.tasks if t.margin is not None):
            raise ValueError(
                "no accuracy task is critical, so sign-off would rest on the pooled mean alone; set "
                "critical = true on at least one task with a margin"
            )
        return self

    @model_validator(mode="after")
    def _own_checkpoints(self) -> "Plan":
        arms = {a.name: a for a in self.arms}
        for model in self.models:
            for name in model.checkpoints:
                where = f"model {model.name!r}, checkpoints"
                if name not in arms:
                    raise ValueError(f"{where}: there is no arm {name!r}; arms: {', '.join(arms)}")
                if arms[name].variant is None:
                    raise ValueError(f"{where}: arm {name!r} is not served by us; give it a variant")
                if arms[name].role in (ArmRole.BASELINE, ArmRole.BASELINE_REPEAT):
                    raise ValueError(f"{where}: arm {name!r} is the baseline: it serves the model's own path")
        return self

    @property
    def content_hash(self) -> str:
        """SHA-256 of the plan's canonical JSON: what pre-registration fixes."""
        return hash_of(self.model_dump(mode="json"))

    def arm(self, role: ArmRole) -> ArmSpec | None:
        """The arm with this role, or None."""
        return next((a for a in self.arms if a.role is role), None)

    def with_changes(
        self,
        *,
        baseline: str | None = None,
        candidate: str | None = None,
        gross_control: str | None = None,
        item_seed: int | None = None,
    ) -> "Plan":
        """The plan with a source replaced by a variant name or a URL, or with another item seed.

        Arms that repeat the baseline follow it. The result is a plan of its own, with its own hash.
        """
        data = self.model_dump(mode="json")
        replaced = {
            ArmRole.BASELINE: baseline,
            ArmRole.BASELINE_REPEAT: baseline,
            ArmRole.CANDIDATE: candidate,
            ArmRole.GROSS_CONTROL: gross_control,
        }
        for arm in data["arms"]:
            source = replaced.get(ArmRole(arm["role"]))
            if source is not None:
                arm.update(variant=None, url=None, replay=None)
                arm["url" if re.match(r"https?://", source) else "variant"] = source
                if arm["url"] is not None:  # what is served there is not ours to choose
                    for model in data["models"]:
                        model["checkpoints"].pop(arm["name"], None)
        if item_seed is not None:
            data["seeds"]["items"] = item_seed
        return _validated(data, source="the command line's overrides", text="")


def hash_of(values: Any) -> str:
    """SHA-256 of the canonical JSON of a plan's values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def load_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises
    ------
    PlanError
        Names the file, the line, the key and the nearest valid key.
    """
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise PlanError(
            f"{path}: cannot read the plan ({e.strerror}); give the path of a plan TOML file"
        ) from e
    if len(raw) > MAX_PLAN_BYTES:
        raise PlanError(f"{path}: a plan has at most {MAX_PLAN_BYTES} bytes; this file has {len(raw)}")
    try:
        return parse_plan(raw.decode("utf-8"), source=str(path))
    except UnicodeDecodeError as e:
        raise PlanError(f"{path}: not UTF-8 text at byte {e.start}; save the plan as UTF-8") from e


def parse_plan(text: str, *, source: str) -> Plan:
    """Parse and validate a plan's TOML text; ``source`` names it in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise PlanError(f"{source}: not valid TOML: {e}") from e
    return _validated(data, source=source, text=text)


def _validated(data: dict[str, Any], *, source: str, text: str) -> Plan:
    try:
        return Plan.model_validate(data)
    except ValidationError as e:
        raise PlanError("; ".join(_explain(err, source, text) for err in e.errors()[:5])) from e


def _explain(err: Any, source: str, text: str) -> str:
    """One pydantic error in a line: file, line, key, what is wrong, nearest valid key."""
    loc: tuple[str | int, ...] = err["loc"]
    line = _line_of(text, loc)
    where = f"{source}:{line}" if line else source
    key = ".".join(str(p) for p in loc)
    if err["type"] == "extra_forbidden":
        valid = _fields_at(loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), valid, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(valid)}"
        return f"{where}: unknown key {key!r}; {hint}"
    message = err["msg"].removeprefix("Value error, ")
    return f"{where}: {key}: {message}" if key else f"{where}: {message}"


def _fields_at(loc: Sequence[str | int]) -> list[str]:
    """The valid keys of the table at ``loc``."""
    model: type[BaseModel] = Plan
    for part in loc:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *get_args(annotation)]
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return list(model.model_fields)


def _line_of(text: str, loc: Sequence[str | int]) -> int | None:
    """The 1-based line where the key at ``loc`` stands, as far as a line-wise scan can tell."""
    tables, key = [p for p in loc if isinstance(p, str)], None
    index = next((p for p in loc if isinstance(p, int)), None)
    if len(loc) and isinstance(loc[-1], str):
        key = tables[-1]
        tables = tables[:-1]
    here: list[str] = []
    seen: dict[str, int] = {}
    header_line: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line)
        if header:
            here = header.group(2).split(".")
            seen[header.group(2)] = seen.get(header.group(2), -1) + 1
            if key is not None and [*tables, key] == here and not (index or 0) < seen[header.group(2)]:
                header_line = number
            if here == tables and (index is None or seen[header.group(2)] == index):
                header_line = number
            continue
        in_table = here == tables and (index is None or seen.get(".".join(here), 0) == index)
        if in_table and key is not None and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return number
        inline = tables and re.match(rf"\s*{re.escape(tables[-1])}\s*=", line)
        if inline and key is not None and re.search(rf"\b{re.escape(key)}\b", line):
            return number
    return header_line
