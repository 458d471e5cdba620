"""The ledger: every attempt at signing a candidate off, whatever became of it.

Running again until it passes would sign off 1 - (1 - alpha)^k of bad candidates, so attempts are
counted. An attempt is one run of one model; it is registered when its first request is about to be
sent and closed with its outcome. Until then it is "unfinished", and stays so if the run is abandoned.
Attempts are at the same thing when the digests of candidate and baseline are the same, whatever the
plan. This module keeps the facts; evals/attempts.py decides what follows from them.
"""

import hashlib
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.evals import ledger_file
from equipoise.evals.errors import LedgerError
from equipoise.evals.ledger_file import Line, Lines

__all__ = [
    "LEDGER_NAME",
    "UNFINISHED",
    "WITHDRAWN",
    "Attempt",
    "Ledger",
    "Registration",
    "attempt_id",
    "until",
]

LEDGER_NAME = "ledger.jsonl"
UNFINISHED = "unfinished"
WITHDRAWN = "withdrawn"  # ended without a single answer: nothing was seen
SCHEMA_VERSION = 1
MAX_TEXT = 512  # of a name; digests are shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What is written before the first request.

    Attributes
    ----------
    id
        Of `attempt_id`; a run that was withdrawn and then resumed after all counts it up.
    candidate, baseline
        Digests of what is served; see evals/experiment/served_digest.py.
    alpha
        One-sided error that this attempt may spend: the plan's alpha over its ``max_attempts``.
    margins
        By accuracy task.
    suite_margin
        Of the pooled mean.
    """

    id: str
    run: str
    model: str
    candidate: str
    baseline: str
    plan: str
    plan_hash: str
    alpha: float
    max_attempts: int
    margins: Mapping[str, float]
    suite_margin: float

    @property
    def key(self) -> tuple[str, str]:
        """Names the run and the model, however often it was resumed."""
        run, _, model = self.id.partition(":")
        return run.partition(".")[0], model


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A registered attempt and what became of it. ``sha256`` is that of its line in the ledger."""

    registration: Registration
    unix_s: float
    sha256: str
    outcome: str = UNFINISHED
    closed_unix_s: float | None = None


def attempt_id(*, plan_hash: str, created_unix_s: float, model: str) -> str:
    """Name of one model's attempt in the run whose journal was made then; a moved run keeps it."""
    run = hashlib.sha256(f"{plan_hash} {created_unix_s!r}".encode()).hexdigest()[:24]
    return f"{run}.0:{model}"


class Ledger:
    """A ledger file; see `ledger_file` for how it is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts in the order of their registration.

        Raises
        ------
        LedgerError
            The ledger cannot be read, or a line is broken.
        """
        return _attempts(ledger_file.read(self.path), self.path)

    def same(self, *, candidate: str, baseline: str) -> tuple[Attempt, ...]:
        """The attempts at this candidate against this baseline, in their order."""
        return _same(self.attempts(), candidate, baseline)

    def register(self, registration: Registration) -> tuple[Attempt, ...]:
        """Register an attempt, once: a resumed run finds its own again, unless it was withdrawn.

        Returns
        -------
        tuple of Attempt
            Those at the same candidate and baseline up to and with this one, which is the last.

        Raises
        ------
        LedgerError
            It cannot be saved, or the run was registered with another candidate or baseline.
        """
        body = _as_json(registration)
        try:
            _registration(body)  # what cannot be read again is not written
        except (TypeError, ValueError) as e:
            raise LedgerError(f"{self.path}: run {registration.run!r} cannot be registered: {e}") from e
        with ledger_file.writing(self.path) as (fd, lines):
            known = _attempts(lines, self.path)
            ours = [a for a in known if a.registration.key == registration.key]
            if not ours or ours[-1].outcome == WITHDRAWN:
                body["id"] = f"{registration.key[0]}.{len(ours)}:{registration.model}"
                event = {"event": "registered", "schema": SCHEMA_VERSION, "unix_s": time.time()}
                known = _attempts(ledger_file.append(fd, lines, event | body, path=self.path), self.path)
        own = next(a for a in reversed(known) if a.registration.key == registration.key)
        for name in ("candidate", "baseline"):
            now, then = getattr(registration, name), getattr(own.registration, name)
            if now != then:
                raise LedgerError(
                    f"{self.path}: run {registration.run!r}, model {registration.model!r} was registered "
                    f"with the {name} {then}, and serves {now} now; serve the registered one, or start "
                    "a new run"
                )
        return until(_same(known, registration.candidate, registration.baseline), own.registration.id)

    def close(self, id: str, outcome: str) -> None:
        """Write an attempt's outcome; nothing if that is what the ledger says already.

        Raises
        ------
        LedgerError
            There is no such attempt, or it cannot be saved.
        """
        with ledger_file.writing(self.path) as (fd, lines):
            found = next((a for a in _attempts(lines, self.path) if a.registration.id == id), None)
            if found is None:
                raise LedgerError(
                    f"{self.path}: the attempt {id} that this run registered is not in the ledger; "
                    "restore the ledger from a copy, or name the run's own with --ledger"
                )
            if found.outcome != outcome:
                event = {"event": "closed", "schema": SCHEMA_VERSION, "unix_s": time.time()}
                ledger_file.append(fd, lines, event | {"id": id, "outcome": outcome}, path=self.path)


