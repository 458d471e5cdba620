"""Which layers to keep in BF16 so that the whole cache stays within a KL budget at the least memory.

Pure. The loss of layers is taken as additive to find candidates (their quantization errors are
independent and KL is quadratic in them), then the candidate plans are measured on the model, since
only that is evidence.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["MixedPlan", "mixed_plan"]

Measure = Callable[[frozenset[int]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """``bf16_layers`` keep an unquantized cache. Bytes are those of one token in all layers."""

    kl_budget_nats: float
    bf16_layers: tuple[int, ...]
    measured_nats: float
    predicted_nats: float  # the sum of the quantized layers' own divergences
    bytes_per_token: int
    bytes_all_quantized: int
    bytes_all_bf16: int
    measurements: int


def mixed_plan(
    layer_nats: Sequence[float],
    quantized_bytes: Sequence[int],
    bf16_bytes: Sequence[int],
    *,
    budget_nats: float,
    measure: Measure,
    all_quantized_nats: float,
) -> MixedPlan:
    """The smallest cache whose measured divergence is within the budget.

    Parameters
    ----------
    layer_nats : sequence of float
        Divergence with that layer's cache alone quantized, >= 0.
    quantized_bytes, bf16_bytes : sequence of int
        Bytes of one token in each layer.
    budget_nats : float
        Above 0; the divergence with every layer in BF16 is 0, so there is always a plan.
    measure : callable
        Divergence with these layers in BF16 and the others quantized.
    all_quantized_nats : float
        ``measure`` of no layer, already known.

    Raises
    ------
    ValueError
        A budget that is not positive, or lists of different lengths.
    """
    if not budget_nats > 0.0:
        raise ValueError(f"a KL budget is above 0 nats, not {budget_nats}")
    extra = [b - q for b, q in zip(bf16_bytes, quantized_bytes, strict=True)]
    sets = best_sets(layer_nats, extra)
    found = {frozenset[int](): all_quantized_nats, frozenset(range(len(extra))): 0.0}

    def within(i: int) -> bool:
        if sets[i] not in found:
            found[sets[i]] = measure(sets[i])
        return found[sets[i]] <= budget_nats

    # Bisection over plans of rising size, the last of which is within the budget.
    low, high = -1, len(sets) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if within(middle) else (middle, high)
    chosen = sets[high]
    within(high)
    base = sum(quantized_bytes)
    return MixedPlan(
        kl_budget_nats=budget_nats,
        bf16_layers=tuple(sorted(chosen)),
        measured_nats=found[chosen],
        predicted_nats=math.fsum(x for i, x in enumerate(layer_nats) if i not in chosen),
        bytes_per_token=base + sum(extra[i] for i in chosen),
        bytes_all_quantized=base,
        bytes_all_bf16=sum(bf16_bytes),
        measurements=len(found) - 2,
    )


def best_sets(layer_nats: Sequence[float], extra_bytes: Sequence[int]) -> list[frozenset[int]]:
    """For each amount of extra bytes that helps, the layers whose BF16 removes the most divergence.

    A 0/1 knapsack, exact: from no layer to all of them, bytes and divergence removed both rising.
    """
    unit = math.gcd(*extra_bytes) or 1
    sizes = [size // unit for size in extra_bytes]
    total = sum(sizes)
    # best[u]: (divergence removed, layers) with exactly u units; None where no set has that size.
    best: list[tuple[float, frozenset[int]] | None] = [(0.0, frozenset())] + [None] * total
    for i, (size, nats) in enumerate(zip(sizes, layer_nats, strict=True)):
        for u in range(total, size - 1, -1):
            before = best[u - size]
            if before is not None:
                now = best[u]
                if now is None or before[0] + nats > now[0]:
                    best[u] = (before[0] + nats, before[1] | {i})
    everything = frozenset(range(len(sizes)))
    frontier: list[frozenset[int]] = []
    removed = -1.0
    for entry in best:
        if entry is not None and entry[0] > removed:
            removed = entry[0]
            frontier.append(entry[1])
    if frontier[-1] != everything:
        frontier.append(everything)  # layers without divergence cost nothing to keep, and remove nothing
    return frontier
