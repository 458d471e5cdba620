"""Strengths of the controls that were measured: the loss each causes on the embedded models.

Measured by tests/calibration/overlay_controls.py (table beside it), float32, every layer changed, on an item
seed of its own. "gross" loses about .10 of the pooled accuracy, "mild" about .05. They say what the fault is
worth on these tiny models; a large one with many layers can shrug off more.
"""

from equipoise.quant.controls import ControlKind

__all__ = ["MEASURED", "named_strength"]

MEASURED = ("gross", "mild")

# (kind, whether K is a latent) -> (gross, mild)
_STRENGTHS: dict[tuple[ControlKind, bool], tuple[float, float]] = {
    ("noise-k", True): (0.4, 0.3),
    ("noise-k", False): (0.4, 0.3),
    ("scale-k", True): (1.5, 1.4),
    ("scale-k", False): (2.0, 1.7),
    ("rope-theta", True): (3.0, 2.25),
    ("rope-theta", False): (3.0, 2.25),
}


def named_strength(name: str, kind: ControlKind, *, latent: bool) -> float:
    """The strength called "gross" or "mild" for a kind of fault and attention."""
    return _STRENGTHS[kind, latent][MEASURED.index(name)]
