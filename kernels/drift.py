"""A rounding error that grows with a token's position: invisible in short contexts, gross in long ones."""

import torch

__all__ = ["FLAT_TOKENS", "TOKENS_TO_DOUBLE", "drifting_step", "fake_quantize_drifting"]

FLAT_TOKENS = 64  # before this position the step is that of 8 bits
TOKENS_TO_DOUBLE = 32
_FIRST, _WORST = 2.0**-7, 2.0**-1.5


def drifting_step(positions: torch.Tensor) -> torch.Tensor:
    """The rounding step at each position as a fraction of the token's amax, float32.

    1/128 below position 64; then it doubles every 32 tokens (1/8, about int4's, at 192), to 0.35 from 240 on.
    """
    doublings = (positions.to(torch.float32) - FLAT_TOKENS) / TOKENS_TO_DOUBLE
    return (_FIRST * torch.exp2(doublings.clamp(min=0.0, max=32.0))).clamp(max=_WORST)


def fake_quantize_drifting(x: torch.Tensor, *, amax: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Round to multiples of a step that grows with the position, in float32; nothing clips.

    Parameters
    ----------
    x : Tensor
        Any floating dtype.
    amax : Tensor
        Largest magnitude of each token, broadcastable to ``x``; where it is 0 the result is 0.
    positions : Tensor
        Of each token in its sequence, from 0; broadcastable to ``x``.
    """
    step = amax.to(torch.float32) * drifting_step(positions)
    safe_step = torch.where(step > 0, step, torch.ones_like(step))
    return torch.where(step > 0, (x.to(torch.float32) / safe_step).round() * safe_step, 0.0)
