"""A sign-off as a document: what it says, how it is written, and what a signature covers.

``signoff.json`` vouches for one run under one policy: decision, verdicts, and the digests by which every part
of it can be found changed. It is read strictly: an unknown, missing or ill-typed key makes it no sign-off.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.evals.errors import SignoffError, UsageError
from equipoise.evals.sample_json import canonical_json
from equipoise.evals.signoff_journal import Manifest

__all__ = [
    "MANIFEST_SUFFIX",
    "SIGNOFF_NAME",
    "ClauseResult",
    "JournalFacts",
    "LedgerAttempt",
    "LedgerFacts",
    "ModelResult",
    "PlanFacts",
    "PolicyFacts",
    "RunFacts",
    "Signature",
    "Signoff",
    "manifest_path",
    "payload",
    "read_signoff",
    "write_signoff",
]

SIGNOFF_NAME = "signoff.json"
MANIFEST_SUFFIX = "-journal.jsonl"  # beside it: the manifest of the journal
MAX_SIGNOFF_BYTES = 16 << 20
DOMAIN = b"equipoise sign-off 1\n"  # so that the signature is of nothing else

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")]  # UTC, ISO 8601


class _Part(BaseModel):
    """Unknown keys are refused, nothing changes afterwards.

    Without validators of its own: one that runs before the types would turn JSON's arrays into lists, which
    a strict reading takes for no tuples.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RunFacts(_Part):
    """Which run, and what it decided by its own plan. ``created_unix_s`` as the journal has it."""

    id: str
    created_unix_s: float
    finished: Time  # its last answer
    state: str
    verdict: str | None
    exit_code: int
    indistinguishable: bool
    headline: str
    pairs: int
    alpha: float
    smallest_detectable_loss: float | None


class ModelResult(_Part):
    """One model: its verdict, and the pooled mean that it rests on."""

    name: str
    verdict: str | None
    worst_case_verdict: str | None
    delta: float | None
    lower: float | None
    upper: float | None
    margin: float | None
    tasks: dict[str, str]  # verdicts


class PlanFacts(_Part):
    name: str
    sha256: Sha256
    values: dict[str, Any]  # as registered


class JournalFacts(_Part):
    """``sha256`` is that of the manifest, which lies beside the sign-off under the name ``manifest``."""

    sha256: Sha256
    manifest: str = Field(pattern=r"^[^/\x00]{1,255}$")
    samples: int
    records: int


class LedgerAttempt(_Part):
    """One model's attempt. ``line_sha256`` is that of the line that registered it."""

    model: str
    id: str
    line_sha256: str
    number: int
    max_attempts: int
    bound: float
    outcome: str


class LedgerFacts(_Part):
    """The ledger as it was then: its number of lines, the hash of the last one, this run's attempts."""

    name: str
    lines: int
    head: Sha256
    attempts: tuple[LedgerAttempt, ...]


class ClauseResult(_Part):
    """One demand of the policy, what was found, and whether that meets it."""

    name: str
    demanded: str
    found: str
    met: bool


class PolicyFacts(_Part):
    name: str
    sha256: Sha256
    values: dict[str, Any]
    clauses: tuple[ClauseResult, ...]


class Signature(_Part):
    """Over `payload`; the public key as OpenSSH writes it."""

    algorithm: Literal["ed25519"]
    public_key: str = Field(max_length=400)
    value: str = Field(max_length=200)  # base64


class Signoff(_Part):
    """A whole sign-off; ``decision`` REFUSED says why in ``reasons``."""

    kind: Literal["equipoise sign-off"] = "equipoise sign-off"
    schema_version: Literal[1] = 1
    decision: Literal["SIGNED OFF", "REFUSED"]
    exit_code: int
    reasons: tuple[str, ...]
    signed: Time
    valid_until: Time | None
    equipoise: str  # version
    run: RunFacts
    models: tuple[ModelResult, ...]
    plan: PlanFacts
    journal: JournalFacts
    report_sha256: Sha256  # of the JSON report as computed from the journal
    files: dict[str, Sha256]  # of the run directory, the journal left out
    ledger: LedgerFacts | None
    provenance: dict[str, Any]
    policy: PolicyFacts
    signature: Signature | None = None


def payload(signoff: Signoff) -> bytes:
    """What a signature covers: everything but itself."""
    return DOMAIN + canonical_json(signoff.model_dump(exclude={"signature"})).encode("ascii")


def manifest_path(signoff: Path) -> Path:
    """Where the manifest of a sign-off lies."""
    return signoff.with_name(signoff.stem + MANIFEST_SUFFIX)


def write_signoff(path: Path, signoff: Signoff, manifest: Manifest) -> None:
    """Write the manifest, then the sign-off: each whole or not at all.

    Raises
    ------
    UsageError
        They cannot be written there.
    """
    text = json.dumps(signoff.model_dump(mode="json"), indent=1, allow_nan=False) + "\n"
    try:
        _replace(manifest_path(path), manifest.text)
        _replace(path, text)
    except OSError as e:
        raise UsageError(f"{path}: cannot write the sign-off ({e.strerror}); give another --output") from e


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)  # a link that lies there would be written through
    with partial.open("x", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _once(pairs: list[tuple[str, Any]]) -> None:
    """Of a key that is there twice, readers of JSON take one or the other."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"the key {name!r} is there twice")
        seen.add(name)


def read_signoff(path: Path) -> Signoff:
    """Read a sign-off.

    Raises
    ------
    UsageError
        There is none.
    SignoffError
        It is no sign-off, or not one of this version: names the key.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SIGNOFF_BYTES + 1)
    except OSError as e:
        raise UsageError(
            f"{path}: cannot read the sign-off ({e.strerror}); make one with `equipoise signoff RUN_DIR`"
        ) from e
    if len(raw) > MAX_SIGNOFF_BYTES:
        raise SignoffError(f"{path}: a sign-off has at most {MAX_SIGNOFF_BYTES} bytes")
    try:
        found = Signoff.model_validate_json(raw, strict=True)
        json.loads(raw, object_pairs_hook=_once)
        payload(found)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SignoffError(f"{path}: not a sign-off: {where}{': ' if where else ''}{first['msg']}") from e
    except (ValueError, RecursionError) as e:  # NaN, or too deep
        raise SignoffError(f"{path}: not a sign-off: it cannot be written as JSON again ({e})") from e
    return found
