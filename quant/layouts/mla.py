"""Layouts of MLA's latent and rotated key, one buffer for both."""

from collections.abc import Mapping
from typing import Literal

import torch

from equipoise.kernels.formats import E4M3FN, CastCounts, cast_float8, read_float8
from equipoise.kernels.scales import E8M0_FLOOR, amax_scale, power_of_two_scale
from equipoise.quant.layouts.base import CacheShape, KVLayout, count_bf16, count_e4m3, to_bf16
from equipoise.quant.layouts.rows import Field

__all__ = ["TILE", "Ds656", "Flat576"]

TILE = 128  # latent values that share a scale


class Flat576(KVLayout):
    """All of a token in FP8 E4M3 with one scale: 512 + 64 = 576 bytes (Kimi, GLM-4.7-Flash).

    SGLang writes this cache at scale 1, whatever the checkpoint says.
    """

    __slots__ = ("buffers", "scale", "shape")

    name = "fp8_flat"

    def __init__(self, shape: CacheShape, *, scale: float = 1.0) -> None:
        _require_mla(shape, self.name)
        self.shape, self.scale = shape, scale
        self.buffers = (
            (
                Field(name="latent", dtype=E4M3FN.dtype, shape=shape.first),
                Field(name="rope", dtype=E4M3FN.dtype, shape=shape.second),
            ),
        )

    def quantize(self, first: torch.Tensor, second: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "latent": cast_float8(first, E4M3FN, scale=self.scale),
            "rope": cast_float8(second, E4M3FN, scale=self.scale),
        }

    def dequantize(self, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return read_float8(values["latent"], scale=self.scale), read_float8(values["rope"], scale=self.scale)

    def count(self, first: torch.Tensor, second: torch.Tensor) -> tuple[CastCounts, CastCounts]:
        return count_e4m3(first, self.scale), count_e4m3(second, self.scale)


class Ds656(KVLayout):
    """Latent in FP8 E4M3 with a scale for each 128 values, RoPE key in BF16.

    The row of FlashMLA and of SGLang's DSA pool: 512 codes, 4 float32 scales, 64 bfloat16, 656
    bytes. A latent of fewer than 128 values is one tile, and the name says so.

    Parameters
    ----------
    scales : "fp32" or "pow2"
        "fp32": amax / 448, as SGLang writes. SGLang's quantizer divides an all-zero tile by 0 and
        stores NaN; here it is 0. "pow2": at least ``floor``, rounded up to a power of two, as
        FlashMLA's own quantizer does, so that a reader of E8M0 scales reads the same.
    """

    __slots__ = ("buffers", "floor", "scales", "shape", "tile")

    def __init__(
        self, shape: CacheShape, *, scales: Literal["fp32", "pow2"] = "fp32", floor: float = E8M0_FLOOR
    ) -> None:
        _require_mla(shape, "ds656")
        latent = shape.first[0]
        self.shape, self.scales, self.floor = shape, scales, floor
        self.tile = min(TILE, latent)
        if latent % self.tile:
            raise ValueError(
                f"ds656 scales {TILE} values together, and the latent has {latent}: choose fp8_flat or bf16"
            )
        self.buffers = (
            (
                Field(name="latent", dtype=E4M3FN.dtype, shape=shape.first),
                Field(name="scale", dtype=torch.float32, shape=(latent // self.tile,)),
                Field(name="rope", dtype=torch.bfloat16, shape=shape.second),
            ),
        )

    @property
    def name(self) -> str:
        variant = "ds656" if self.scales == "fp32" else "ds656_pow2"
        return variant if self.tile == TILE else f"{variant}_tile{self.tile}"

    def quantize(self, first: torch.Tensor, second: torch.Tensor) -> dict[str, torch.Tensor]:
        tiles, scale = self._tiles(first), self.scale_of(first)
        codes = cast_float8(tiles, E4M3FN, scale=scale.unsqueeze(-1))
        return {"latent": codes.flatten(1), "scale": scale, "rope": to_bf16(second)}

    def dequantize(self, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        tiles = read_float8(self._tiles(values["latent"]), scale=values["scale"].unsqueeze(-1))
        return tiles.flatten(1), values["rope"].to(torch.float32)

    def count(self, first: torch.Tensor, second: torch.Tensor) -> tuple[CastCounts, CastCounts]:
        scale = self.scale_of(first).unsqueeze(-1)
        return count_e4m3(self._tiles(first), scale), count_bf16(second)

    def scale_of(self, latent: torch.Tensor) -> torch.Tensor:
        """float32 [tokens, tiles] of a latent [tokens, dim]."""
        tiles = self._tiles(latent)
        if self.scales == "fp32":
            return amax_scale(tiles, E4M3FN)
        return power_of_two_scale(tiles, E4M3FN, floor=self.floor)

    def _tiles(self, latent: torch.Tensor) -> torch.Tensor:
        return latent.unflatten(1, (-1, self.tile))


def _require_mla(shape: CacheShape, name: str) -> None:
    if shape.attention != "mla":
        raise ValueError(f"{name} of {TILE * 4} + 64 values holds MLA's latent; a GQA cache has K and V")
