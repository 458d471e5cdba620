"""``equipoise quant geometry``: a model's dimensions and what a token costs in its KV cache."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from equipoise.evals.cli.shell import console, errors_exit
from equipoise.quant.geometry import (
    Geometry,
    find_builtin,
    kv_bytes_per_token,
    kv_layer_bytes,
    kv_layouts_of,
    load_geometry,
)

__all__ = ["Row", "geometry", "model_geometry", "print_table"]

Row = tuple[str, ...]


def model_geometry(model: str) -> tuple[Geometry, Path | None]:
    """The geometry that MODEL names, and its checkpoint folder if it has weights on this disk.

    MODEL is ``embedded:NAME``, a folder, a config.json, or the name of a built-in model.
    """
    if model.startswith("embedded:"):
        from equipoise.evals.experiment.checkpoints import resolve_model

        model = resolve_model(model)
    path = Path(model).expanduser()
    if path.exists():
        folder = path if path.is_dir() and any(path.glob("*.safetensors")) else None
        return load_geometry(path), folder
    return find_builtin(model.removeprefix("hub:")), None


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
def geometry(*, model: str, as_json: bool) -> None:
    """A model's dimensions, and the bytes that one token takes in each layout of the KV cache.

    MODEL is a built-in name (kimi-k2.6, glm-4.6, ...), embedded:NAME, or a folder with config.json.
    """
    g, _ = model_geometry(model)
    layouts = {
        name: {
            "bytes_per_token": kv_bytes_per_token(g, name),
            "layers": [asdict(row) for row in kv_layer_bytes(g, name)],
        }
        for name in kv_layouts_of(g)
    }
    if as_json:
        click.echo(json.dumps(asdict(g) | {"layouts": layouts}, indent=2, allow_nan=False))
        return
    print_table(f"{g.name}: {g.architecture or g.family}", _dimensions(g))
    rows: list[Row] = [("layout", "bytes per token", "")]
    for name in layouts:
        parts = [f"{r.layers} x {r.bytes_per_token:,} {r.kind}" for r in kv_layer_bytes(g, name)]
        rows.append((name, f"{kv_bytes_per_token(g, name):,}", " + ".join(parts)))
    print_table("", rows)
    console().print(Text(f"\nSource: {g.source}"), soft_wrap=True)


def _dimensions(g: Geometry) -> list[Row]:
    rows: list[Row] = [
        ("layers", f"{g.num_layers}", f"{g.dense_layers} with a dense MLP, {g.moe_layers} with experts"),
        ("hidden size", f"{g.hidden_size:,}", f"dense MLP {g.intermediate_size:,}"),
    ]
    if g.is_latent:
        query = f"query {g.q_lora_rank:,}" if g.q_lora_rank else "query not compressed"
        rows += [
            ("attention", g.attention.upper(), f"{g.heads} heads, {query}, latent {g.kv_lora_rank}"),
            ("", "", f"head {g.qk_nope_head_dim} + RoPE {g.qk_rope_head_dim}, value {g.v_head_dim}"),
        ]
    else:
        heads = f"{g.heads} query heads, {g.kv_heads} KV heads of {g.head_dim}"
        rows.append(("attention", g.attention.upper(), heads))
    if g.index_layers:
        rows.append(
            (
                "indexer",
                f"{len(g.index_layers)}",
                f"of {g.num_layers} layers; {g.index_heads} heads of {g.index_head_dim}, "
                f"top {g.index_topk:,}",
            )
        )
    if g.experts:
        rows.append(
            (
                "experts",
                f"{g.experts}",
                f"{g.experts_per_token} a token, width {g.moe_intermediate_size:,}; shared "
                f"{g.shared_intermediate_size:,}",
            )
        )
    rows += [
        ("positions", f"{g.max_position:,}", f"vocabulary {g.vocab_size:,}"),
        ("MTP layers", f"{g.num_mtp_layers}", ""),
        ("weights", g.weights, ""),
    ]
    return rows


def print_table(title: str, rows: Sequence[Row], *, right: bool = False) -> None:
    """Columns of text: the first to the left, the second (or all) to the right."""
    out = console()
    out.print(Text(title))
    table = Table(show_header=False, box=None, pad_edge=False)
    for i in range(max(map(len, rows))):
        table.add_column(overflow="fold", justify="right" if right or i == 1 else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)