def until(attempts: Iterable[Attempt], id: str) -> tuple[Attempt, ...]:
    """The attempts up to and with this one."""
    found: list[Attempt] = []
    for attempt in attempts:
        found.append(attempt)
        if attempt.registration.id == id:
            break
    return tuple(found)


def _same(attempts: Iterable[Attempt], candidate: str, baseline: str) -> tuple[Attempt, ...]:
    return tuple(
        a for a in attempts if (a.registration.candidate, a.registration.baseline) == (candidate, baseline)
    )


def _as_json(r: Registration) -> dict[str, Any]:
    return {name: getattr(r, name) for name in Registration.__slots__} | {"margins": dict(r.margins)}


def _attempts(lines: Lines, path: Path) -> tuple[Attempt, ...]:
    found: dict[str, Attempt] = {}
    for line in lines.lines:
        try:
            _take(line, found)
        except (KeyError, TypeError, ValueError) as e:
            raise LedgerError(
                f"{path}: line {line.number} is not a line of this version's ledger ({e}); "
                "use the version of equipoise that wrote it, or restore the file from a copy"
            ) from e
    return tuple(found.values())


def _take(line: Line, found: dict[str, Attempt]) -> None:
    body = dict(line.body)
    if body.pop("schema", None) != SCHEMA_VERSION:
        raise ValueError(f"its schema is not {SCHEMA_VERSION}")
    event, unix_s = body.pop("event", None), _number(body.pop("unix_s", None))
    if event == "registered":
        registration = _registration(body)
        if registration.id in found:
            raise ValueError(f"attempt {registration.id} is registered twice")
        found[registration.id] = Attempt(registration=registration, unix_s=unix_s, sha256=line.sha256)
    elif event == "closed":
        id, outcome = _text(body["id"]), _text(body["outcome"])
        if id not in found:
            raise ValueError(f"it closes attempt {id}, which no line registers")
        a = found[id]
        found[id] = Attempt(
            registration=a.registration,
            unix_s=a.unix_s,
            sha256=a.sha256,
            outcome=outcome,
            closed_unix_s=unix_s,
        )
    else:
        raise ValueError(f"its event is {event!r}")


def _registration(body: Mapping[str, Any]) -> Registration:
    if body.keys() != set(Registration.__slots__):
        raise ValueError(f"its keys are {', '.join(sorted(body))}")
    margins = body["margins"]
    if not isinstance(margins, dict):
        raise TypeError("its margins are no object")
    texts = ("id", "run", "model", "candidate", "baseline", "plan", "plan_hash")
    attempts = body["max_attempts"]
    if type(attempts) is not int or attempts < 1:
        raise ValueError(f"its max_attempts is {attempts!r}")
    return Registration(
        **{name: _text(body[name]) for name in texts},
        alpha=_number(body["alpha"]),
        suite_margin=_number(body["suite_margin"]),
        max_attempts=attempts,
        margins={str(k): _number(v) for k, v in margins.items()},
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
        raise ValueError(f"{str(value)[:40]!r} is not a name")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)
