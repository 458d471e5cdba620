"""Attention backends: what each does with KV scales, and what it refuses."""

from dataclasses import dataclass
from typing import Literal

from equipoise.quant.kv_layouts import KV_LAYOUT_KINDS

__all__ = ["DETERMINISTIC", "NOT_DETERMINISTIC_MLA", "ScaleUse", "forced_page_size", "scale_use"]

JsonUse = Literal["applied", "crash", "unread"]

DETERMINISTIC = ("fa3", "fa4", "flashinfer", "triton")
NOT_DETERMINISTIC_MLA = ("flashinfer",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUse:
    """How a backend uses the scales of a flat FP8 cache.

    ``reads_bf16``: it multiplies when reading whatever the cache's dtype. ``json``: what becomes of the
    Python float that ``--quantization-param-path`` leaves. ``e5m2_unread``: not multiplied for fp8_e5m2.
    """

    on_write: bool
    on_read: bool
    rules: tuple[str, ...]
    reads_bf16: bool = False
    json: JsonUse = "applied"
    json_rule: str = "json-float"
    e5m2_unread: bool = False


_FA = ScaleUse(
    on_write=True, on_read=True, rules=("gqa-write", "gqa-fa3"), json="crash", json_rule="json-fa3"
)
_NATIVE = ScaleUse(on_write=False, on_read=False, rules=("torch-native-unscaled",), json="unread")
_UNSCALED_MLA = ScaleUse(on_write=False, on_read=False, rules=("mla-write", "mla-fa3"))
_TRTLLM_MLA = ScaleUse(on_write=False, on_read=True, rules=("mla-write", "mla-trtllm"))

_GQA: dict[str, ScaleUse] = {
    "fa3": _FA,
    "fa4": _FA,
    "flashinfer": ScaleUse(
        on_write=True,
        on_read=True,
        rules=("gqa-write", "gqa-flashinfer"),
        reads_bf16=True,
        json="unread",
        json_rule="json-flashinfer",
    ),
    "triton": ScaleUse(
        on_write=True,
        on_read=True,
        rules=("gqa-write", "gqa-triton"),
        reads_bf16=True,
        json="crash",
        json_rule="json-triton",
    ),
    "trtllm_mha": ScaleUse(
        on_write=True, on_read=True, rules=("gqa-write", "gqa-trtllm-mha"), e5m2_unread=True
    ),
    "hpc_ops": ScaleUse(
        on_write=True, on_read=True, rules=("gqa-hpc-ops",), json="crash", json_rule="json-hpc-ops"
    ),
    "torch_native": _NATIVE,
    "flex_attention": _NATIVE,
}
_MLA: dict[str, ScaleUse] = {
    "fa3": _UNSCALED_MLA,
    "fa4": _UNSCALED_MLA,
    "flashinfer": ScaleUse(on_write=False, on_read=False, rules=("mla-write", "mla-flashinfer")),
    "flashmla": ScaleUse(on_write=False, on_read=True, rules=("mla-write", "mla-flashmla")),
    "trtllm_mla": _TRTLLM_MLA,
    "cutedsl_mla": _TRTLLM_MLA,
    "triton": ScaleUse(on_write=False, on_read=True, rules=("mla-write", "mla-triton")),
    "torch_native": _NATIVE,
    "flex_attention": _NATIVE,
}
_REFERENCE = ScaleUse(on_write=True, on_read=True, rules=("cpu-reference",))
_LAYOUT = ScaleUse(on_write=False, on_read=False, rules=("cpu-layout",))
_DSA_OWN = ScaleUse(on_write=False, on_read=False, rules=("dsa-own-scales",))
_DSA_RAW = ScaleUse(on_write=False, on_read=True, rules=("mla-write", "dsa-trtllm"))


def scale_use(backend: str, *, latent: bool, layout: str, on_cpu: bool) -> ScaleUse | None:
    """How ``backend`` uses scales; None where that is not known here."""
    if on_cpu:
        return _LAYOUT if layout in KV_LAYOUT_KINDS else _REFERENCE
    if backend in ("dsa", "nsa"):
        return _DSA_OWN if layout == "ds656" else _DSA_RAW
    return (_MLA if latent else _GQA).get(backend)


def forced_page_size(
    *, attention: str, prefill: str, decode: str, whole: str, asked: int | None, latent: bool, sm100: bool
) -> tuple[int, str]:
    """The page size a server ends up with, and the backend that forced it ("" if none did).

    ``attention`` is "gqa", "mla" or "dsa"; ``whole`` is ``--attention-backend`` as resolved. Adjustments
    follow one another, as in SGLang.
    """
    size = asked
    by = ""
    if attention == "dsa" and whole in ("dsa", "nsa"):
        return 64, "dsa"
    if "flashmla" in (whole, decode) and size != 64:
        size, by = 64, "flashmla"
    for name, allowed in (
        ("trtllm_mla", (32, 64)),
        ("cutedsl_mla", (32, 64)),
        ("trtllm_mha", (16, 32, 64, 128)),
    ):
        users = (whole, decode) if name == "trtllm_mla" else (whole, decode, prefill)
        if name in users and size not in allowed:
            size, by = 64, name
    if "hpc_ops" in (whole, decode, prefill) and size != 64:
        size, by = 64, "hpc_ops"
    if not latent and sm100 and "fa4" in (whole, decode, prefill) and size != 128:
        size, by = 128, "fa4"
    return size or 1, by
