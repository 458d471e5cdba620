"""Packed INT4 with a zero point a group, as compressed-tensors stores asymmetric weights; only read.

``pack-quantized`` with ``symmetric: false``. Beside what :mod:`equipoise.quant.weights.int4` describes there
is ``weight_zero_point``, int32 [ceil(rows / 8), groups]: eight rows of a group in a word, the first in the
lowest nibble, stored plus 8 like the codes. A weight is ``(code - zero_point) * scale``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from equipoise.quant.weights.formats import Int4Grouped, Part
from equipoise.quant.weights.int4 import unpack_nibbles
from equipoise.quant.weights.tiles import EncodeCounts, Scratch, row_tiles

__all__ = ["ROWS_A_WORD", "Int4ZeroPoint", "int4_zero_point_decode", "unpack_zero_points"]

ROWS_A_WORD = 8


def unpack_zero_points(packed: torch.Tensor, rows: int) -> torch.Tensor:
    """Int32 [rows, groups] of nibbles 0 to 15 from int32 [ceil(rows / 8), groups]."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    nibbles = (packed.to(torch.int32)[:, None, :] >> shifts[None, :, None]) & 0xF
    return nibbles.reshape(-1, packed.shape[1])[:rows]


def int4_zero_point_decode(
    packed: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    *,
    out: torch.Tensor,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """Float32 ``out`` [rows, columns]: ``(code - zero_point) * scale``.

    Parameters
    ----------
    packed : Tensor
        int32 [rows, ceil(columns / 8)]; nibbles beyond ``columns`` are padding.
    scales : Tensor
        bfloat16, float16 or float32 [rows, groups]; a group is columns / groups values.
    zero_points : Tensor
        int32 [ceil(rows / 8), groups], of the same rows.
    """
    scratch = scratch or Scratch()
    rows, columns = out.shape
    groups = scales.shape[1]
    zeros = unpack_zero_points(zero_points, rows).to(torch.float32)
    for top, bottom in row_tiles(rows, columns):
        codes = unpack_nibbles(packed[top:bottom], scratch)
        tile = out[top:bottom].copy_(codes[:, :columns]).view(bottom - top, groups, columns // groups)
        # Both are stored plus 8, which the difference does not see.
        tile.sub_(zeros[top:bottom, :, None]).mul_(scales[top:bottom].to(torch.float32)[..., None])
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4ZeroPoint:
    """A :class:`WeightFormat` that is only read."""

    group: int = 32
    name: str = "int4-zero-point"
    row_multiple: int = ROWS_A_WORD
    needs_amax: bool = False
    decodes_bfloat16: bool = False
    typical_sqnr_db: float = 20.4

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        rows, columns = shape
        symmetric = Int4Grouped(group=self.group).parts(shape)
        words = (-(-rows // ROWS_A_WORD), columns // self.group)
        return (
            *symmetric,
            Part(name="weight_zero_point", dtype="I32", shape=words, rows_each=ROWS_A_WORD),
        )

    def encode(
        self, slab: torch.Tensor, *, shape: tuple[int, ...], amax: float | None, scratch: Scratch
    ) -> tuple[dict[str, torch.Tensor], EncodeCounts]:
        raise NotImplementedError("weights with zero points are read, not written")

    def decode(
        self, parts: Mapping[str, torch.Tensor], *, columns: int, out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        return int4_zero_point_decode(
            parts["weight_packed"],
            parts["weight_scale"],
            parts["weight_zero_point"],
            out=out,
            scratch=scratch,
        )

    def error_bound(self, x: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        # Half a step, half a step more where the rounded zero point cuts the range off, and the scale's
        # rounding to bfloat16 over 15 steps.
        scales = parts["weight_scale"].to(torch.float32)
        return scales.repeat_interleave(x.shape[1] // scales.shape[1], dim=1) * (1.0 + 15.0 * 2.0**-8)
