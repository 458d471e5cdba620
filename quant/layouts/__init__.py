"""Layouts of the KV cache: encode, decode, bytes. Needs torch.

>>> layout = make_layout("ds656", CacheShape.mla())
>>> encoded = layout.encode(latent, rope)      # [tokens, 512], [tokens, 64]
>>> encoded.counts["latent"].flushed_to_zero
>>> latent, rope = layout.decode(encoded)      # float32
>>> (rows,) = layout.pack(encoded.values)      # uint8 [tokens, 656]
"""

from collections.abc import Callable, Sequence

from equipoise.quant.layouts.base import CacheShape, Encoded, KVLayout
from equipoise.quant.layouts.bf16 import Bf16
from equipoise.quant.layouts.gqa import GqaPerHead, GqaPerTensor
from equipoise.quant.layouts.mla import Ds656, Flat576
from equipoise.quant.layouts.rows import Field

__all__ = [
    "LAYOUT_NAMES",
    "Bf16",
    "CacheShape",
    "Ds656",
    "Encoded",
    "Field",
    "Flat576",
    "GqaPerHead",
    "GqaPerTensor",
    "KVLayout",
    "make_layout",
]

# Name -> from the shape and the static scales of a layer (those of the first part, of the second).
_BUILDERS: dict[str, Callable[[CacheShape, Sequence[float], Sequence[float]], KVLayout]] = {
    "bf16": lambda shape, first, second: Bf16(shape),
    "fp8_flat": lambda shape, first, second: (
        Flat576(shape, scale=float(first[0]))
        if shape.attention == "mla"
        else GqaPerTensor(shape, k_scale=float(first[0]), v_scale=float(second[0]))
    ),
    "fp8_per_head": lambda shape, first, second: GqaPerHead(shape, k_scales=first, v_scales=second),
    "fp8_per_token_head": lambda shape, first, second: GqaPerHead(shape, scales="token"),
    "ds656": lambda shape, first, second: Ds656(shape, scales="fp32"),
    "ds656_pow2": lambda shape, first, second: Ds656(shape, scales="pow2"),
}
LAYOUT_NAMES = tuple(_BUILDERS)


def make_layout(
    name: str,
    shape: CacheShape,
    *,
    first_scales: Sequence[float] = (1.0,),
    second_scales: Sequence[float] = (1.0,),
) -> KVLayout:
    """The layout of this name for a layer's cache.

    Parameters
    ----------
    first_scales, second_scales : sequence of float
        Of K and V where the layout has static scales: one number (fp8_flat; MLA has only the
        first) or one for each head (fp8_per_head).

    Raises
    ------
    ValueError
        Unknown name, or a layout that cannot hold such a cache.
    """
    if name not in _BUILDERS:
        raise ValueError(f"unknown KV layout {name!r}: choose one of {', '.join(LAYOUT_NAMES)}")
    return _BUILDERS[name](shape, first_scales, second_scales)
