"""Small losses: what hides from every single task is looked for in all of them together."""

from dataclasses import replace

import numpy as np
import pytest
from paired_arms import evidence_of, paired_table, task_tables

from equipoise.evals.evidence import Exploration
from equipoise.evals.statistics.sign_flip import sign_flip_test
from equipoise.evals.types import ArmRole, PairedTable


def explored(*tables: PairedTable) -> Exploration:
    evidence = evidence_of(*(task_tables(t.task, {ArmRole.CANDIDATE: t}) for t in tables))
    assert evidence.exploration is not None
    return evidence.exploration


def test_every_arm_has_its_endpoints() -> None:
    found = explored(paired_table("one", 4, 2, candidate_truncated=3), paired_table("two", 1, 1))
    assert set(found.endpoints) == set(ArmRole) - {ArmRole.BASELINE}
    one, two = found.endpoints[ArmRole.CANDIDATE]
    assert (one.task, one.paired[0].candidate, two.paired[0].candidate) == ("one", 3, 0)


def test_a_loss_too_small_for_each_task_shows_over_all_of_them() -> None:
    found = explored(*(paired_table(f"t{i}", 5, 1) for i in range(8)))
    assert found.stratified is not None
    assert (found.stratified.strata, found.stratified.strata_losing) == (8, 8)
    assert found.stratified.two_sided_p < 0.001
    single = explored(paired_table("t", 5, 1)).stratified
    assert single is not None
    assert single.two_sided_p == pytest.approx(14 / 64)  # McNemar of 5 against 1


def test_tasks_are_strata_by_length_of_prompt() -> None:
    prompts = np.where(np.arange(400) < 100, 50.0, 500.0)
    found = explored(replace(paired_table("one", 5, 1), prompt_tokens=prompts), paired_table("two", 3, 2))
    assert found.stratified is not None
    # one: two lengths; two: none known, a stratum of its own
    assert (found.stratified.strata, found.stratified.n) == (3, 800)
    assert (found.stratified.lost, found.stratified.gained) == (8, 3)


def test_a_loss_in_long_prompts_is_a_trend() -> None:
    rising = np.arange(400.0)[::-1] + 10.0  # the lost items, first in the table, are the longest
    found = explored(replace(paired_table("one", 12, 0), prompt_tokens=rising))
    assert found.trend is not None
    assert found.trend.slope < 0
    assert found.trend.growing_loss_p < 0.001
    even = explored(replace(paired_table("one", 12, 0), prompt_tokens=rising[::-1].copy())).trend
    assert even is not None
    assert even.growing_loss_p > 0.999


def test_items_of_unknown_length_leave_the_trend_and_are_counted() -> None:
    prompts = np.arange(400.0) + 1.0
    prompts[:30] = np.nan
    found = explored(replace(paired_table("one", 4, 2), prompt_tokens=prompts), paired_table("two", 1, 1))
    assert found.trend is not None
    assert (found.trend.n, found.trend_unknown) == (370, 430)
    assert explored(paired_table("two", 1, 1)).trend is None


def test_clusters_of_different_tasks_are_not_one() -> None:
    clusters = tuple(f"c{i // 4}" for i in range(400))
    one = replace(paired_table("one", 12, 0), cluster_ids=clusters)
    found = explored(one, replace(one, task="two"))
    assert found.stratified is not None
    assert found.stratified.units == 200
    difference = np.tile(one.candidate[:, 0] - one.baseline[:, 0], 2)
    apart = np.arange(800) // 4
    expected = sign_flip_test(difference, rng=np.random.default_rng(1), clusters=apart)
    assert found.stratified.two_sided_p == pytest.approx(expected.two_sided_p)


def test_nothing_paired_is_nothing_to_look_at() -> None:
    found = explored(paired_table("one", 0, 0, n=0, neither=9))
    assert found.stratified is None
    assert found.trend is None
    assert found.subgroups.rows == ()
