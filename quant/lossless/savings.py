"""How much of a model's checkpoint lossless BF16 saves, from its dimensions alone.

Only what is stored in BF16 can shrink: a third of a BF16 model, and little of one whose experts are INT4.
"""

from dataclasses import dataclass

from equipoise.quant.geometry import Geometry
from equipoise.quant.weights_size import weight_components

__all__ = ["SCALE_RATIO", "WEIGHT_RATIO", "Saving", "predict_saving"]

WEIGHT_RATIO = 0.665
"""Stored / original of BF16 weights: .662 for Gaussian weights of one scale, .665 where each row has its own
and for SmolLM2-135M (dequantized from Q4_1), measured with this codec."""

SCALE_RATIO = 0.51
"""The same of INT4 group scales: all positive and close to their row's others, so that less than the
mantissas remains; .490 to .506 for amax / 7 or 7.5 of groups of 32 Gaussian weights, .498 for SmolLM2's."""

_INT4_SCALE_SHARE = 1 / 9  # 2 bytes a group of 32 against 16 bytes of nibbles


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """All in bytes; MTP layers count, since they are stored."""

    model: str
    weights: str  # the format on disk
    total_bytes: int
    bf16_weight_bytes: int
    bf16_scale_bytes: int

    @property
    def saved_weight_bytes(self) -> float:
        return self.bf16_weight_bytes * (1 - WEIGHT_RATIO)

    @property
    def saved_scale_bytes(self) -> float:
        return self.bf16_scale_bytes * (1 - SCALE_RATIO)

    @property
    def saved_share(self) -> float:
        """Of the whole checkpoint."""
        return (self.saved_weight_bytes + self.saved_scale_bytes) / self.total_bytes


def predict_saving(geometry: Geometry, weights: str | None = None) -> Saving:
    """What a model would save, stored as it ships or in the format ``weights``.

    FP8's scales are float32, or one BF16 number a row: nothing to save.

    Raises
    ------
    UsageError
        The format is unknown.
    """
    components = weight_components(geometry, weights)
    stored = weights or geometry.weights
    quantized = sum(c.num_bytes for c in components if c.quantized)
    return Saving(
        model=geometry.name,
        weights=stored,
        total_bytes=sum(c.num_bytes for c in components),
        bf16_weight_bytes=sum(c.num_bytes for c in components if not c.quantized),
        bf16_scale_bytes=round(quantized * _INT4_SCALE_SHARE) if stored == "int4-g32" else 0,
    )
