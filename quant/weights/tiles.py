"""What every encoder shares: reusable buffers, tiles that stay in the cache, and counts.

Fresh buffers cost more than the arithmetic (the kernel must clear each page), so an encoder works on
tiles that fit the cache, in buffers that live as long as its :class:`Scratch`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from equipoise.kernels.weight_formats import Counts

__all__ = [
    "EncodeCounts",
    "Scratch",
    "count_zeros",
    "counted",
    "finite_amax",
    "float32_tile",
    "row_tiles",
    "to_float32",
]

TILE_ELEMENTS = 512 * 1024  # large enough that calls cost nothing, small enough for the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeCounts:
    """What became of ``n`` values. A NaN is in ``nan`` alone, whatever its group's scale became.

    ``saturated`` are values clipped by more than half a step of the format: infinities, and what a
    format with power-of-two scales cuts off.
    """

    n: int = 0
    saturated: int = 0
    flushed_to_zero: int = 0
    nan: int = 0

    def __add__(self, other: "EncodeCounts") -> "EncodeCounts":
        return EncodeCounts(
            n=self.n + other.n,
            saturated=self.saturated + other.saturated,
            flushed_to_zero=self.flushed_to_zero + other.flushed_to_zero,
            nan=self.nan + other.nan,
        )


def counted(x: torch.Tensor, counts: Counts) -> EncodeCounts:
    """What a compiled routine counted in ``x``."""
    return EncodeCounts(n=x.numel(), **counts._asdict())


@dataclass(slots=True)
class Scratch:
    """Named buffers, grown when needed and reused; one for each thread."""

    buffers: dict[tuple[str, torch.dtype], torch.Tensor] = field(default_factory=dict)

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous buffer of this shape; its contents are whatever was there."""
        numel = 1
        for size in shape:
            numel *= size
        held = self.buffers.get((name, dtype))
        if held is None or held.numel() < numel:
            held = torch.empty(numel, dtype=dtype)
            self.buffers[(name, dtype)] = held
        return held[:numel].view(shape)


def row_tiles(rows: int, columns: int, *, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Cut rows into tiles of about TILE_ELEMENTS values, of a multiple of ``multiple`` rows but the last."""
    step = max(1, TILE_ELEMENTS // max(1, columns * multiple)) * multiple
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


def to_float32(x: torch.Tensor, scratch: Scratch, name: str = "x") -> torch.Tensor:
    """A float32 copy of a tile in a scratch buffer.

    Raises
    ------
    TypeError
        For float64 (it would be rounded twice) and for what is no floating type.
    """
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise TypeError(f"weights must be bfloat16, float16 or float32, not {x.dtype}")
    return scratch.take(name, tuple(x.shape), torch.float32).copy_(x)


def float32_tile(target: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Where to compute what ``target`` will hold: ``target`` itself if it is float32, else a buffer."""
    if target.dtype == torch.float32:
        return target
    return scratch.take("wide", tuple(target.shape), torch.float32)


def finite_amax(groups: torch.Tensor, scratch: Scratch) -> tuple[torch.Tensor, bool]:
    """The largest finite magnitude along the last axis, 0 where there is none; and: are all values finite?

    Parameters
    ----------
    groups : Tensor
        float32 [..., group]
    """
    magnitude = torch.abs(groups, out=scratch.take("magnitude", tuple(groups.shape), torch.float32))
    amax = magnitude.amax(-1)
    if bool(amax.isfinite().all()):
        return amax, True
    return magnitude.nan_to_num_(nan=0.0, posinf=0.0).amax(-1), False


def count_zeros(values: torch.Tensor, scratch: Scratch) -> int:
    """How many elements are zero, of either sign. numpy's comparisons are ten times as fast as torch's."""
    zero = scratch.take("zero", tuple(values.shape), torch.bool).numpy()
    return int(np.count_nonzero(np.equal(values.numpy(), 0, out=zero)))
