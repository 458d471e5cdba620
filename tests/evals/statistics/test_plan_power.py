"""Joint power of a plan: the embedded plan's numbers, and cases that are known exactly."""

from math import prod, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from equipoise.evals.statistics.plan_power import PlanPower, TaskDesign, plan_power
from equipoise.evals.statistics.power import rejection_probability


def embedded_plan(loss: float, seed: int = 1) -> PlanPower:
    tasks = [
        TaskDesign(name=f"t{i}", n=400 if i < 3 else 200, margin=0.05, p_d=0.045, loss=loss, critical=i < 3)
        for i in range(6)
    ]
    return plan_power(tasks, 0.025, rng=np.random.default_rng(seed))


@pytest.mark.parametrize(("loss", "normal_power", "exact_power"), [(0.005, 0.98, 0.966), (0.01, 0.88, 0.82)])
def test_pooled_power_of_the_embedded_plan_is_below_its_normal_approximation(
    loss: float, normal_power: float, exact_power: float
) -> None:
    se = sqrt(3 * 0.045 / 400 + 3 * 0.045 / 200) / 6
    assert norm.cdf((0.025 - loss) / se - norm.ppf(0.95)) == pytest.approx(normal_power, abs=6e-3)
    assert embedded_plan(loss).pooled_noninferior == pytest.approx(exact_power, abs=0.01)


def test_joint_power_is_ordered_as_its_conditions_are() -> None:
    power = embedded_plan(0.005)
    assert power.joint_equivalent <= power.joint_noninferior
    assert power.joint_without_detection <= power.joint_noninferior <= power.pooled_noninferior
    assert power.joint_noninferior == pytest.approx(0.936, abs=0.01)
    assert power.noise_floor_passes == 1.0  # a server that answers alike every time


def test_without_a_pooled_bottleneck_joint_power_is_the_product_of_the_tasks() -> None:
    tasks = [
        TaskDesign(name=f"t{i}", n=150, margin=0.05, p_d=0.1, loss=0.01, critical=True) for i in range(4)
    ]
    power = plan_power(tasks, 0.5, rng=np.random.default_rng(3))
    exact = rejection_probability(150, 0.05, 0.1, 0.01)
    assert power.task_noninferior == pytest.approx((exact,) * 4)
    assert power.joint_noninferior == pytest.approx(prod(power.task_noninferior), abs=0.015)


def test_size_of_the_pooled_mean_at_its_margin_is_at_most_alpha() -> None:
    tasks = [
        TaskDesign(name=f"t{i}", n=400, margin=0.2, p_d=0.05, loss=0.02, critical=False) for i in range(6)
    ]
    power = plan_power(tasks, 0.02, rng=np.random.default_rng(4))
    assert 0.005 < power.pooled_noninferior <= 0.05


def test_a_noisy_baseline_fails_its_own_margin() -> None:
    tasks = [TaskDesign(name="t", n=100, margin=0.02, p_d=0.1, loss=0.0, critical=True, noise_p_d=0.1)]
    assert plan_power(tasks, 0.02, rng=np.random.default_rng(5)).noise_floor_passes < 0.3


def test_the_same_seed_gives_the_same_power() -> None:
    assert embedded_plan(0.01, seed=9) == embedded_plan(0.01, seed=9)


def test_a_loss_without_discordant_pairs_is_refused_by_task() -> None:
    task = TaskDesign(name="copy", n=100, margin=0.05, p_d=0.01, loss=0.02, critical=True)
    with pytest.raises(ValueError, match="copy"):
        plan_power([task], 0.05, rng=np.random.default_rng(1))


def test_repeats_raise_the_power_of_a_noisy_task_to_what_its_items_allow() -> None:
    def power(repeats: int, noise_p_d: float) -> float:
        task = TaskDesign(
            name="t",
            n=300,
            margin=0.03,
            p_d=0.12,
            loss=0.0,
            critical=True,
            noise_p_d=noise_p_d,
            repeats=repeats,
        )
        return plan_power([task], 0.03, rng=np.random.default_rng(6)).task_noninferior[0]

    once, twice, often = power(1, 0.1), power(2, 0.1), power(32, 0.1)
    assert once < twice < often
    se = sqrt((0.02 + 0.1 / 32) / 300)
    assert often == pytest.approx(norm.cdf(0.03 / se - norm.ppf(0.95)), abs=0.04)
    assert power(32, 0.0) == pytest.approx(power(1, 0.0), abs=0.03)  # answers that never vary


def test_a_plan_may_mix_single_and_repeated_tasks() -> None:
    single = TaskDesign(name="a", n=400, margin=0.05, p_d=0.05, loss=0.01, critical=True)
    repeated = TaskDesign(
        name="b", n=150, margin=0.05, p_d=0.2, loss=0.01, critical=True, noise_p_d=0.15, repeats=8
    )
    power = plan_power([single, repeated], 0.5, rng=np.random.default_rng(6))
    assert power.joint_noninferior == pytest.approx(prod(power.task_noninferior), abs=0.015)
    assert power.joint_without_detection <= power.joint_noninferior
