"""The pre-registered plan: which arms, which tasks, how many items, which margins.

A plan is a TOML file. Unknown keys are refused with their line and the nearest valid key. Its
content hash is written into the journal before the first request, and the report carries it.
"""

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from equipoise.evals.errors import PlanError
from equipoise.evals.plan_errors import explain, own_errors
from equipoise.evals.plan_specs import (
    ArmSpec,
    DecisionSpec,
    GenerationSpec,
    LooksSpec,
    ModelSpec,
    Name,
    RunnerSpec,
    SeedSpec,
    Strict,
    TaskSpec,
)
from equipoise.evals.types import ArmRole

__all__ = [
    "ArmSpec",
    "DecisionSpec",
    "GenerationSpec",
    "LooksSpec",
    "ModelSpec",
    "Plan",
    "RunnerSpec",
    "SeedSpec",
    "TaskSpec",
    "hash_of",
    "load_plan",
    "parse_plan",
    "with_suite",
]

MAX_PLAN_BYTES = 1 << 20
MAX_TASK_FILE_BYTES = 8 << 20


class Plan(Strict):
    """A whole plan. See tasks/plans/ for examples."""

    schema_version: Literal[1]
    name: Name
    description: str = ""
    suite: str | None = None  # whose tasks are among ``tasks``
    seeds: SeedSpec = SeedSpec()
    decision: DecisionSpec
    runner: RunnerSpec = RunnerSpec()
    looks: LooksSpec | None = None  # None: nothing is looked at before the end
    generation: GenerationSpec = GenerationSpec()
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
        served = {a.role: a.served for a in self.arms if a.url is not None}
        if ArmRole.BASELINE in served and served[ArmRole.BASELINE] == served.get(ArmRole.CANDIDATE):
            raise ValueError(
                "the candidate has the URL of the baseline, which would be compared with itself; give its own"
            )
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
            if t.file is not None and t.lm_eval is not None:
                raise ValueError(f"task {t.name!r}: give it either a file or lm_eval")
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

    def generation_of(self, task: TaskSpec) -> GenerationSpec:
        """How this task's answers are generated: its own settings over the plan's."""
        found = task.generation.over(self.generation)
        given = {k: v for k in ("temperature", "top_p") if (v := getattr(task, k)) is not None}
        return found.model_copy(update=given)

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


def load_plan(path: Path, *, suites: Path | None = None) -> Plan:
    """Read a plan file.

    Parameters
    ----------
    suites : Path or None
        The folder whose ``NAME.toml`` holds the tasks of ``suite = "NAME"``.

    Raises
    ------
    PlanError
        Names the file, the line, the key and the nearest valid key.
    """
    text = _read_text(path)
    data = _toml(text, source=str(path))
    if suites is not None and "suite" in data:
        data = with_suite(data, suites, source=str(path))
    for task in _tables(data.get("tasks")):
        _pin_file(task, path)
    return _validated(data, source=str(path), text=text)


def parse_plan(text: str, *, source: str) -> Plan:
    """Parse and validate a plan's TOML text; ``source`` names it in errors."""
    return _validated(_toml(text, source=source), source=source, text=text)


def with_suite(data: Mapping[str, Any], suites: Path, *, source: str) -> dict[str, Any]:
    """A plan's values with the tasks of its suite, and its defaults of ``decision`` and ``runner``.

    What the plan says itself comes on top, key by key.

    Raises
    ------
    PlanError
        There is no such suite; the nearest is named.
    """
    known = sorted(p.stem for p in suites.glob("*.toml"))
    name = data["suite"]
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"suites: {', '.join(known)}"
        raise PlanError(f"{source}: unknown suite {name!r}; {hint}")
    path = suites / f"{name}.toml"
    suite = _toml(_read_text(path), source=str(path))
    own = {str(t.get("name")): t for t in _tables(data.get("tasks"))}
    merged = [dict(t) | own.pop(str(t.get("name")), {}) for t in _tables(suite.get("tasks"))]
    defaults: dict[str, Any] = {
        table: {**suite[table], **given}
        for table in ("decision", "runner")
        if table in suite and isinstance(given := data.get(table, {}), dict)
    }
    return {**data, **defaults, "tasks": [*merged, *own.values()]}


def _pin_file(task: dict[str, Any], plan: Path) -> None:
    """A task's file by its whole path and content, so that a changed one is another plan."""
    given = task.get("file")
    if not isinstance(given, str) or not given:
        return
    path = (plan.parent / given).resolve()
    where = f"{plan}: task {task.get('name')!r}"
    if path.exists() and not path.is_file():
        raise PlanError(f"{where}: {path} is not a file")
    try:
        with path.open("rb") as f:
            content = f.read(MAX_TASK_FILE_BYTES + 1)
    except OSError as e:
        raise PlanError(f"{where}: cannot read {path} ({e.strerror})") from e
    if len(content) > MAX_TASK_FILE_BYTES:
        raise PlanError(f"{where}: {path} has more than {MAX_TASK_FILE_BYTES} bytes")
    digest = hashlib.sha256(content).hexdigest()
    if task.setdefault("file_sha256", digest) != digest:
        raise PlanError(f"{where}: {path} has SHA-256 {digest}, not file_sha256")
    task["file"] = str(path)


def _tables(value: Any) -> list[dict[str, Any]]:
    return [t for t in value if isinstance(t, dict)] if isinstance(value, list) else []


def _read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise PlanError(
            f"{path}: cannot read the plan ({e.strerror}); give the path of a plan TOML file"
        ) from e
    if len(raw) > MAX_PLAN_BYTES:
        raise PlanError(f"{path}: a plan has at most {MAX_PLAN_BYTES} bytes; this file has {len(raw)}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise PlanError(f"{path}: not UTF-8 text at byte {e.start}; save the plan as UTF-8") from e


def _toml(text: str, *, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise PlanError(f"{source}: not valid TOML: {e}") from e


def _validated(data: dict[str, Any], *, source: str, text: str) -> Plan:
    try:
        return Plan.model_validate(data)
    except ValidationError as e:
        raise PlanError(
            "; ".join(explain(err, Plan, source, text) for err in own_errors(e.errors())[:5])
        ) from e
