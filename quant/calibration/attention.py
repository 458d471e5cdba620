"""Second pass: what stored values do to the output of each layer's attention.

The model runs with an unquantized cache. Before each layer's result is passed on, its attention is
computed again from the same input for every candidate cache, and the outputs (before the output
projection) are compared. Nothing of a layer outlives it.
"""

# mypy: allow-untyped-decorators

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from equipoise.kernels.formats import E4M3FN, fake_quantize_float8
from equipoise.quant.calibration.cache import Parts, Store, StoringCache, bf16_stores
from equipoise.quant.calibration.choose import float32
from equipoise.quant.calibration.fidelity import Fidelity, compare_stored
from equipoise.quant.calibration.model import CalibrationModel
from equipoise.quant.calibration.observe import Advance
from equipoise.quant.calibration.prompts import TokenSequences

__all__ = ["attention_errors", "attention_scales"]

# Of amax / 448: up to 8 times smaller (clips), and larger to shift values between E4M3's steps.
_RATIOS = tuple(2.0 ** (step / 4) for step in range(-12, 4))

Candidates = Sequence[Sequence[Store]]  # [layer][candidate]


@torch.no_grad()
def attention_errors(
    model: CalibrationModel,
    data: TokenSequences,
    candidates: Candidates,
    *,
    groups: int = 1,
    advance: Advance = lambda tokens: None,
) -> list[list[list[Fidelity]]]:
    """Of the attention output with each candidate cache against the unquantized one.

    Parameters
    ----------
    candidates : [layer][candidate]
        Each layer may have its own number.
    groups : int
        1, or the KV heads: the output of the query heads that share one is compared apart.

    Returns
    -------
    list
        [layer][candidate][group], summed over all tokens; ``relative_error`` is the relative L2.
    """
    found = [[[Fidelity()] * groups for _ in layer] for layer in candidates]
    for sequence in data.sequences:
        cache = StoringCache(model, bf16_stores(model))
        with ExitStack() as stack:
            for i, module in enumerate(model.attention):
                stack.enter_context(_comparing(module, cache, candidates[i], found[i], i))
            ids = torch.tensor([list(sequence)], device=model.device)
            model.causal_lm.model(input_ids=ids, past_key_values=cache, use_cache=True)
        advance(len(sequence))
    return found


@contextmanager
def _comparing(
    module: nn.Module,
    cache: StoringCache,
    candidates: Sequence[Store],
    sums: list[list[Fidelity]],
    layer: int,
) -> Iterator[None]:
    outputs: list[torch.Tensor] = []
    busy = False

    def keep(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        outputs.append(args[0])

    def compare(_: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        nonlocal busy
        if busy:
            return
        busy = True
        baseline, exact = outputs.pop(), cache.stores[layer]
        try:
            for j, store in enumerate(candidates):
                cache.stores[layer] = store
                module.forward(*args, **kwargs)
                groups = len(sums[j])
                pairs = zip(baseline.chunk(groups, -1), outputs.pop().chunk(groups, -1), strict=True)
                sums[j] = [total + compare_stored(a, b) for total, (a, b) in zip(sums[j], pairs, strict=True)]
        finally:
            cache.stores[layer] = exact
            busy = False

    hooks = [
        module.o_proj.register_forward_pre_hook(keep),
        module.register_forward_hook(compare, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def attention_scales(
    model: CalibrationModel,
    data: TokenSequences,
    amax: Sequence[Sequence[Sequence[float]]],
    *,
    advance: Advance = lambda tokens: None,
) -> list[tuple[list[float], list[float]]]:
    """Scales of K and V with the least error of the attention output; K with V unquantized and vice versa.

    Parameters
    ----------
    amax : [layer][part][group]
        Largest magnitudes; one group (a scale a tensor) or one for each KV head.

    Returns
    -------
    list
        [layer] (scales of K, of V), as many as groups. 1.0 is among the candidates and wins ties.
    """
    tables = [[_candidate_scales(part) for part in layer] for layer in amax]
    exact = bf16_stores(model)[0]
    stores = [
        [_one_part(exact, part, scales) for part in (0, 1) for scales in tables_of_layer[part]]
        for tables_of_layer in tables
    ]
    groups = len(amax[0][0])
    errors = attention_errors(model, data, stores, groups=groups, advance=advance)
    chosen = []
    for tables_of_layer, found in zip(tables, errors, strict=True):
        n = len(tables_of_layer[0])
        chosen.append(
            (
                _least(tables_of_layer[0], found[:n], groups),
                _least(tables_of_layer[1], found[n:], groups),
            )
        )
    return chosen


def _candidate_scales(amax: Sequence[float]) -> list[list[float]]:
    """[candidate][group]; the first is 1.0."""
    bases = [a / E4M3FN.max_finite if a > 0.0 else 1.0 for a in amax]
    return [[1.0] * len(amax), *([float32(base * ratio) for base in bases] for ratio in _RATIOS)]


def _one_part(exact: Store, part: int, scales: Sequence[float]) -> Store:
    column = torch.tensor(scales, dtype=torch.float32)[:, None]  # [groups, 1]

    def store(first: torch.Tensor, second: torch.Tensor) -> Parts:
        read = list(exact(first, second))
        scale = column.to(read[part].device) if len(column) > 1 else float(column)
        read[part] = fake_quantize_float8(read[part], E4M3FN, scale=scale)
        return read[0], read[1]

    return store


def _least(
    scales: Sequence[Sequence[float]], errors: Sequence[Sequence[Fidelity]], groups: int
) -> list[float]:
    """For each group, the scale of the candidate with the least noise; the first of equals."""

    def noise(group: int) -> list[float]:
        return [candidate[group].noise for candidate in errors]

    return [scales[noise(group).index(min(noise(group)))][group] for group in range(groups)]
