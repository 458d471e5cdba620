"""Does a sign-off still hold? The run is decided again from its journal, and whatever changed is named."""

import datetime
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import __version__
from equipoise.evals import signoff_signature
from equipoise.evals.errors import EquipoiseError, LedgerError, SignoffError, UsageError
from equipoise.evals.experiment.attempt_register import ledger_beside
from equipoise.evals.experiment.results import JOURNAL_NAME
from equipoise.evals.experiment.signoff import POLICY_NOT_MET, RUN_CHANGED, Made, make_signoff
from equipoise.evals.experiment.signoff_ledger import prefix_problem
from equipoise.evals.experiment.signoff_report import REPORT_NAME, value_differences
from equipoise.evals.plan import hash_of
from equipoise.evals.plan_diff import plan_differences
from equipoise.evals.signoff_document import Signoff, manifest_path, payload, read_signoff
from equipoise.evals.signoff_journal import (
    MAX_MANIFEST_BYTES,
    Manifest,
    differences,
    manifest_of,
    parse_manifest,
)
from equipoise.evals.signoff_policy import SignoffPolicy

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["Trust", "Verification", "verify_signoff"]

MAX_NAMED = 20  # changes of one kind that are named; the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What a sign-off is checked against, beside the run itself."""

    policy: SignoffPolicy | None = None  # that it must have been made under
    public_key: "Ed25519PublicKey | None" = None  # that must have signed it
    ledger: Path | None = None  # by default the one beside the run directory
    suites: Path | None = None


@dataclass(slots=True, kw_only=True)
class Verification:
    """``changed``: the sign-off does not speak of what lies there. ``ended``: it did, and holds no longer."""

    signoff: Signoff
    changed: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """4 if anything changed, 3 if it has ended, else the sign-off's own (0 unless it is a refusal)."""
        if self.changed:
            return RUN_CHANGED
        return POLICY_NOT_MET if self.ended else self.signoff.exit_code


def verify_signoff(
    path: Path, directory: Path, trust: Trust, *, now: datetime.datetime | None = None
) -> Verification:
    """Check the sign-off at ``path`` against the run in ``directory``.

    Raises
    ------
    UsageError
        There is no sign-off or no run there, or the run's questions cannot be made here.
    SignoffError
        The file is no sign-off.
    """
    signoff = read_signoff(path)
    found = Verification(signoff=signoff)
    _check_signature(found, trust)
    _check_policy(found, trust)
    journal = directory / JOURNAL_NAME
    manifest = _manifest_now(found, journal)
    if manifest is not None:
        found.changed += _journal_changes(path, signoff, manifest, journal)
    policy = _policy_of(found)
    if policy is not None:
        _decide_again(found, path, policy, directory, trust)
    _check_time(found, now or datetime.datetime.now(datetime.UTC))
    if directory.resolve().name != signoff.run.id:
        found.notes.append(f"the run directory was called {signoff.run.id} when it was signed off")
    return found


def _decide_again(
    found: Verification, path: Path, policy: SignoffPolicy, directory: Path, trust: Trust
) -> None:
    signoff = found.signoff
    try:
        again = make_signoff(
            directory,
            policy,
            manifest_name=signoff.journal.manifest,
            output=path,
            ledger=trust.ledger,
            suites=trust.suites,
            now=datetime.datetime.fromisoformat(signoff.signed),
            run_id=signoff.run.id,
        )
    except EquipoiseError as e:
        if isinstance(e, UsageError) and not found.changed:
            raise
        found.changed.append(f"the run cannot be decided again: {e}")
        return
    _compare(found, again, directory, trust)


def _check_signature(found: Verification, trust: Trust) -> None:
    signature = found.signoff.signature
    if signature is None:
        if trust.public_key is not None:
            found.changed.append("the sign-off has no signature, and one of the given key is wanted")
        elif found.signoff.exit_code == 0:
            found.notes.append("it has no signature: whoever can write this file can have made it")
        return
    if not signoff_signature.is_available():
        found.notes.append("the signature was not checked: pip install 'equipoise[signing]'")
        return
    name = signoff_signature.fingerprint(signature.public_key)
    try:
        signoff_signature.check_signature(payload(found.signoff), signature, trust.public_key)
    except SignoffError as e:
        found.changed.append(str(e))
        return
    whose = (
        "the given key" if trust.public_key is not None else "a key that nobody vouched for (--public-key)"
    )
    found.notes.append(f"signed by {name}, {whose}")


