"""The scale of a group of values from their histogram: largest value, percentile, or least error.

A scale is a descale (stored = x / scale) and is never clamped: values below 448 get a scale below
1, as values above it get one above. Some exporters clamp at 1.0, which throws the small values of
a quiet layer into E4M3's subnormals.
"""

import math

import torch

from equipoise.kernels.formats import E4M3FN
from equipoise.quant.calibration.fidelity import stored_at_scale
from equipoise.quant.calibration.histogram import MagnitudeHistogram
from equipoise.quant.calibration.settings import Method

__all__ = ["amax_scales", "choose_scales", "float32", "mse_scale"]

# E4M3 repeats itself at every power of two except at its two ends, so what matters within an octave
# is where the values fall between its steps, and over octaves what saturates or is flushed.
_STEPS_PER_OCTAVE = 16
_OCTAVES_BELOW = 6  # smaller scales than amax / 448: the largest values saturate
_OCTAVES_ABOVE = 4
# A scale that is better by less than this is no better: the choice must not hang on rounding.
_NOISE_TIE = 1e-6


def amax_scales(histogram: MagnitudeHistogram) -> list[float]:
    """The true largest magnitude / 448 (no average over batches); 1.0 for a group of zeros."""
    return [_scale_of(amax) for amax in histogram.amax()]


def choose_scales(
    method: Method, rest: MagnitudeHistogram, sinks: MagnitudeHistogram, *, percentile: float
) -> list[float]:
    """A scale for each group.

    Parameters
    ----------
    method : "amax", "percentile" or "mse"
    rest, sinks : MagnitudeHistogram
        Of the first tokens of each prompt, and of the others. "percentile" takes the larger of
        the two percentiles: sinks are few, and would be clipped for that alone.
    percentile : float
        In (0, 100].
    """
    everything = rest.merged(sinks)
    if method == "amax":
        return amax_scales(everything)
    if method == "percentile":
        pairs = zip(rest.percentiles([percentile]), sinks.percentiles([percentile]), strict=True)
        return [_scale_of(max((x for x in (*a, *b) if not math.isnan(x)), default=0.0)) for a, b in pairs]
    if method == "mse":
        return [mse_scale(everything, group) for group in range(len(everything.counts))]
    raise ValueError(f"method {method!r} does not choose from a histogram")


def mse_scale(histogram: MagnitudeHistogram, group: int) -> float:
    """The scale with the least squared error of storage, by search over 10 octaves around amax / 448.

    1.0 is among the candidates and wins ties, so that values which it stores as well keep it.
    """
    amax = histogram.amax()[group]
    if not amax > 0.0:
        return 1.0
    steps = range(-_OCTAVES_BELOW * _STEPS_PER_OCTAVE, _OCTAVES_ABOVE * _STEPS_PER_OCTAVE + 1)
    candidates = [1.0, *(_scale_of(amax) * 2.0 ** (step / _STEPS_PER_OCTAVE) for step in steps)]
    best, least = 1.0, math.inf
    for scale in candidates:
        noise = stored_at_scale(histogram, group, scale).noise
        if noise < least * (1.0 - _NOISE_TIE):
            best, least = scale, noise
    return float32(best)


def float32(scale: float) -> float:
    """As it is written to a checkpoint and read from it."""
    return float(torch.tensor(scale, dtype=torch.float32))


def _scale_of(magnitude: float) -> float:
    return float32(magnitude / E4M3FN.max_finite) if magnitude > 0.0 else 1.0
