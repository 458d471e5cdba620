"""The unquantized cache: what every other layout is measured against."""

from collections.abc import Mapping

import torch

from equipoise.kernels.formats import CastCounts
from equipoise.quant.layouts.base import CacheShape, KVLayout, count_bf16, to_bf16
from equipoise.quant.layouts.rows import Field

__all__ = ["Bf16"]


class Bf16(KVLayout):
    """bfloat16, for either kind of attention."""

    __slots__ = ("buffers", "shape")

    name = "bf16"

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        fields = [
            Field(name=part, dtype=torch.bfloat16, shape=dims)
            for part, dims in zip(shape.parts, (shape.first, shape.second), strict=True)
        ]
        self.buffers = tuple((f,) for f in fields) if shape.attention == "gqa" else (tuple(fields),)

    def quantize(self, first: torch.Tensor, second: torch.Tensor) -> dict[str, torch.Tensor]:
        return dict(zip(self.shape.parts, (to_bf16(first), to_bf16(second)), strict=True))

    def dequantize(self, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = (values[part].to(torch.float32) for part in self.shape.parts)
        return first, second

    def count(self, first: torch.Tensor, second: torch.Tensor) -> tuple[CastCounts, CastCounts]:
        return count_bf16(first), count_bf16(second)
