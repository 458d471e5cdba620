"""A transformers cache that hands back what a server's cache would.

Attention of every family passes what it caches through ``past_key_values.update`` and computes with
what comes back: K after RoPE and V (GQA), the latent after its norm and the rotated key (MLA). So
one object sees exactly the cached values and can replace them, whatever the architecture.

Each token reads every token, itself included, from the cache, as decoding on a server does.
"""

# mypy: allow-subclassing-any, allow-untyped-decorators

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from equipoise.quant.calibration.model import CalibrationModel
from equipoise.quant.layouts import Bf16, KVLayout
from equipoise.quant.sglang.torchvision_ops import declare_torchvision_ops

declare_torchvision_ops()  # before transformers, which imports torchvision

from transformers import DynamicCache  # noqa: E402

__all__ = ["Parts", "Store", "StoringCache", "bf16_stores", "last_hidden_states", "store_of"]

Parts: TypeAlias = tuple[torch.Tensor, torch.Tensor]
# [tokens, *shape.first], [tokens, *shape.second] -> what is read back, float32 or the same dtype.
Store: TypeAlias = Callable[[torch.Tensor, torch.Tensor], Parts]


def store_of(layout: KVLayout) -> Store:
    """Write to a layout and read from it."""
    return lambda first, second: layout.dequantize(layout.quantize(_float32(first), _float32(second)))


def bf16_stores(model: CalibrationModel) -> list[Store]:
    """The baseline: an unquantized cache in every layer."""
    return [store_of(Bf16(model.shape))] * model.geometry.num_layers


def _float32(x: torch.Tensor) -> torch.Tensor:
    # A server's projections are BF16 before they are quantized.
    return x.to(torch.bfloat16).to(torch.float32)


class StoringCache(DynamicCache):
    """Stores one sequence, and keeps nothing: ``stores[layer]`` says what is read back."""

    def __init__(self, model: CalibrationModel, stores: Sequence[Store]) -> None:
        super().__init__(config=model.causal_lm.config)
        self.latent = model.shape.attention == "mla"
        self.stores = list(stores)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> Parts:
        """[1, heads, tokens, dim] twice, in and out; MLA has one head."""
        # Number formats are computed on the CPU, wherever the model runs.
        first, second = self._tokens(key_states).cpu(), self._tokens(value_states).cpu()
        read = self.stores[layer_idx](first, second)
        back = [part.unsqueeze(1) if self.latent else part for part in read]
        key, value = (part.transpose(0, 1).unsqueeze(0).to(key_states) for part in back)
        return key, value

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """The keys of a DSA indexer, unchanged: its cache is FP8 in every variant."""
        return indexer_key_states

    def _tokens(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x[0].transpose(0, 1)
        return tokens[:, 0] if self.latent else tokens


@torch.no_grad()
def last_hidden_states(
    model: CalibrationModel, sequence: Sequence[int], stores: Sequence[Store]
) -> torch.Tensor:
    """Run one sequence through the model; [tokens, hidden] before the language-model head."""
    ids = torch.tensor([list(sequence)], device=model.device)
    cache = StoringCache(model, stores)
    output = model.causal_lm.model(input_ids=ids, past_key_values=cache, use_cache=True)
    return output.last_hidden_state[0]
