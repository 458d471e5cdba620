"""A sign-off policy: what an organisation demands of a run beyond the run's own plan.

A policy is a TOML file. A key that is left out demands nothing; an unknown one is refused with its line
and the nearest valid key. evals/policies/ has those that ship.
"""

import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from equipoise.evals.errors import UsageError
from equipoise.evals.plan import hash_of
from equipoise.evals.plan_errors import explain
from equipoise.evals.plan_specs import Fraction, Name, Strict

__all__ = ["SignoffPolicy", "find_policy", "load_policy", "parse_policy"]

MAX_POLICY_BYTES = 1 << 18
Pattern = Annotated[str, Field(min_length=1, max_length=200)]


class DecisionDemands(Strict):
    """Limits of what the plan decides with; ``max_false_sign_off`` is over all attempts together."""

    max_suite_margin: Fraction | None = None
    max_task_margin: Fraction | None = None
    task_margins: dict[str, Fraction] = {}  # noqa: RUF012  pydantic copies it
    max_alpha: Fraction | None = None
    max_attempts: int | None = Field(default=None, ge=1, le=100)
    max_false_sign_off: Fraction | None = None
    allow_detected: bool = True
    require_indistinguishable: bool = False
    require_worst_case: bool = False


class TaskDemands(Strict):
    """Tasks that must be critical; ``suites``, of which the plan must use one."""

    critical: tuple[Name, ...] = ()
    suites: tuple[Name, ...] = ()


class EvidenceDemands(Strict):
    """What the run must have shown about itself."""

    require_noise_floor: bool = False
    require_control: bool = False
    max_detectable_loss: Fraction | None = None
    require_ledger: bool = False
    require_servers: bool = False


class OriginDemands(Strict):
    """What must be known about how, on what and when the run was made. Patterns as of file names."""

    require_clean_git: bool = False
    sglang_versions: tuple[Pattern, ...] = ()
    gpu: Pattern | None = None  # a regular expression
    models: tuple[Pattern, ...] = ()
    max_age_days: float | None = Field(default=None, gt=0, le=36500)

    @field_validator("gpu")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as e:
            raise ValueError(f"not a regular expression: {e}") from e
        return value


class SignoffPolicy(Strict):
    """A whole policy. See evals/policies/release.toml."""

    schema_version: Literal[1]
    name: Name
    description: str = ""
    decision: DecisionDemands = DecisionDemands()
    tasks: TaskDemands = TaskDemands()
    evidence: EvidenceDemands = EvidenceDemands()
    origin: OriginDemands = OriginDemands()

    def values(self) -> dict[str, Any]:
        """What it demands, as JSON values; keys that demand nothing are left out."""
        found: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        return {k: v for k, v in found.items() if v != {}}

    @property
    def content_hash(self) -> str:
        """SHA-256 of the canonical JSON of `values`: comments and order do not matter."""
        return hash_of(self.values())


def find_policy(name: str) -> Path:
    """A path, or the name of a policy that ships in evals/policies/.

    Raises
    ------
    UsageError
        There is none of that name.
    """
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return path
    shipped = Path(str(files("equipoise.evals") / "policies"))
    if (shipped / f"{path.name}.toml").is_file():
        return shipped / f"{path.name}.toml"
    known = ", ".join(sorted(p.stem for p in shipped.glob("*.toml")))
    raise UsageError(f"no policy {name!r}: give a path to a TOML file, or one of {known}")


def load_policy(path: Path) -> SignoffPolicy:
    """Read a policy file.

    Raises
    ------
    UsageError
        Names the file, the line, the key and the nearest valid key.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_POLICY_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as e:
        raise UsageError(f"{path}: cannot read the policy ({e.strerror}); give a policy TOML file") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"{path}: not UTF-8 text at byte {e.start}; save the policy as UTF-8") from e
    if len(raw) > MAX_POLICY_BYTES:
        raise UsageError(f"{path}: a policy has at most {MAX_POLICY_BYTES} bytes")
    return parse_policy(text, source=str(path))


def parse_policy(text: str, *, source: str) -> SignoffPolicy:
    """Parse and validate a policy's TOML text; ``source`` names it in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{source}: not valid TOML: {e}") from e
    try:
        return SignoffPolicy.model_validate(data)
    except ValidationError as e:
        found = "; ".join(explain(err, SignoffPolicy, source, text) for err in e.errors()[:5])
        raise UsageError(found) from e
