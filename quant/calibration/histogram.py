"""Exact counts of cached values in bounded memory: a histogram over all magnitudes that BF16 has.

What a server caches is BF16 before it is quantized, so a magnitude has 32,640 finite values and a
counter for each is all there is to know: largest value, percentiles, and what any scale does to
the values follow exactly, without one stored activation. A histogram takes 0.26 MB.
"""

import math
from collections.abc import Sequence

import torch

from equipoise.quant.layouts.base import to_bf16

__all__ = ["MAGNITUDES", "MagnitudeHistogram"]

_BINS = 0x8000  # bit patterns of a bfloat16 without its sign
_INFINITY = 0x7F80

# float32 [32640]: the finite magnitudes, ascending.
MAGNITUDES = torch.arange(_INFINITY, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).to(torch.float32)


class MagnitudeHistogram:
    """Counts of |x| for each of ``groups`` (the KV heads, or one).

    Rows (the values of one token in one group) that are all zero, as padding leaves them, are
    counted apart: a percentile over them would say nothing of the values that are there.
    """

    __slots__ = ("counts", "non_finite", "rows", "zero_rows")

    def __init__(self, groups: int) -> None:
        self.counts = torch.zeros(groups, len(MAGNITUDES), dtype=torch.int64)
        self.rows = 0  # seen, zero rows included
        self.zero_rows = 0
        self.non_finite = 0  # values that are infinite or NaN; in no counter

    def add(self, x: torch.Tensor) -> None:
        """Count values [tokens, groups, dim]."""
        tokens, groups, dim = x.shape
        bits = to_bf16(x.detach()).abs().contiguous().view(torch.int16).to(torch.int64)
        kept = bits.any(dim=2)  # [tokens, groups]
        self.rows += tokens * groups
        self.zero_rows += int((~kept).sum())
        finite = bits < _INFINITY
        self.non_finite += int((~finite).sum())
        keys = bits + _BINS * torch.arange(groups, device=bits.device)[:, None]
        keys = keys[kept.unsqueeze(2).expand(-1, -1, dim) & finite]
        found = torch.bincount(keys, minlength=groups * _BINS).view(groups, _BINS)
        self.counts += found[:, :_INFINITY].cpu()

    def merged(self, *others: "MagnitudeHistogram") -> "MagnitudeHistogram":
        """The sum of this and others of as many groups."""
        total = MagnitudeHistogram(len(self.counts))
        for part in (self, *others):
            total.counts += part.counts
            total.rows += part.rows
            total.zero_rows += part.zero_rows
            total.non_finite += part.non_finite
        return total

    def pooled(self) -> "MagnitudeHistogram":
        """All groups as one."""
        total = MagnitudeHistogram(1)
        total.counts = self.counts.sum(dim=0, keepdim=True)
        total.rows, total.zero_rows, total.non_finite = self.rows, self.zero_rows, self.non_finite
        return total

    @property
    def n(self) -> torch.Tensor:
        """Values counted, int64 [groups]."""
        return self.counts.sum(dim=1)

    def amax(self) -> list[float]:
        """The largest finite magnitude of each group; 0 where there is none."""
        seen = self.counts > 0
        last = seen.shape[1] - 1 - seen.flip(1).to(torch.int8).argmax(dim=1)
        return torch.where(seen.any(dim=1), MAGNITUDES[last], 0.0).tolist()  # type: ignore[no-any-return]

    def percentiles(self, percents: Sequence[float]) -> list[list[float]]:
        """For each group, the smallest magnitude that at least p percent of its values do not exceed.

        NaN for a group without values.
        """
        out = []
        for counts in self.counts:
            cumulative = counts.cumsum(0)
            n = int(cumulative[-1])
            row = []
            for p in percents:
                rank = min(n, max(1, math.ceil(n * p / 100.0 - 1e-9)))
                row.append(float(MAGNITUDES[torch.searchsorted(cumulative, rank)]) if n else math.nan)
            out.append(row)
        return out

    def support(self, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The magnitudes that occur, float32 [m], and how often, float64 [m]."""
        index = self.counts[group].nonzero()[:, 0]
        return MAGNITUDES[index], self.counts[group][index].to(torch.float64)
