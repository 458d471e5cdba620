"""What a plan would notice, against the exact power of a single task and against its own simulation."""

from dataclasses import replace
from math import isnan

import numpy as np
import pytest

from equipoise.evals.statistics.detectable import smallest_detectable_loss
from equipoise.evals.statistics.plan_detectable import plan_detectable
from equipoise.evals.statistics.plan_power import TaskDesign, plan_power
from equipoise.evals.statistics.power import rejection_probability

TASK = TaskDesign(name="t", n=1000, margin=0.05, p_d=0.06, loss=0.0, critical=True)


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def test_one_task_is_alarmed_at_the_loss_that_exact_power_gives() -> None:
    found = plan_detectable([TASK], 0.05, rng=rng())
    assert found.alarm == pytest.approx(smallest_detectable_loss(1000, 0.06).loss, rel=0.05)


def test_one_task_is_refused_at_the_loss_that_exact_power_gives() -> None:
    found = plan_detectable([TASK], 0.05, rng=rng(), allow_detected=True)
    for probability, loss in found.refused:
        passes = rejection_probability(1000, 0.05, max(0.06, loss), loss)
        assert passes == pytest.approx(1 - probability, abs=0.02)


def test_the_same_loss_in_all_tasks_is_found_earlier_than_by_one_of_them() -> None:
    tasks = [replace(TASK, name=f"t{i}") for i in range(6)]
    assert (
        plan_detectable(tasks, 0.05, rng=rng()).alarm < 0.6 * plan_detectable([TASK], 0.05, rng=rng()).alarm
    )


def test_a_plan_that_forbids_detected_losses_refuses_smaller_ones() -> None:
    tasks = [replace(TASK, name=f"t{i}") for i in range(3)]
    strict, lenient = (
        plan_detectable(tasks, 0.05, rng=rng(), allow_detected=a).refused for a in (False, True)
    )
    assert strict[0][1] < lenient[0][1]
    assert lenient[0][1] < lenient[1][1]  # 80% and 95%
    at = [replace(t, loss=lenient[0][1]) for t in tasks]
    assert 1 - plan_power(at, 0.05, rng=rng()).joint_noninferior == pytest.approx(0.8, abs=0.03)


def test_repeats_make_a_noisy_plan_more_sensitive() -> None:
    noisy = replace(TASK, n=200, p_d=0.2, noise_p_d=0.18)
    once, often = (plan_detectable([replace(noisy, repeats=k)], 0.05, rng=rng()).alarm for k in (1, 8))
    assert often < 0.6 * once


def test_a_plan_too_small_for_any_alarm_says_so() -> None:
    tiny = plan_detectable([replace(TASK, n=5)], 0.05, rng=rng())
    assert isnan(tiny.alarm)
    assert tiny.refused[0] == (0.8, 0.0)  # it cannot sign off even without a loss
