"""What earlier attempts at the same candidate mean for the verdict of this one.

Every attempt has a chance of up to its alpha to sign a bad candidate off. Tried until it passes, a bad
candidate is signed off with probability up to the sum of the alphas (the union bound; no assumption
about how the attempts depend on each other). So a plan registers how many attempts it allows, each
test runs at alpha over that number, and an attempt beyond it cannot sign off.

Attempt number k is 1 + the earlier attempts that were decided, or abandoned, without a sign-off. Two kinds
do not count:

* a sign-off, because the bound is on the event "signed off at least once": once it has happened, later
  attempts cannot make it happen;
* an INVALID one, because it tested nothing: it could not sign off, and whether a run is valid (parity, noise
  floor, control, the baseline's truncation, missing answers) is found without the candidate's scores, so
  repeating until a run is valid chooses nothing. It is listed all the same.

What counts is every attempt that could have been the first sign-off, and was not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from equipoise.evals.errors import JournalError
from equipoise.evals.ledger import WITHDRAWN, Attempt
from equipoise.evals.verdict import Outcome, RunVerdict, SuiteVerdict

__all__ = [
    "Attempts",
    "EarlierAttempt",
    "apply_attempts",
    "attempts_of",
    "from_record",
    "is_withheld",
    "to_record",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempt:
    """One earlier attempt at the same candidate and baseline."""

    run: str
    model: str
    unix_s: float
    plan: str
    plan_hash: str
    outcome: str  # of the model, or "unfinished"
    alpha: float

    @property
    def counts(self) -> bool:
        """Whether it could have been the first sign-off, and was not."""
        return self.outcome not in (Outcome.SIGNED_OFF.value, Outcome.INVALID.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """One model's attempts, as known when this one was decided.

    Attributes
    ----------
    id, sha256
        This attempt and its line in the ledger.
    candidate, baseline
        Digests of what is compared.
    alpha
        One-sided error that this attempt may spend.
    max_attempts
        How many attempts this run's plan allows.
    """

    id: str
    sha256: str
    unix_s: float
    candidate: str
    baseline: str
    alpha: float
    max_attempts: int
    earlier: tuple[EarlierAttempt, ...] = ()

    @property
    def number(self) -> int:
        return 1 + sum(a.counts for a in self.earlier)

    @property
    def may_sign_off(self) -> bool:
        return self.number <= self.max_attempts

    @property
    def bound(self) -> float:
        """Upper bound of the chance that some attempt, this one included, signs off a bad candidate."""
        return min(1.0, self.alpha + sum(a.alpha for a in self.earlier if a.counts))

    def excess(self, *, asked: bool) -> str:
        """Why this attempt cannot sign off, and the remedy; empty if it can.

        Before anything was asked (``asked`` false) this attempt need not be made; afterwards it counts.
        """
        if self.may_sign_off:
            return ""
        return (
            f"attempt {self.number} of {self.max_attempts} registered: the chance that a bad release is "
            f"signed off in any of them is up to {100 * self.bound:.3g}%; {self.remedy(asked=asked)}"
        )

    def remedy(self, *, asked: bool) -> str:
        """What lets the next attempt sign off."""
        return (
            f"register a plan with max_attempts = {self.number + asked} before the next run; alpha is then "
            "split over the attempts, so it takes more items to decide"
        )


def attempts_of(same: Sequence[Attempt]) -> Attempts:
    """From the ledger's attempts at one candidate, of which the last is this one."""
    *before, own = same
    return Attempts(
        id=own.registration.id,
        sha256=own.sha256,
        unix_s=own.unix_s,
        candidate=own.registration.candidate,
        baseline=own.registration.baseline,
        alpha=own.registration.alpha,
        max_attempts=own.registration.max_attempts,
        earlier=tuple(
            EarlierAttempt(
                run=a.registration.run,
                model=a.registration.model,
                unix_s=a.unix_s,
                plan=a.registration.plan,
                plan_hash=a.registration.plan_hash,
                outcome=a.outcome,
                alpha=a.registration.alpha,
            )
            for a in before
            # Models of one run that serve the same must all pass: that is one attempt.
            if a.outcome != WITHDRAWN and a.registration.key[0] != own.registration.key[0]
        ),
    )


def apply_attempts(verdict: RunVerdict, attempts: Mapping[str, Attempts]) -> RunVerdict:
    """Withhold the sign-off of every model whose attempts are used up; any other verdict stays.

    Parameters
    ----------
    attempts : mapping
        By model. A model that is not in it (no ledger was kept) is left as it is.
    """
    models = tuple(_withheld(m, attempts.get(m.model)) for m in verdict.models)
    if models == verdict.models:
        return verdict
    order = list(Outcome)
    return replace(
        verdict,
        outcome=min((m.outcome for m in models), key=order.index),
        indistinguishable=False,
        models=models,
    )


def is_withheld(verdict: SuiteVerdict, attempts: Attempts | None) -> bool:
    """Whether `apply_attempts` took this model's sign-off away."""
    if attempts is None or attempts.may_sign_off:
        return False
    return attempts.excess(asked=True) in verdict.reasons


def _withheld(model: SuiteVerdict, attempts: Attempts | None) -> SuiteVerdict:
    if attempts is None or attempts.may_sign_off or model.outcome is not Outcome.SIGNED_OFF:
        return model
    return replace(
        model,
        outcome=Outcome.INCONCLUSIVE,
        indistinguishable=False,
        reasons=(attempts.excess(asked=True), *model.reasons),
    )


def to_record(attempts: Attempts) -> dict[str, Any]:
    """As the run's journal keeps it, so that the verdict can be computed again."""
    return asdict(attempts)


def from_record(record: Mapping[str, Any], *, source: str) -> Attempts:
    """What `to_record` gave.

    Raises
    ------
    JournalError
        The record is something else.
    """
    try:
        earlier = tuple(EarlierAttempt(**a) for a in record["earlier"])
        found = Attempts(**(dict(record) | {"earlier": earlier}))
        if not all(isinstance(a.alpha, float) and isinstance(a.outcome, str) for a in (*earlier,)):
            raise TypeError("an earlier attempt without alpha or outcome")
        if not isinstance(found.alpha, float) or not isinstance(found.max_attempts, int):
            raise TypeError("no alpha or max_attempts")
    except (KeyError, TypeError) as e:
        raise JournalError(
            f"{source}: the record of earlier attempts cannot be read ({e}); restore the journal from a copy"
        ) from e
    return found
