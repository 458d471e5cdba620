"""Which layers to keep in BF16: against brute force over all sets, and measured, not only predicted."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.quant.calibration.mixed import best_sets, mixed_plan

NATS = st.floats(0.0, 1.0)
LAYERS = st.lists(st.tuples(NATS, st.integers(1, 5)), min_size=1, max_size=7)


def additive(nats: list[float]):
    return lambda kept: math.fsum(x for i, x in enumerate(nats) if i not in kept)


@given(LAYERS, st.floats(0.001, 3.0))
def test_the_plan_is_the_smallest_of_all_sets_when_losses_add_up(layers: list, budget: float) -> None:
    nats, extra = [x for x, _ in layers], [size for _, size in layers]
    measure = additive(nats)
    plan = mixed_plan(
        nats,
        [1] * len(nats),
        [1 + size for size in extra],
        budget_nats=budget,
        measure=measure,
        all_quantized_nats=measure(frozenset()),
    )
    everything = range(len(nats))
    sizes = [
        sum(extra[i] for i in kept)
        for n in range(len(nats) + 1)
        for kept in itertools.combinations(everything, n)
        if measure(frozenset(kept)) <= budget
    ]
    assert plan.measured_nats <= budget
    assert plan.bytes_per_token - plan.bytes_all_quantized == min(sizes)


@given(LAYERS)
def test_candidate_sets_rise_in_bytes_and_in_what_they_remove(layers: list) -> None:
    nats, extra = [x for x, _ in layers], [size for _, size in layers]
    sets = best_sets(nats, extra)
    sizes = [sum(extra[i] for i in kept) for kept in sets]
    assert sets[0] == frozenset() and sets[-1] == frozenset(range(len(nats)))
    assert sizes == sorted(set(sizes))


def test_a_plan_is_measured_where_layers_do_not_add_up() -> None:
    # Together the two quiet layers are ten times as bad as their sum says.
    nats = [0.5, 0.1, 0.1]

    def measure(kept: frozenset[int]) -> float:
        quantized = {0, 1, 2} - kept
        return sum(nats[i] for i in quantized) + (1.8 if {1, 2} <= quantized else 0.0)

    plan = mixed_plan(
        nats, [10] * 3, [20] * 3, budget_nats=0.25, measure=measure, all_quantized_nats=measure(frozenset())
    )
    assert plan.bf16_layers in {(0, 1), (0, 2)}  # the sum of 1 and 2 alone, .2, would have promised (0,)
    assert plan.measured_nats == pytest.approx(0.1)
    assert (plan.bytes_per_token, plan.bytes_all_quantized, plan.bytes_all_bf16) == (50, 30, 60)


def test_no_layer_is_kept_where_the_whole_cache_is_within_the_budget() -> None:
    def never(kept: frozenset[int]) -> float:
        raise AssertionError("nothing is left to measure")

    plan = mixed_plan([0.1, 0.2], [1, 1], [2, 2], budget_nats=0.3, measure=never, all_quantized_nats=0.29)
    assert plan.bf16_layers == () and plan.measured_nats == 0.29 and plan.measurements == 0


def test_a_hundred_layers_take_few_measurements() -> None:
    nats = [1.0 / (i + 1) for i in range(100)]
    plan = mixed_plan(
        nats,
        [576] * 100,
        [1152] * 100,
        budget_nats=1.0,
        measure=additive(nats),
        all_quantized_nats=sum(nats),
    )
    assert plan.bf16_layers == tuple(range(len(plan.bf16_layers)))  # the most sensitive ones
    assert plan.measured_nats <= 1.0 < plan.measured_nats + nats[len(plan.bf16_layers) - 1]
    assert plan.measurements <= 7


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0 nats"):
        mixed_plan([0.1], [1], [2], budget_nats=0.0, measure=lambda kept: 0.0, all_quantized_nats=0.1)
