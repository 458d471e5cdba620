"""Everything that the checks of one server look at."""

from dataclasses import dataclass

from equipoise.quant.explain.arguments import ServerArguments
from equipoise.quant.explain.backends import ScaleUse
from equipoise.quant.explain.declared import DeclaredKV
from equipoise.quant.explain.families import Family
from equipoise.quant.explain.hardware import Hardware
from equipoise.quant.explain.resolve import Resolved
from equipoise.quant.explain.scales import ScaleTensor
from equipoise.quant.geometry import Geometry

__all__ = ["Context", "listed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """``tensors`` is None where no checkpoint was read; ``family`` None for a model class not known here."""

    geometry: Geometry
    model_type: str  # as --quantization-param-path must name it
    family: Family | None
    declared: DeclaredKV
    args: ServerArguments
    hardware: Hardware
    resolved: Resolved
    tensors: tuple[ScaleTensor, ...] | None
    prefill_use: ScaleUse | None
    decode_use: ScaleUse | None

    @property
    def loads_scales(self) -> bool:
        """Whether attention layers have a place for scales of the checkpoint."""
        return self.family is not None and self.family.passes_quant_config and self.declared.gives_scales

    @property
    def uses(self) -> tuple[ScaleUse, ...]:
        return tuple(u for u in (self.prefill_use, self.decode_use) if u is not None)

    @property
    def backends(self) -> str:
        """``fa3``, or ``fa3 and flashmla`` where prefill and decode differ."""
        r = self.resolved
        return r.prefill if r.prefill == r.decode else f"{r.prefill} and {r.decode}"

    @property
    def speculates(self) -> bool:
        """Whether a draft model or MTP layer with a KV cache of its own is served."""
        return (
            self.args.speculative_algorithm is not None and self.args.speculative_algorithm.upper() != "NGRAM"
        )

    @property
    def drafts_with_mtp(self) -> bool:
        """Whether the draft is the checkpoint's own MTP layer."""
        own = (None, self.args.model_path)
        return self.speculates and self.args.speculative_draft_model_path in own


def listed(names: tuple[str, ...], *, most: int = 2) -> str:
    """``a, b and 5 more``."""
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
