"""What every layout of the KV cache does: quantize two parts into fields, and read them back.

A layer caches two parts of each token: K and V (GQA), or the latent and the rotated key (MLA). A
layout stores them in one or two rows of bytes, as SGLang's pools do: K and V each have a buffer,
MLA has one for both.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from equipoise.kernels.formats import E4M3FN, CastCounts, count_cast
from equipoise.quant.kv_layouts import CacheAttention
from equipoise.quant.layouts.rows import Field, pack_row, row_bytes, unpack_row

__all__ = ["CacheShape", "Encoded", "HasCacheShape", "KVLayout", "count_bf16", "count_e4m3", "to_bf16"]

BF16_MAX = torch.finfo(torch.bfloat16).max


class HasCacheShape(Protocol):
    """What a cache's shape is taken from; ``equipoise.quant.geometry.Geometry`` has it."""

    @property
    def is_latent(self) -> bool: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def v_head_dim(self) -> int: ...
    @property
    def kv_lora_rank(self) -> int: ...
    @property
    def qk_rope_head_dim(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """What one layer caches of one token, one tuple a part: [kv_heads, dim] twice, or [dim] twice."""

    attention: CacheAttention
    first: tuple[int, ...]  # K, or the latent
    second: tuple[int, ...]  # V, or the rotated key

    @classmethod
    def gqa(cls, *, kv_heads: int, head_dim: int, v_head_dim: int | None = None) -> "CacheShape":
        return cls(attention="gqa", first=(kv_heads, head_dim), second=(kv_heads, v_head_dim or head_dim))

    @classmethod
    def mla(cls, *, kv_lora_rank: int = 512, qk_rope_head_dim: int = 64) -> "CacheShape":
        return cls(attention="mla", first=(kv_lora_rank,), second=(qk_rope_head_dim,))

    @classmethod
    def of(cls, geometry: HasCacheShape) -> "CacheShape":
        if geometry.is_latent:
            return cls.mla(kv_lora_rank=geometry.kv_lora_rank, qk_rope_head_dim=geometry.qk_rope_head_dim)
        return cls.gqa(kv_heads=geometry.kv_heads, head_dim=geometry.head_dim, v_head_dim=geometry.v_head_dim)

    @property
    def parts(self) -> tuple[str, str]:
        return ("k", "v") if self.attention == "gqa" else ("latent", "rope")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Tokens as a layout stores them."""

    layout: str
    values: Mapping[str, torch.Tensor]  # by field, [tokens, ...]
    counts: Mapping[str, CastCounts]  # by part: what the write saturated, flushed and kept as NaN


class KVLayout(ABC):
    """One way of storing what a layer caches.

    Every write saturates explicitly, infinities included, and keeps NaN where it was; nothing
    depends on how torch casts a value that is out of range. Float64 is refused (two roundings).
    """

    __slots__ = ()

    shape: CacheShape
    buffers: tuple[tuple[Field, ...], ...]  # the rows of bytes a token has, and their fields

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def quantize(self, first: torch.Tensor, second: torch.Tensor) -> dict[str, torch.Tensor]:
        """Fields of [tokens, *shape.first] and [tokens, *shape.second]."""

    @abstractmethod
    def dequantize(self, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Both parts, float32."""

    @abstractmethod
    def count(self, first: torch.Tensor, second: torch.Tensor) -> tuple[CastCounts, CastCounts]:
        """What :meth:`quantize` does to the same values."""

    def encode(self, first: torch.Tensor, second: torch.Tensor) -> Encoded:
        """Quantize tokens, and count what that does.

        Parameters
        ----------
        first, second : Tensor
            K and V [tokens, kv_heads, dim], or latent and RoPE key [tokens, dim]; float32,
            bfloat16 or float16.

        Raises
        ------
        ValueError
            Other shapes than the layout's.
        TypeError
            Float64.
        """
        self._check(first, second)
        counts = dict(zip(self.shape.parts, self.count(first, second), strict=True))
        return Encoded(layout=self.name, values=self.quantize(first, second), counts=counts)

    def decode(self, encoded: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention reads: both parts in float32.

        Raises
        ------
        ValueError
            Encoded by another layout.
        """
        if encoded.layout != self.name:
            raise ValueError(f"tokens encoded as {encoded.layout} cannot be read as {self.name}")
        return self.dequantize(encoded.values)

    def write_rows(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Tokens as bytes, uncounted: uint8 [tokens, n] for each buffer."""
        self._check(first, second)
        return self.pack(self.quantize(first, second))

    def read_rows(self, rows: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Both parts from bytes, in float32."""
        return self.dequantize(self.unpack(rows))

    def pack(self, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Fields as bytes, uint8 [tokens, n] for each buffer."""
        return tuple(pack_row(fields, values) for fields in self.buffers)

    def unpack(self, rows: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Fields from bytes; the inverse of :meth:`pack`, bit for bit."""
        values: dict[str, torch.Tensor] = {}
        for fields, bytes_ in zip(self.buffers, rows, strict=True):
            values |= unpack_row(fields, bytes_)
        return values

    @property
    def bytes_per_layer(self) -> int:
        """Bytes of one token in one layer."""
        return sum(row_bytes(fields) for fields in self.buffers)

    def bytes_per_token(self, num_layers: int) -> int:
        """Bytes of one token in all layers (without the keys of a DSA indexer)."""
        return num_layers * self.bytes_per_layer

    def _check(self, first: torch.Tensor, second: torch.Tensor) -> None:
        for part, wanted, got in zip(
            self.shape.parts, (self.shape.first, self.shape.second), (first, second), strict=True
        ):
            if tuple(got.shape[1:]) != wanted:
                raise ValueError(
                    f"{self.name}: {part} is [tokens, {', '.join(map(str, wanted))}], not {list(got.shape)}"
                )
            if got.dtype == torch.float64:
                raise TypeError(f"{self.name}: {part} is float64, which would round twice; cast it yourself")


def to_bf16(x: torch.Tensor) -> torch.Tensor:
    """bfloat16, nearest-even; finite values stay finite, infinities and NaN stay what they are."""
    if x.dtype == torch.bfloat16:
        return x
    return torch.where(x.isinf(), x, x.clamp(-BF16_MAX, BF16_MAX)).to(torch.bfloat16)


def count_bf16(x: torch.Tensor) -> CastCounts:
    """What :func:`to_bf16` does; saturated are finite values beyond bfloat16's largest."""
    return CastCounts(
        n=x.numel(),
        saturated=int(((x.abs() > BF16_MAX) & ~x.isinf()).sum()),
        flushed_to_zero=int(((to_bf16(x) == 0) & (x != 0)).sum()),
        nan=int(x.isnan().sum()),
    )


def count_e4m3(x: torch.Tensor, scale: torch.Tensor | float) -> CastCounts:
    """What a cast of ``x / scale`` to E4M3 does."""
    return count_cast(x, E4M3FN, scale=scale)
