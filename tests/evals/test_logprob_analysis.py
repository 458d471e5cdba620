"""The divergence of two arms as evidence, as a gate where the plan asks for one, and in the report."""

import math
from dataclasses import replace

import numpy as np
import pytest
from paired_arms import logprob_table

from equipoise.evals.checks import logprob_verdict
from equipoise.evals.evidence import LogprobEvidence
from equipoise.evals.experiment.logprob_rows import logprob_row
from equipoise.evals.logprob_analysis import LogprobTables, analyse_logprobs
from equipoise.evals.pairing import LogprobTable
from equipoise.evals.statistics.kl import full_kl
from equipoise.evals.top_lists import TopLists
from equipoise.evals.types import ArmRole
from equipoise.evals.verdict import GateStatus, LogprobVerdict

VOCABULARY = 30


def distributions(change: float, tokens: int = 800) -> tuple[np.ndarray, np.ndarray]:
    gen = np.random.default_rng(8)
    logits = gen.normal(0.0, 4.0, (tokens, VOCABULARY))
    pair = logits, logits + change * gen.normal(0.0, 1.0, logits.shape)
    return tuple(x - np.logaddexp.reduce(x, axis=1, keepdims=True) for x in pair)  # type: ignore[return-value]


def with_lists(change: float, k: int, **table: object) -> LogprobTable:
    found = logprob_table(0.002, **table)  # type: ignore[arg-type]
    ids, logprobs = [], []
    for p in distributions(change):
        ids.append(np.argsort(-p, axis=1)[:, :k].astype(np.int32))
        logprobs.append(np.take_along_axis(p, ids[-1], axis=1))
    lists = TopLists(
        baseline_ids=ids[0],
        baseline_logprobs=logprobs[0],
        candidate_ids=ids[1],
        candidate_logprobs=logprobs[1],
        vocabulary_size=VOCABULARY,
    )
    return replace(found, top_lists=lists)


def evidence(table: LogprobTable, **limits: float) -> LogprobEvidence:
    repeat = with_lists(0.0, 8, role=ArmRole.BASELINE_REPEAT)
    tables = {ArmRole.CANDIDATE: table, ArmRole.BASELINE_REPEAT: repeat}
    task = LogprobTables(task="logprob", margin_nats=0.01, tables=tables, **limits)
    return analyse_logprobs(task, 0.05, np.random.default_rng(1))


def verdict(found: LogprobEvidence) -> LogprobVerdict:
    return logprob_verdict(found, critical=True, noise_factor=3.0, min_cache_read=0.9)


TRUTH = float(full_kl(*distributions(0.1)).lower.mean())


def test_kl_is_evidence_with_its_truncated_mass_and_top1_agreement_is_of_first_choices() -> None:
    found = evidence(with_lists(0.1, 8))
    kl = found.divergences[ArmRole.CANDIDATE]
    assert 0.5 * TRUTH < kl.kl_nats < TRUTH
    assert kl.lower < kl.kl_nats < kl.upper
    assert 0.0 < kl.truncated_baseline.mean < kl.truncated_baseline.max < 0.3
    assert found.divergences[ArmRole.BASELINE_REPEAT].kl_nats == 0.0
    p, q = distributions(0.1)
    agreement = float(np.mean(p.argmax(axis=1) == q.argmax(axis=1)))
    assert found.comparisons[ArmRole.CANDIDATE].top1_agreement == agreement < 1.0


def test_without_lists_the_rest_stands_and_kl_is_undefined_with_a_reason() -> None:
    found = evidence(logprob_table(0.002))
    assert found.divergences.keys() == {ArmRole.BASELINE_REPEAT}
    assert "not recorded" in found.kl_undefined
    assert verdict(found).status is GateStatus.PASSED
    row = logprob_row(found, verdict(found))
    assert row.kl is None
    assert "not recorded" in row.undefined["kl"]