def _check_policy(found: Verification, trust: Trust) -> None:
    signed = found.signoff.policy
    if hash_of(signed.values) != signed.sha256:
        found.changed.append("the policy in the sign-off does not match its own hash: it was edited")
    if trust.policy is None:
        found.notes.append("the policy is the one that the sign-off names itself (--policy checks yours)")
    elif trust.policy.content_hash != signed.sha256:
        lines = plan_differences(signed.values, trust.policy.values())
        found.changed += [f"policy: {line.replace('registered', 'signed under', 1)}" for line in lines]
        found.changed += [] if lines else ["policy: it is another than the sign-off was made under"]


def _policy_of(found: Verification) -> SignoffPolicy | None:
    try:
        return SignoffPolicy.model_validate(found.signoff.policy.values)
    except ValueError:
        found.changed.append("the policy in the sign-off is none that this version reads")
        return None


def _manifest_now(found: Verification, journal: Path) -> Manifest | None:
    try:
        return manifest_of(journal)
    except UsageError:
        raise
    except EquipoiseError as e:
        found.changed.append(str(e))
        return None


def _journal_changes(path: Path, signoff: Signoff, now: Manifest, journal: Path) -> list[str]:
    """Each changed, added or removed sample and record, if the kept manifest is the signed one."""
    kept, why = _kept_manifest(manifest_path(path).with_name(signoff.journal.manifest), signoff)
    if now.sha256 == signoff.journal.sha256:
        return [] if kept is not None or why is None else [why]
    if kept is None:
        counts = f"{now.count('sample'):,} samples and {now.count('record'):,} records"
        then = f"{signoff.journal.samples:,} and {signoff.journal.records:,}"
        return [
            f"{journal}: its content was changed ({counts}, signed were {then}); which of them cannot be "
            f"told: {why or 'the list of them that lay beside the sign-off is gone'}"
        ]
    return [f"{journal}: {text}" for text in _bounded(differences(kept, now))]


def _kept_manifest(path: Path, signoff: Signoff) -> tuple[Manifest | None, str | None]:
    """The manifest that lies beside the sign-off; or None, and what is wrong with it."""
    if path.name != signoff.journal.manifest or not path.is_file():
        return None, None
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        return None, f"{path} is too large"
    text = path.read_text(encoding="utf-8", errors="replace")
    if hashlib.sha256(text.encode("utf-8")).hexdigest() != signoff.journal.sha256:
        return None, f"{path} was changed"
    try:
        return parse_manifest(text), None
    except ValueError as e:
        return None, f"{path}: {e}"


def _bounded(texts: Iterable[str]) -> Iterator[str]:
    more = 0
    for i, text in enumerate(texts):
        if i < MAX_NAMED:
            yield text
        else:
            more += 1
    if more:
        yield f"and {more:,} more changes"


def _compare(found: Verification, again: Made, directory: Path, trust: Trust) -> None:
    """Part by part: what was signed, and what the run gives when it is decided again."""
    signed, now = found.signoff, again.signoff
    if signed.run.created_unix_s != now.run.created_unix_s:
        found.changed.append(
            f"{directory} holds another run: its plan was registered at another time than that of "
            f"{signed.run.id}"
        )
    found.changed += [f"plan: {line.replace('registered', 'signed', 1)}" for line in _plan(signed, now)]
    if signed.equipoise != __version__:
        found.notes.append(
            f"signed with equipoise {signed.equipoise}; computed again with {__version__}: where only words "
            "differ, verify with the version that signed"
        )
    found.changed += _bounded(_parts(signed, now))
    if signed.report_sha256 != now.report_sha256 and not found.changed:
        _report_differs(found, now)
    for name, sha in signed.files.items():
        if now.files.get(name) != sha:
            how = "is gone" if name not in now.files else "was changed"
            found.changed.append(f"{directory / name} {how}")
    new = now.files.keys() - signed.files.keys()
    if new:
        found.notes.append(f"files that came since: {', '.join(sorted(new)[:MAX_NAMED])}")
    _check_ledger(found, directory, trust)


