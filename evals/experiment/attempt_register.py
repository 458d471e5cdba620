"""One run's attempts: foreseen, registered before the first request, decided on record, closed.

The ledger is asked and told here; the run's journal keeps what was known, so that a report computed
again later gives the same verdict, and never touches the ledger.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from equipoise.evals.attempts import Attempts, attempts_of, from_record, to_record
from equipoise.evals.errors import EquipoiseError, LedgerError, ParityError
from equipoise.evals.experiment.served_digest import ATTEMPT_RECORD, Served, served
from equipoise.evals.experiment.serving import ServerSpec
from equipoise.evals.journal import Journal
from equipoise.evals.ledger import (
    LEDGER_NAME,
    WITHDRAWN,
    Attempt,
    Ledger,
    Registration,
    attempt_id,
    until,
)
from equipoise.evals.plan import Plan
from equipoise.evals.types import ArmRole

__all__ = ["CLOSED_RECORD", "AttemptRegister", "ledger_beside", "recorded_attempts", "withdraw"]

CLOSED_RECORD = "attempt closed"


def ledger_beside(run: Path) -> Path:
    """Where a run directory's attempts are kept unless another ledger is named: beside it."""
    return run.resolve().parent / LEDGER_NAME


def recorded_attempts(journal: Journal) -> dict[str, Attempts]:
    """By model, the attempts as last written down in a run's journal; empty if no ledger was kept.

    Raises
    ------
    JournalError
        A record cannot be read.
    """
    return {
        str(value.get("model")): from_record(value.get("attempts"), source=str(journal.path))
        for _, _, value in journal.records(ATTEMPT_RECORD)
    }


def withdraw(journal: Journal, ledger: Ledger) -> None:
    """Close the attempts of a run that got no answer at all: nothing was seen, so they do not count."""
    known = {a.registration.id for a in ledger.attempts()}
    for attempts in recorded_attempts(journal).values():
        if attempts.id in known:
            ledger.close(attempts.id, WITHDRAWN)