def test_a_list_that_is_no_distribution_does_not_stop_the_report() -> None:
    table = with_lists(0.1, 8)
    assert table.top_lists is not None
    table.top_lists.candidate_logprobs[17, 0] = 0.5
    found = evidence(table, max_kl_nats=1.0)
    assert "B against A1: token 17: candidate has probabilities that sum to" in found.kl_undefined
    assert ArmRole.CANDIDATE in found.comparisons
    assert verdict(found).status is GateStatus.FAILED  # missing evidence never passes
    assert "token 17" in verdict(found).reason


@pytest.mark.parametrize(
    ("k", "limits", "status", "exceeded", "said"),
    [
        (8, {}, GateStatus.PASSED, False, "below 0.01"),
        (8, {"max_kl_nats": 10.0 * TRUTH}, GateStatus.FAILED, False, "from below only"),
        (8, {"max_kl_nats": 1.0, "max_drop_nats": 5.0}, GateStatus.PASSED, False, "KL is at most"),
        (8, {"max_kl_nats": TRUTH, "max_drop_nats": 5.0}, GateStatus.FAILED, False, "KL may be"),
        (8, {"max_kl_nats": TRUTH / 3, "max_drop_nats": 5.0}, GateStatus.FAILED, True, "KL may be"),
        (VOCABULARY, {"max_kl_nats": 1.5 * TRUTH}, GateStatus.PASSED, False, "KL is at most"),
        (VOCABULARY, {"max_kl_nats": TRUTH}, GateStatus.FAILED, False, "KL may be"),
    ],
)
def test_kl_gates_only_where_the_plan_says_so_and_by_its_ceiling(
    k: int, limits: dict[str, float], status: GateStatus, exceeded: bool, said: str
) -> None:
    found = verdict(evidence(with_lists(0.1, k), **limits))
    assert (found.status, found.exceeded) == (status, exceeded)
    assert said in found.reason


def test_a_small_kl_does_not_rescue_a_failed_likelihood() -> None:
    table = replace(with_lists(0.0, VOCABULARY), candidate=logprob_table(0.05).candidate)
    found = verdict(evidence(table, max_kl_nats=0.01))
    assert (found.status, found.exceeded) == (GateStatus.FAILED, True)
    assert "KL is at most 0.00000" in found.reason


def test_tokens_without_a_list_keep_a_kl_gate_shut() -> None:
    table = with_lists(0.1, VOCABULARY)
    assert table.top_lists is not None
    table.top_lists.baseline_ids[3] = -1
    found = evidence(table, max_kl_nats=1.0)
    assert found.divergences[ArmRole.CANDIDATE].tokens_without_lists == 1
    assert verdict(found).status is GateStatus.FAILED
    assert "1 of 800 tokens have no KL" in verdict(found).reason


def test_the_report_row_says_what_bounds_what() -> None:
    found = evidence(with_lists(0.1, 8), max_drop_nats=5.0, max_kl_nats=1.0)
    row = logprob_row(found, verdict(found))
    kl = found.divergences[ArmRole.CANDIDATE]
    assert row.kl is not None
    assert (row.kl.kl_nats, row.kl.ceiling_nats, row.kl.gate_nats) == (kl.kl_nats, kl.ceiling_upper, 1.0)
    assert (row.kl.complete, row.kl.max_drop_nats, row.kl.noise_nats) == (False, 5.0, 0.0)
    assert row.kl.truncated_candidate_max == kl.truncated_candidate.max
    (bucket,) = row.buckets
    assert bucket.kl_nats == pytest.approx(kl.kl_nats)
    assert bucket.kl_interval is not None
    assert bucket.interval is not None
    assert math.isclose(bucket.interval.hi or 0.0, found.comparisons[ArmRole.CANDIDATE].buckets[0].upper)
    open_ended = logprob_row(evidence(with_lists(0.1, 8)), verdict(found))
    assert open_ended.kl is not None
    assert open_ended.kl.ceiling_nats is None
    assert "from below only" in open_ended.kl.undefined["ceiling_nats"]
