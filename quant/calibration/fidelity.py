"""How well stored values stand for the ones they came from: SQNR, cosine, saturation, flush to zero."""

import math
from dataclasses import dataclass

import torch

from equipoise.kernels.formats import E4M3FN, CastCounts, count_cast, fake_quantize_float8
from equipoise.quant.calibration.histogram import MagnitudeHistogram

__all__ = ["Fidelity", "compare_stored", "stored_at_scale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Sums over values x and what is read back of them, y; they add up over batches."""

    signal: float = 0.0  # sum x^2
    noise: float = 0.0  # sum (x - y)^2
    product: float = 0.0  # sum x y
    stored: float = 0.0  # sum y^2
    n: int = 0
    saturated: int = 0
    flushed_to_zero: int = 0
    nan: int = 0

    def __add__(self, other: "Fidelity") -> "Fidelity":
        return Fidelity(
            signal=self.signal + other.signal,
            noise=self.noise + other.noise,
            product=self.product + other.product,
            stored=self.stored + other.stored,
            n=self.n + other.n,
            saturated=self.saturated + other.saturated,
            flushed_to_zero=self.flushed_to_zero + other.flushed_to_zero,
            nan=self.nan + other.nan,
        )

    @property
    def sqnr_db(self) -> float:
        """10 log10(signal / noise); infinity without noise, NaN without signal."""
        if not self.signal > 0.0:
            return math.nan
        return 10.0 * math.log10(self.signal / self.noise) if self.noise > 0.0 else math.inf

    @property
    def cosine(self) -> float:
        """Between all x and all y as two vectors; NaN where one of them is zero."""
        norm = math.sqrt(self.signal * self.stored)
        return self.product / norm if norm > 0.0 else math.nan

    @property
    def relative_error(self) -> float:
        """Norm of x - y over norm of x; NaN without signal."""
        return math.sqrt(self.noise / self.signal) if self.signal > 0.0 else math.nan

    @property
    def saturated_share(self) -> float:
        return self.saturated / self.n if self.n else math.nan

    @property
    def flushed_share(self) -> float:
        """Of values that were not zero and are read back as zero, among all."""
        return self.flushed_to_zero / self.n if self.n else math.nan


def compare_stored(x: torch.Tensor, y: torch.Tensor, counts: CastCounts | None = None) -> Fidelity:
    """Of two tensors of one shape, summed in float64; ``counts`` are those of the write."""
    a, b = x.detach().to(torch.float64).flatten(), y.detach().to(torch.float64).flatten()
    difference = a - b
    return Fidelity(
        signal=float(a @ a),
        noise=float(difference @ difference),
        product=float(a @ b),
        stored=float(b @ b),
        n=a.numel(),
        saturated=counts.saturated if counts else 0,
        flushed_to_zero=counts.flushed_to_zero if counts else 0,
        nan=counts.nan if counts else 0,
    )


def stored_at_scale(histogram: MagnitudeHistogram, group: int, scale: float) -> Fidelity:
    """What E4M3 with this scale does to all values of a group: exact, from their histogram."""
    values, weights = histogram.support(group)
    read = fake_quantize_float8(values, E4M3FN, scale=scale)
    x, y = values.to(torch.float64), read.to(torch.float64)
    limit = count_cast(values, E4M3FN, scale=scale)
    # values ascend, so the saturated ones are the last.
    saturated = float(weights[len(weights) - limit.saturated :].sum()) if limit.saturated else 0.0
    return Fidelity(
        signal=float((weights * x * x).sum()),
        noise=float((weights * (x - y) ** 2).sum()),
        product=float((weights * x * y).sum()),
        stored=float((weights * y * y).sum()),
        n=int(weights.sum()),
        saturated=int(saturated),
        flushed_to_zero=int(weights[(y == 0) & (x != 0)].sum()),
    )
