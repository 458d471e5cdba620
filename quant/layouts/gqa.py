"""Layouts of K and V, a buffer each: [tokens, kv_heads, dim]."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import torch

from equipoise.kernels.formats import E4M3FN, CastCounts, cast_float8, read_float8
from equipoise.kernels.scales import amax_scale
from equipoise.quant.layouts.base import CacheShape, KVLayout, count_e4m3
from equipoise.quant.layouts.rows import Field

__all__ = ["GqaPerHead", "GqaPerTensor"]

HeadScales: TypeAlias = Sequence[float] | torch.Tensor


class GqaPerTensor(KVLayout):
    """FP8 E4M3 with one scale for K and one for V in a layer: what SGLang serves."""

    __slots__ = ("buffers", "k_scale", "shape", "v_scale")

    name = "fp8_flat"

    def __init__(self, shape: CacheShape, *, k_scale: float = 1.0, v_scale: float = 1.0) -> None:
        _require_gqa(shape, self.name)
        self.shape, self.k_scale, self.v_scale = shape, k_scale, v_scale
        self.buffers = (
            (Field(name="k", dtype=E4M3FN.dtype, shape=shape.first),),
            (Field(name="v", dtype=E4M3FN.dtype, shape=shape.second),),
        )

    def quantize(self, first: torch.Tensor, second: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "k": cast_float8(first, E4M3FN, scale=self.k_scale),
            "v": cast_float8(second, E4M3FN, scale=self.v_scale),
        }

    def dequantize(self, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return read_float8(values["k"], scale=self.k_scale), read_float8(values["v"], scale=self.v_scale)

    def count(self, first: torch.Tensor, second: torch.Tensor) -> tuple[CastCounts, CastCounts]:
        return count_e4m3(first, self.k_scale), count_e4m3(second, self.v_scale)


class GqaPerHead(KVLayout):
    """FP8 E4M3 with a scale for each KV head.

    Parameters
    ----------
    scales : "static" or "token"
        "static": ``k_scales`` and ``v_scales`` are constants of the layer and take no bytes in the
        cache. "token": amax / 448 of each token and head, fp32, stored behind the codes.
    k_scales, v_scales : sequence of float
        [kv_heads]; only with "static".
    """

    __slots__ = ("buffers", "k_scales", "scales", "shape", "v_scales")

    def __init__(
        self,
        shape: CacheShape,
        *,
        scales: Literal["static", "token"] = "static",
        k_scales: HeadScales | None = None,
        v_scales: HeadScales | None = None,
    ) -> None:
        self.shape, self.scales = shape, scales
        _require_gqa(shape, self.name)
        given = [scale is not None for scale in (k_scales, v_scales)]
        if given != [scales == "static"] * 2:
            raise ValueError(f"{self.name}: static scales are given for K and V, those of tokens are not")
        self.k_scales = None if k_scales is None else _column(k_scales, shape.first[0], "k_scales")
        self.v_scales = None if v_scales is None else _column(v_scales, shape.second[0], "v_scales")
        self.buffers = tuple(
            self._fields(part, dims)
            for part, dims in zip(shape.parts, (shape.first, shape.second), strict=True)
        )

    @property
    def name(self) -> str:
        return "fp8_per_head" if self.scales == "static" else "fp8_per_token_head"

    def _fields(self, part: str, dims: tuple[int, ...]) -> tuple[Field, ...]:
        codes = Field(name=part, dtype=E4M3FN.dtype, shape=dims)
        if self.scales == "static":
            return (codes,)
        return (codes, Field(name=f"{part}_scale", dtype=torch.float32, shape=(dims[0], 1)))

    def quantize(self, first: torch.Tensor, second: torch.Tensor) -> dict[str, torch.Tensor]:
        k_scale, v_scale = self._scales_of(first, second)
        values = {
            "k": cast_float8(first, E4M3FN, scale=k_scale),
            "v": cast_float8(second, E4M3FN, scale=v_scale),
        }
        return values | ({} if self.scales == "static" else {"k_scale": k_scale, "v_scale": v_scale})

    def dequantize(self, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        k_scale = values["k_scale"] if self.k_scales is None else self.k_scales
        v_scale = values["v_scale"] if self.v_scales is None else self.v_scales
        return read_float8(values["k"], scale=k_scale), read_float8(values["v"], scale=v_scale)

    def count(self, first: torch.Tensor, second: torch.Tensor) -> tuple[CastCounts, CastCounts]:
        k_scale, v_scale = self._scales_of(first, second)
        return count_e4m3(first, k_scale), count_e4m3(second, v_scale)

    def _scales_of(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[kv_heads, 1], or [tokens, kv_heads, 1]."""
        if self.scales == "static":
            return self.k_scales, self.v_scales
        return amax_scale(k, E4M3FN).unsqueeze(-1), amax_scale(v, E4M3FN).unsqueeze(-1)


def _column(scales: HeadScales, heads: int, what: str) -> torch.Tensor:
    column = torch.as_tensor(scales, dtype=torch.float32).reshape(-1, 1)
    if len(column) != heads:
        raise ValueError(f"{what} has {len(column)} scales for {heads} KV heads")
    if not bool(((column > 0) & column.isfinite()).all()):
        raise ValueError(f"{what} must be positive and finite, not {column[:, 0].tolist()}")
    return column


def _require_gqa(shape: CacheShape, name: str) -> None:
    if shape.attention != "gqa":
        raise ValueError(f"{name} holds K and V; an MLA cache is fp8_flat (576 values) or ds656")