def _report_differs(found: Verification, now: Signoff) -> None:
    """Another digest where all numbers agree: another version's or machine's report, or an edited digest."""
    signed = found.signoff
    stored = signed.files.get(REPORT_NAME)
    if signed.report_sha256 == stored == now.files.get(REPORT_NAME):
        found.notes.append(f"{REPORT_NAME} agrees with what is computed here, though not to the last digit")
    else:
        found.changed.append(
            "the digest of the report is another than was signed: the sign-off was edited, or another "
            f"version of equipoise made it ({signed.equipoise}, this is {__version__})"
        )


def _plan(signed: Signoff, now: Signoff) -> list[str]:
    if hash_of(signed.plan.values) != signed.plan.sha256:
        return ["the plan in the sign-off does not match its own hash: it was edited"]
    lines = list(plan_differences(signed.plan.values, now.plan.values))
    if not lines and signed.plan.sha256 != now.plan.sha256:
        lines = [f"its hash is {now.plan.sha256[:12]}, signed was {signed.plan.sha256[:12]}"]
    return lines


def _parts(signed: Signoff, now: Signoff) -> Iterator[str]:
    """The numbers and words that were signed, against those computed now."""
    for part in ("decision", "exit_code", "reasons", "valid_until", "run", "models", "provenance"):
        yield from value_differences(part, _plain(signed, part), _plain(now, part), words=("signed", "now"))
    for name, then, found in (
        ("plan.name", signed.plan.name, now.plan.name),
        ("policy.name", signed.policy.name, now.policy.name),
        ("ledger.attempts", _attempts(signed), _attempts(now)),
    ):
        yield from value_differences(name, then, found, words=("signed", "now"))
    yield from _clauses(signed, now)
    if signed.journal.sha256 == now.journal.sha256:  # else each change is named
        then, found = (s.model_dump(mode="json", include={"journal"}) for s in (signed, now))
        yield from value_differences("", then, found, words=("signed", "now"))


def _attempts(signoff: Signoff) -> Any:
    if signoff.ledger is None:
        return None
    return [a.model_dump(mode="json") for a in signoff.ledger.attempts]


def _clauses(signed: Signoff, now: Signoff) -> Iterator[str]:
    then, found = ({c.name: c for c in s.policy.clauses} for s in (signed, now))
    for name in then | found:
        if then.get(name) != found.get(name):
            yield f"policy clause {name}: signed {_clause(then.get(name))}, now {_clause(found.get(name))}"


def _plain(signoff: Signoff, part: str) -> Any:
    return signoff.model_dump(mode="json", include={part})[part]


def _clause(clause: Any) -> str:
    return "nothing" if clause is None else f"{clause.found} ({'met' if clause.met else 'not met'})"


def _check_ledger(found: Verification, directory: Path, trust: Trust) -> None:
    signed = found.signoff.ledger
    if signed is None:
        return
    path = trust.ledger or ledger_beside(directory)
    if not path.is_file():
        found.changed.append(f"the ledger {path} is not there; name it with --ledger")
        return
    try:
        problem = prefix_problem(path, signed)
    except LedgerError as e:
        problem = str(e)
    if problem is not None and problem not in found.changed:
        found.changed.append(problem)


def _check_time(found: Verification, now: datetime.datetime) -> None:
    signed, until = found.signoff.signed, found.signoff.valid_until
    if datetime.datetime.fromisoformat(signed) > now + datetime.timedelta(days=1):
        found.changed.append(f"it was signed at {signed}, which is still to come")
    if until is not None and datetime.datetime.fromisoformat(until) < now:
        found.ended.append(f"it held until {until}; the policy wants a younger run")
