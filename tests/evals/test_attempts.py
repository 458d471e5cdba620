"""The rule of attempts: a candidate tried until it passes is not signed off."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from equipoise.evals.attempts import (
    Attempts,
    EarlierAttempt,
    apply_attempts,
    attempts_of,
    from_record,
    is_withheld,
    to_record,
)
from equipoise.evals.errors import JournalError
from equipoise.evals.ledger import UNFINISHED, WITHDRAWN, Attempt, Registration, attempt_id
from equipoise.evals.sample_json import canonical_json
from equipoise.evals.verdict import Outcome, RunVerdict, SuiteVerdict


def earlier(outcome: str, alpha: float = 0.05) -> EarlierAttempt:
    return EarlierAttempt(
        run="r", model="m", unix_s=1.0, plan="p", plan_hash="h", outcome=outcome, alpha=alpha
    )


def attempts(*outcomes: str, max_attempts: int = 1, alpha: float = 0.05) -> Attempts:
    return Attempts(
        id="i",
        sha256="s",
        unix_s=2.0,
        candidate="c",
        baseline="b",
        alpha=alpha / max_attempts,
        max_attempts=max_attempts,
        earlier=tuple(map(earlier, outcomes)),
    )


def model(name: str, outcome: Outcome) -> SuiteVerdict:
    nothing = SimpleNamespace()
    return SuiteVerdict(
        model=name,
        outcome=outcome,
        indistinguishable=outcome is Outcome.SIGNED_OFF,
        reasons=("because",),
        tasks=(),
        pooled=nothing,  # type: ignore[arg-type]
        logprobs=(),
        noise_floor=nothing,  # type: ignore[arg-type]
        gross_control=nothing,  # type: ignore[arg-type]
        mild_control=nothing,  # type: ignore[arg-type]
    )


def run(*outcomes: Outcome) -> RunVerdict:
    models = tuple(model(f"m{i}", o) for i, o in enumerate(outcomes))
    order = list(Outcome)
    return RunVerdict(
        outcome=min(outcomes, key=order.index),
        indistinguishable=all(m.indistinguishable for m in models),
        models=models,
    )


COUNTING = ("DEGRADED", "INCONCLUSIVE", UNFINISHED)


@pytest.mark.parametrize("outcome", COUNTING)
def test_every_attempt_that_did_not_sign_off_counts(outcome: str) -> None:
    assert attempts(outcome).number == 2
    assert attempts("SIGNED OFF").number == 1
    assert attempts(outcome, "SIGNED OFF", outcome).number == 3


def test_an_invalid_attempt_tested_nothing_and_does_not_count() -> None:
    now = attempts("INVALID", "INVALID")
    assert (now.number, now.bound, len(now.earlier)) == (1, 0.05, 2)
    assert attempts("INVALID", "DEGRADED").number == 2


def test_the_bound_is_the_sum_of_the_alphas_that_were_spent() -> None:
    assert attempts().bound == 0.05
    assert attempts("DEGRADED", max_attempts=2).bound == pytest.approx(0.05 + 0.025)
    assert attempts(*["DEGRADED"] * 30).bound == 1.0


def test_a_sign_off_beyond_the_attempts_is_inconclusive_with_the_remedy() -> None:
    found = apply_attempts(run(Outcome.SIGNED_OFF), {"m0": attempts("INCONCLUSIVE")})
    assert (found.outcome, found.exit_code, found.indistinguishable) == (Outcome.INCONCLUSIVE, 3, False)
    (only,) = found.models
    assert (only.outcome, only.indistinguishable) == (Outcome.INCONCLUSIVE, False)
    assert only.reasons[0].startswith(
        "attempt 2 of 1 registered: the chance that a bad release is signed off in any of them is up to 10%"
    )
    assert "max_attempts = 3 before the next run" in only.reasons[0]  # this one has been spent
    assert only.reasons[1] == "because"
    assert is_withheld(only, attempts("INCONCLUSIVE"))


@pytest.mark.parametrize("outcome", [Outcome.DEGRADED, Outcome.INCONCLUSIVE, Outcome.INVALID])
def test_any_other_verdict_stays_what_it_is(outcome: Outcome) -> None:
    verdict = run(outcome)
    assert apply_attempts(verdict, {"m0": attempts("DEGRADED", "DEGRADED")}) is verdict


def test_within_the_attempts_or_without_a_ledger_a_sign_off_stays() -> None:
    verdict = run(Outcome.SIGNED_OFF)
    assert apply_attempts(verdict, {"m0": attempts("DEGRADED", max_attempts=2)}) is verdict
    assert apply_attempts(verdict, {"m0": attempts("SIGNED OFF")}) is verdict
    assert apply_attempts(verdict, {}) is verdict


def test_one_model_beyond_its_attempts_holds_the_whole_run_back() -> None:
    verdict = run(Outcome.SIGNED_OFF, Outcome.SIGNED_OFF)
    found = apply_attempts(verdict, {"m0": attempts(), "m1": attempts("DEGRADED")})
    assert [m.outcome for m in found.models] == [Outcome.SIGNED_OFF, Outcome.INCONCLUSIVE]
    assert (found.outcome, found.indistinguishable) == (Outcome.INCONCLUSIVE, False)
    worse = run(Outcome.DEGRADED, Outcome.SIGNED_OFF)
    assert apply_attempts(worse, {"m1": attempts("DEGRADED")}).outcome is Outcome.DEGRADED


def test_a_bad_candidate_tried_ten_times_is_signed_off_with_probability_alpha_at_most() -> None:
    """Against 1 - .95^10 = .40 without the rule; each attempt passes with probability alpha by itself."""
    rng = np.random.default_rng(1)
    passes = 0
    naive = 0
    for _ in range(4_000):
        history: list[str] = []
        for u in rng.random(10):
            now = attempts(*history, max_attempts=2)
            verdict = run(Outcome.SIGNED_OFF if u < now.alpha else Outcome.INCONCLUSIVE)
            history.append(apply_attempts(verdict, {"m0": now}).outcome.value)
        passes += "SIGNED OFF" in history
        naive += bool((rng.random(10) < 0.05).any())
    assert passes / 4_000 <= 0.05 + 3 * (0.05 * 0.95 / 4_000) ** 0.5
    assert passes > 0
    assert naive / 4_000 == pytest.approx(1 - 0.95**10, abs=0.03)


def test_what_the_journal_keeps_gives_the_same_attempts_again() -> None:
    known = attempts("DEGRADED", "SIGNED OFF", max_attempts=3)
    again = from_record(json.loads(canonical_json(to_record(known))), source="j")
    assert again == known


@pytest.mark.parametrize("damage", [{"alpha": "x"}, {"max_attempts": None}, {"earlier": [{}]}, {"more": 1}])
def test_a_damaged_record_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(JournalError, match="j: the record of earlier attempts cannot be read"):
        from_record(to_record(attempts("DEGRADED")) | damage, source="j")
    with pytest.raises(JournalError):
        from_record(None, source="j")  # type: ignore[arg-type]


def entry(run_name: str, outcome: str, *, created: float, model_name: str = "m") -> Attempt:
    return Attempt(
        registration=Registration(
            id=attempt_id(plan_hash="h", created_unix_s=created, model=model_name),
            run=run_name,
            model=model_name,
            candidate="c",
            baseline="b",
            plan="p",
            plan_hash="h",
            alpha=0.05,
            max_attempts=1,
            margins={},
            suite_margin=0.02,
        ),
        unix_s=created,
        sha256=f"{run_name}{model_name}",
        outcome=outcome,
    )


def test_withdrawn_attempts_and_other_models_of_the_same_run_are_not_earlier_ones() -> None:
    own = entry("now", UNFINISHED, created=9.0, model_name="m2")
    same = [
        entry("a", WITHDRAWN, created=1.0),
        entry("b", "DEGRADED", created=2.0),
        entry("now", UNFINISHED, created=9.0, model_name="m1"),
        own,
    ]
    found = attempts_of(same)
    assert [a.run for a in found.earlier] == ["b"]
    assert (found.number, found.sha256) == (2, own.sha256)


def test_the_bound_never_falls_and_the_number_never_skips() -> None:
    for outcomes in itertools.product((*COUNTING, "SIGNED OFF"), repeat=3):
        one, more = attempts(*outcomes[:2]), attempts(*outcomes)
        assert more.bound >= one.bound
        assert more.number - one.number in (0, 1)
        assert replace(more, max_attempts=more.number).may_sign_off
