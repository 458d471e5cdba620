"""The table's lines: what was resolved, and by which rules."""

from equipoise.quant.explain.context import Context
from equipoise.quant.explain.model import Row
from equipoise.quant.geometry import Geometry, kv_bytes_per_token, kv_layouts_of
from equipoise.quant.kv_layouts import KV_LAYOUT_KINDS

__all__ = ["bytes_per_token", "rows_of", "with_kernel"]


def bytes_per_token(geometry: Geometry, layout: str) -> int | None:
    """Of all layers, stored once; None for a layout whose size is not described here."""
    known = {"float16": "bf16", "ds656_pow2": "ds656"}.get(layout, layout)
    return kv_bytes_per_token(geometry, known) if known in kv_layouts_of(geometry) else None


def with_kernel(backend: str, kernel: str) -> str:
    """``dsa (trtllm)``."""
    return f"{backend} ({kernel})" if kernel else backend


def rows_of(context: Context) -> tuple[Row, ...]:
    """KV dtype, layout, backends, page size, and a planted fault."""
    r, g = context.resolved, context.geometry
    size = bytes_per_token(g, r.layout)
    backend_rules = (*r.backend_rules, *(("dsa-kernels",) if r.dsa_decode else ()))
    described = {
        "ds656": "656 bytes a token and layer: latent fp8 with 4 scales, RoPE key bf16",
        "fp8_flat": f"{g.kv_lora_rank + g.qk_rope_head_dim} fp8 values a token and layer"
        if g.is_latent
        else "K and V in fp8",
    }.get(
        r.layout,
        f"{g.kv_lora_rank + g.qk_rope_head_dim} values a token and layer" if g.is_latent else "K and V",
    )
    if kind := KV_LAYOUT_KINDS.get(r.layout):
        described = kind.description
    rows = [
        Row(what="KV dtype", value=r.kv_cache_dtype, why=r.why_dtype, rules=(r.dtype_rule,)),
        Row(
            what="layout",
            value=r.layout,
            why=described + (f"; {size:,} bytes a token" if size is not None else ""),
            rules=(r.layout_rule,),
        ),
        Row(what="prefill", value=with_kernel(r.prefill, r.dsa_prefill), rules=backend_rules),
        Row(what="decode", value=with_kernel(r.decode, r.dsa_decode), rules=backend_rules),
        Row(
            what="page size",
            value=str(r.page_size),
            why=f"forced by {r.page_size_by}" if r.page_size_by else "",
            rules=({"dsa": "backend-dsa", "fa4": "page-size-fa4"}.get(r.page_size_by, "page-size"),)
            if r.page_size_by
            else (),
        ),
    ]
    if context.args.kv_control:
        rows.append(Row(what="planted fault", value=context.args.kv_control, why="in a bf16 cache"))
    return tuple(rows)
