"""What a quantized cache does to the model's answers: KL divergence of its next-token distributions."""

# mypy: allow-untyped-decorators

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from equipoise.evals.errors import EquipoiseError
from equipoise.quant.calibration.cache import Store, bf16_stores, last_hidden_states
from equipoise.quant.calibration.model import CalibrationModel
from equipoise.quant.calibration.observe import Advance
from equipoise.quant.calibration.prompts import TokenSequences

__all__ = ["Divergence", "divergences", "first_sequences"]

_CHUNK = 256  # tokens whose logits exist at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """KL(unquantized cache || this one) in nats, over the predictions at ``tokens`` positions."""

    tokens: int
    mean_nats: float
    max_nats: float
    top1_changed: int  # positions whose likeliest token differs


@torch.no_grad()
def divergences(
    model: CalibrationModel,
    data: TokenSequences,
    variants: Sequence[Sequence[Store]],
    *,
    advance: Advance = lambda tokens: None,
) -> list[Divergence]:
    """Of each variant ([layer] stores) from the unquantized cache; the baseline runs once a prompt.

    ``advance`` is told the tokens of each run, ``len(variants) + 1`` times a prompt.
    """
    totals, worst, changed = [0.0] * len(variants), [0.0] * len(variants), [0] * len(variants)
    for sequence, where in zip(data.sequences, data.where, strict=True):
        baseline = last_hidden_states(model, sequence, bf16_stores(model))
        advance(len(sequence))
        for i, stores in enumerate(variants):
            hidden = last_hidden_states(model, sequence, stores)
            for a, b in zip(baseline.split(_CHUNK), hidden.split(_CHUNK), strict=True):
                kl, moved = _kl(model, a, b)
                if not bool(kl.isfinite().all()):
                    raise EquipoiseError(
                        f"{where}: with a quantized cache the model's logits are infinite or NaN; its scale "
                        "is far too small or too large"
                    )
                totals[i] += float(kl.sum())
                worst[i] = max(worst[i], float(kl.max()))
                changed[i] += moved
            advance(len(sequence))
    return [
        Divergence(
            tokens=data.tokens,
            mean_nats=total / data.tokens if data.tokens else math.nan,
            max_nats=most,
            top1_changed=moved,
        )
        for total, most, moved in zip(totals, worst, changed, strict=True)
    ]


def _kl(model: CalibrationModel, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, int]:
    head = model.causal_lm.get_output_embeddings()
    p, q = (head(x).to(torch.float64).log_softmax(-1) for x in (a, b))
    kl = (p.exp() * (p - q)).sum(-1)
    return kl.clamp_min(0.0), int((p.argmax(-1) != q.argmax(-1)).sum())


def first_sequences(data: TokenSequences, count: int) -> TokenSequences:
    """The first ``count`` prompts."""
    return TokenSequences(
        sequences=data.sequences[:count], where=data.where[:count], truncated=0, too_short=0
    )
