"""``equipoise quant capacity``: tokens and requests that fit, without a GPU."""

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from equipoise.evals.cli.numbers import SIZE, Number
from equipoise.evals.cli.quant_geometry import Row, model_geometry, print_table
from equipoise.evals.cli.shell import console, errors_exit
from equipoise.evals.errors import UsageError
from equipoise.quant.capacity import DEFAULT_STATIC_FRACTION, NOT_MODELLED, Capacity, Deployment, capacity_of
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.geometry import KV_LAYOUTS, Geometry, kv_layout_for
from equipoise.quant.gpus import find_gpu
from equipoise.quant.weights_size import (
    WEIGHT_FORMATS,
    Component,
    checkpoint_components,
    weight_components,
)

__all__ = ["capacity"]

_CONTEXTS = (1024, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
_CONCURRENCIES = (1, 8, 16, 32, 64, 128, 256)


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--gpu", metavar="NAME|MIB", default="H200", show_default=True, help="H100, H200, B200 ...")
@click.option("--tp", type=SIZE, default=8, show_default=True, metavar="N", help="GPUs (tensor parallel).")
@click.option("--dp-attention", is_flag=True, help="Data-parallel attention: requests are split, not heads.")
@click.option("--dp-size", type=SIZE, metavar="N", help="Its groups.  [default: as many as GPUs]")
@click.option(
    "--kv-dtype", default="bf16", show_default=True, metavar="DTYPE", help="bf16, fp8_e4m3 or fp8_e5m2."
)
@click.option("--layout", type=click.Choice(KV_LAYOUTS), help="Of the cache.  [default: what SGLang uses]")
@click.option("--weights", type=click.Choice(WEIGHT_FORMATS), help="[default: as the checkpoint stores them]")
@click.option(
    "--static-fraction",
    type=Number("a fraction of the memory", 0, 1),
    default=DEFAULT_STATIC_FRACTION,
    show_default=True,
    metavar="F",
    help="Share of each GPU for weights and KV cache (--mem-fraction-static).",
)
@click.option("--page-size", type=SIZE, default=1, show_default=True, metavar="N", help="Tokens in a page.")
@click.option("--context", type=SIZE, metavar="N", help="Tokens of one request, prompt and answer.")
@click.option("--concurrency", type=SIZE, metavar="N", help="Requests at a time.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
def capacity(
    *,
    model: str,
    gpu: str,
    tp: int,
    dp_attention: bool,
    dp_size: int | None,
    kv_dtype: str,
    layout: str | None,
    weights: str | None,
    static_fraction: float,
    page_size: int,
    context: int | None,
    concurrency: int | None,
    as_json: bool,
) -> None:
    """How many tokens of KV cache a server holds, and how many requests.

    MODEL is a built-in name (kimi-k2.6, glm-4.6, ...), embedded:NAME, or a folder with config.json; where
    the folder has the weights, their sizes are read, not computed.
    """
    if dp_size is not None and not dp_attention:
        raise UsageError("--dp-size is of --dp-attention: add it")
    chosen, folder = model_geometry(model)
    if context is not None and context > chosen.max_position:
        raise UsageError(
            f"--context {context:,} is longer than the {chosen.max_position:,} positions of {chosen.name}; "
            "lower it"
        )
    if kv_dtype == "auto":
        raise UsageError("--kv-dtype auto depends on the checkpoint: see `equipoise quant explain`")
    device = find_gpu(gpu)
    suggested = kv_layout_for(chosen, kv_dtype, sm_major=device.sm_major)
    if layout is not None and (layout == "bf16") != (suggested == "bf16"):
        raise UsageError(f"--layout {layout} does not store --kv-dtype {kv_dtype}; change one of them")
    if folder is not None and weights is None:
        components, counted = checkpoint_components(Checkpoint.open(folder), chosen), "headers"
    else:
        components, counted = weight_components(chosen, weights), "geometry"
    found = capacity_of(
        chosen,
        components,
        Deployment(
            gpu=device,
            tp=tp,
            dp=(dp_size or tp) if dp_attention else 1,
            static_fraction=static_fraction,
            page_size=page_size,
        ),
        layout or suggested,
    )
    if as_json:
        result = _capacity_json(found, components, counted, kv_dtype, weights)
        click.echo(json.dumps(result | _asked(found, context, concurrency), indent=2, allow_nan=False))
        return
    stored = weights or chosen.weights
    _print_capacity(found, kv_dtype, _stored_as(components, stored, counted))
    _print_asked(found, context, concurrency)
    _print_not_modelled(static_fraction)


def _capacity_json(
    c: Capacity, components: Sequence[Component], counted: str, kv_dtype: str, weights: str | None
) -> dict[str, Any]:
    d = c.deployment
    return {
        "model": c.geometry.name,
        "source": c.geometry.source,
        "attention": c.geometry.attention,
        "gpu": d.gpu.name,
        "gpu_memory_bytes": d.gpu.memory_bytes,
        "gpu_source": d.gpu.source,
        "tp": d.tp,
        "dp": d.dp,
        "static_fraction": d.static_fraction,
        "page_size": d.page_size,
        "kv_cache_dtype": kv_dtype,
        "layout": c.layout,
        "weights": weights or c.geometry.weights,
        "weights_counted_from": counted,
        "weight_bytes": c.weight_bytes,
        "weight_bytes_per_gpu": c.weight_bytes_per_gpu,
        "components": [
            {"name": x.name, "num_bytes": x.num_bytes, "split": x.split, "loaded": x.loaded}
            for x in components
        ],
        "bytes_per_token": c.bytes_per_token,
        "bytes_per_token_per_gpu": c.bytes_per_token_per_gpu,
        "pool_bytes_per_gpu": c.pool_bytes_per_gpu,
        "weights_fit": c.weights_fit,
        "tokens": c.tokens,
        "tokens_per_group": c.tokens_per_group,
        "requests_at_context": {str(n): c.requests_at(n) for n in _contexts(c.geometry)},
        "longest_context_at_concurrency": {str(n): c.longest_context(n) for n in _CONCURRENCIES},
        "not_modelled": list(NOT_MODELLED),
    }


def _asked(c: Capacity, context: int | None, concurrency: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if context is not None:
        found |= {"context": context, "requests": c.requests_at(context)}
    if concurrency is not None:
        found |= {"concurrency": concurrency, "longest_context": c.longest_context(concurrency)}
    if context is not None and concurrency is not None:
        found["fits"] = c.requests_at(context) >= concurrency
    return found


def _contexts(g: Geometry) -> list[int]:
    return sorted({n for n in _CONTEXTS if n < g.max_position} | {g.max_position})


def _gb(num_bytes: int) -> str:
    """Decimal, as disks and checkpoints are sold: GB, or smaller units for small models."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(num_bytes) >= 0.1 * size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes} B"


def _stored_as(components: Sequence[Component], weights: str, counted: str) -> str:
    if counted == "headers":
        return "from the headers of its files"
    quantized = sum(c.num_bytes for c in components if c.loaded and c.quantized)
    if not quantized:
        return "bf16"
    rest = sum(c.num_bytes for c in components if c.loaded and not c.quantized)
    what = "experts" if all(c.name == "routed experts" for c in components if c.quantized) else "layers"
    return f"{weights} {what} {_gb(quantized)} + bf16 rest {_gb(rest)}"


def _sharing(c: Capacity) -> str:
    d, g = c.deployment, c.geometry
    if d.attention_tp == 1:
        return "one GPU a group" if d.tp > 1 else ""
    if g.is_latent:
        return "whole on each GPU"
    stored = max(1, g.kv_heads // d.attention_tp)
    return f"{stored} of {g.kv_heads} KV heads on each GPU"


def _print_capacity(c: Capacity, kv_dtype: str, stored: str) -> None:
    d, g = c.deployment, c.geometry
    groups = f", {d.dp} groups (data-parallel attention)" if d.dp > 1 else ""
    rows: list[Row] = [
        ("weights", _gb(c.weight_bytes), stored),
        ("  on each GPU", _gb(c.weight_bytes_per_gpu), f"of {_gb(d.gpu.memory_bytes)}"),
        (
            "KV pool on each GPU",
            _gb(c.pool_bytes_per_gpu),
            f"{d.static_fraction:g} x {_gb(d.gpu.memory_bytes)} - {_gb(c.weight_bytes_per_gpu)}",
        ),
        ("bytes per token", f"{c.bytes_per_token:,}", f"layout {c.layout}"),
        ("  on each GPU", f"{c.bytes_per_token_per_gpu:,}", _sharing(c)),
        (
            "tokens",
            f"{c.tokens:,}",
            f"{d.dp} x {c.tokens_per_group:,}" if d.dp > 1 else "",
        ),
    ]
    print_table(f"{g.name} on {d.tp} x {d.gpu.name}, KV cache {kv_dtype}{groups}", rows)
    if not c.weights_fit:
        console().print(
            Text("The weights do not fit: more GPUs (--tp), larger ones, or a smaller weight format.")
        )


def _print_asked(c: Capacity, context: int | None, concurrency: int | None) -> None:
    if not c.weights_fit:
        return
    asked = _asked(c, context, concurrency)
    rows: list[Row] = []
    if context is not None:
        rows.append((f"requests of {context:,} tokens", f"{asked['requests']:,}"))
    if concurrency is not None:
        rows.append((f"longest of {concurrency:,} requests", f"{asked['longest_context']:,} tokens"))
    if "fits" in asked:
        rows.append(
            (f"{concurrency:,} requests of {context:,} tokens", "fit" if asked["fits"] else "do not fit")
        )
    if rows:
        print_table("", rows)
        return
    header: Row = ("tokens each", "requests that fit", "requests", "longest that fits")
    pairs = [(f"{n:,}", f"{c.requests_at(n):,}") for n in _contexts(c.geometry)]
    others = [(f"{n:,}", f"{c.longest_context(n):,}") for n in _CONCURRENCIES]
    count = max(len(pairs), len(others))
    pairs += [("", "")] * (count - len(pairs))
    others += [("", "")] * (count - len(others))
    both: list[Row] = [(*a, *b) for a, b in zip(pairs, others, strict=True)]
    print_table("", [header, *both], right=True)


def _print_not_modelled(static_fraction: float) -> None:
    out = console()
    out.print()
    if static_fraction == DEFAULT_STATIC_FRACTION:
        out.print(
            Text(
                f"Static fraction {static_fraction:g}: fitted to the published capacity of Kimi K2.6 on 8 x "
                "H200. SGLang chooses its own where --mem-fraction-static is not given."
            )
        )
    out.print(Text("Not modelled: " + "; ".join(NOT_MODELLED) + "."))
