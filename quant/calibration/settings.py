"""What a calibration is asked to do; pure."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from equipoise.evals.errors import UsageError
from equipoise.quant.kv_layouts import CacheAttention

__all__ = ["GRANULARITIES", "METHODS", "Granularity", "Method", "Settings", "layout_name"]

Method: TypeAlias = Literal["amax", "percentile", "mse", "attention"]
Granularity: TypeAlias = Literal["tensor", "head", "token-tile"]
METHODS: tuple[Method, ...] = ("amax", "percentile", "mse", "attention")
GRANULARITIES: tuple[Granularity, ...] = ("tensor", "head", "token-tile")

_LAYOUTS: dict[tuple[CacheAttention, Granularity], str] = {
    ("gqa", "tensor"): "fp8_flat",
    ("gqa", "head"): "fp8_per_head",
    ("gqa", "token-tile"): "fp8_per_token_head",
    ("mla", "tensor"): "fp8_flat",
    ("mla", "token-tile"): "ds656",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``sink_tokens`` first tokens of each prompt are counted apart; ``kl_prompts`` measure divergence."""

    method: Method = "amax"
    granularity: Granularity = "tensor"
    percentile: float = 99.99
    sink_tokens: int = 4
    kl_prompts: int = 8
    kl_budget_nats: float | None = None


def layout_name(attention: CacheAttention, settings: Settings) -> str:
    """The layout that such scales are for.

    Raises
    ------
    UsageError
        Heads of an MLA cache, or a choice of scales that are computed anew for each token.
    """
    name = _LAYOUTS.get((attention, settings.granularity))
    if name is None:
        raise UsageError(
            "an MLA cache has one latent for all heads: --granularity tensor or token-tile, not head"
        )
    if settings.granularity == "token-tile" and settings.method != "amax":
        raise UsageError(
            "scales of token tiles are amax / 448 of each tile, computed as the server writes it, not "
            f"calibrated: --method amax, not {settings.method}"
        )
    return name