class AttemptRegister:
    """The attempts of one run; see the module."""

    def __init__(
        self,
        ledger: Ledger,
        plan: Plan,
        journal: Journal,
        specs: Mapping[str, Sequence[ServerSpec]],
        console: Console,
    ) -> None:
        self.ledger = ledger
        self._plan = plan
        self._journal = journal
        self._specs = specs
        self._console = console
        self._checkpoints: dict[str, str] = {}
        self._served: dict[str, dict[str, Served]] = {}  # model -> arm -> what it serves
        self._foreseen: set[str] = set()
        self._registered: set[str] = set()  # in this session

    def foresee(self) -> None:
        """Before anything is started: check the ledger, and warn of attempts that cannot sign off.

        What an endpoint serves is known only once it was asked; `register` warns of that.

        Raises
        ------
        LedgerError
            The ledger is damaged or was changed.
        """
        if self._closed():
            return
        self.ledger.attempts()
        for model in self._plan.models:
            registration = self._registration(model.name, {})
            if registration is None:
                continue
            same = self.ledger.same(candidate=registration.candidate, baseline=registration.baseline)
            at = [
                i
                for i, a in enumerate(same)
                if a.registration.key == registration.key and a.outcome != WITHDRAWN
            ]
            before = same[: at[0]] if at else same
            own = Attempt(registration=registration, unix_s=time.time(), sha256="")
            self._warn(model.name, attempts_of((*before, own)))
            self._foreseen.add(model.name)

    def register(self, model: str) -> None:
        """Register one model's attempt, the first time it is called; its servers are up, nothing is asked.

        Raises
        ------
        LedgerError
            It cannot be saved, or a resumed run serves something else, or has another ledger.
        """
        if model in self._registered:
            return
        recorded = recorded_attempts(self._journal).get(model)
        registration = self._registration(model, self._endpoints(model))
        assert registration is not None, "every arm was asked what it serves"
        if recorded is not None:
            self._require_same(model, recorded, registration)
        attempts = attempts_of(self.ledger.register(registration))
        if recorded is None or recorded.id != attempts.id:
            self._record(model, attempts)
        self._registered.add(model)
        if model not in self._foreseen:
            self._warn(model, attempts)
        if attempts.number > 1:
            said = f"{model}: attempt {attempts.number} of {attempts.max_attempts} on this candidate"
            self._console.print(said, highlight=False)

    def settle(self) -> None:
        """Write into the journal what is known of earlier attempts, once, before the verdict.

        Raises
        ------
        LedgerError
            The ledger was changed, or no longer has this run's attempts.
        """
        if self._closed():
            return
        for model, recorded in recorded_attempts(self._journal).items():
            same = self.ledger.same(candidate=recorded.candidate, baseline=recorded.baseline)
            found = until(same, recorded.id)
            if not found or found[-1].sha256 != recorded.sha256:
                raise self._lost(model)
            if (now := attempts_of(found)) != recorded:
                self._record(model, now)

    def close(self, outcomes: Mapping[str, str]) -> None:
        """Write the models' outcomes into the ledger, once; without outcomes the attempts stay unfinished."""
        if self._closed() or not outcomes:
            return
        for model, recorded in recorded_attempts(self._journal).items():
            self.ledger.close(recorded.id, outcomes[model])
        self._journal.record(CLOSED_RECORD, dict(outcomes))

    def withdraw_if_unanswered(self) -> None:
        """On the way out of a run that failed: without an answer it was no attempt."""
        try:
            self._journal.flush()
            if not any(s.outputs for s in self._journal.samples()):
                withdraw(self._journal, self.ledger)
        except EquipoiseError as e:  # the run's own error is the one to show
            self._console.print(f"note: the attempt stays registered: {e}", highlight=False, markup=False)

    def _closed(self) -> bool:
        return bool(self._journal.records(CLOSED_RECORD))

    def _warn(self, model: str, attempts: Attempts) -> None:
        if not attempts.may_sign_off:
            self._console.print(
                f"warning: {model}: {attempts.excess(asked=False)}. This run will not be signed off, "
                "whatever it finds",
                style="yellow",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

    def _require_same(self, model: str, recorded: Attempts, now: Registration) -> None:
        known = {a.registration.id: a for a in self.ledger.attempts()}
        if recorded.id not in known or known[recorded.id].sha256 != recorded.sha256:
            raise self._lost(model)
        for name in ("candidate", "baseline"):
            then, served_now = getattr(recorded, name), getattr(now, name)
            if then != served_now:
                raise ParityError(
                    f"{self._journal.path}: model {model!r}: the {name} is not the one that this run "
                    f"registered ({served_now}, registered was {then}); serve that one, or start a new run"
                )

    def _lost(self, model: str) -> LedgerError:
        return LedgerError(
            f"{self.ledger.path}: the attempt that this run registered for model {model!r} is not in this "
            "ledger; restore the ledger from a copy, or name the run's own with --ledger"
        )

    def _record(self, model: str, attempts: Attempts) -> None:
        arms = self._served.get(model, {})
        earlier = [v for _, _, v in self._journal.records(ATTEMPT_RECORD) if v["model"] == model]
        known = earlier[-1] if earlier else {}
        self._journal.record(
            ATTEMPT_RECORD,
            {
                "model": model,
                "attempts": to_record(attempts),
                "ledger": self.ledger.attempts()[0].sha256,  # names the ledger: its first line
                "arms": {n: s.digest for n, s in arms.items()} or known.get("arms", {}),
                "served": {n: s.facts for n, s in arms.items()} or known.get("served", {}),
            },
        )

    def _endpoints(self, model: str) -> Mapping[str, Mapping[str, Any]]:
        """By arm, what its endpoint said about itself when the servers were compared."""
        told = [v for _, _, v in self._journal.records("servers") if v["model"] == model]
        return {name: a["server"] for name, a in told[-1]["arms"].items() if a["server"]} if told else {}

    def _registration(self, model: str, endpoints: Mapping[str, Mapping[str, Any]]) -> Registration | None:
        """None while a baseline or candidate is not known."""
        by_arm = {a.name: spec for spec in self._specs[model] for a in spec.arms}
        digests: dict[ArmRole, str] = {}
        for role in (ArmRole.BASELINE, ArmRole.CANDIDATE):
            arm = self._plan.arm(role)
            assert arm is not None, "checked by the plan"
            found = served(model, arm, by_arm.get(arm.name), endpoints.get(arm.name), self._checkpoints)
            if found is None:
                return None
            self._served.setdefault(model, {})[arm.name] = found
            digests[role] = found.digest
        plan, metadata = self._plan, self._journal.metadata
        run = self._journal.path.resolve().parent.name
        return Registration(
            id=attempt_id(plan_hash=metadata.plan_hash, created_unix_s=metadata.created_unix_s, model=model),
            run=run if run.isprintable() else ascii(run),
            model=model,
            candidate=digests[ArmRole.CANDIDATE],
            baseline=digests[ArmRole.BASELINE],
            plan=plan.name,
            plan_hash=metadata.plan_hash,
            alpha=plan.decision.effective_alpha,
            max_attempts=plan.decision.max_attempts,
            margins={t.name: t.margin for t in plan.tasks if t.margin is not None},
            suite_margin=plan.decision.suite_margin,
        )
