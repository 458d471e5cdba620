"""``equipoise quant variants``: the production models' named arms."""

import json
from typing import Any

import click
from rich.text import Text

from equipoise.evals.cli.shell import console, errors_exit
from equipoise.evals.errors import UsageError
from equipoise.quant.production import PRODUCTION_ARMS, PRODUCTION_GPUS, ProductionArm
from equipoise.quant.production_launch import production_launch

__all__ = ["variants"]


@click.command()
@click.argument("model", metavar="[MODEL]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output, with commands and notes.")
@errors_exit
def variants(*, model: str | None, as_json: bool) -> None:
    """The production models' variants; `equipoise serve VARIANT --print` gives the command of one."""
    arms = [a for a in PRODUCTION_ARMS.values() if model is None or a.model.name == model]
    if not arms:
        known = ", ".join(dict.fromkeys(a.model.name for a in PRODUCTION_ARMS.values()))
        raise UsageError(f"no production model {model!r}; there are {known}")
    if as_json:
        click.echo(json.dumps([_as_dict(a) for a in arms], indent=2, allow_nan=False))
        return
    click.echo("GPUs, and the KV tokens that fit beside the weights:\n")
    rows: list[tuple[str, ...]] = [("variant", *PRODUCTION_GPUS)]
    rows += [(a.name, *(_cell(a, gpu) for gpu in PRODUCTION_GPUS)) for a in arms if not a.refused]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for name, *cells in rows:  # not a rich table: a name is never broken, so that it can be copied
        aligned = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        click.echo("  ".join((f"{name:<{widths[0]}}", *aligned)))
    _print_refused([a for a in arms if a.refused])
    console().print(
        Text("\nequipoise serve VARIANT --print [--gpu B200]: the command, its checkpoint and what to know.")
    )


def _cell(arm: ProductionArm, gpu: str) -> str:
    if gpu not in arm.gpus:
        return "-"
    launch = production_launch(arm, gpu)
    return f"{launch.tp}, {launch.capacity.tokens:,}"


def _print_refused(arms: list[ProductionArm]) -> None:
    """A line for each reason: which KV caches of which models."""
    for reason in dict.fromkeys(a.refused for a in arms):
        found = [a for a in arms if a.refused == reason]
        caches = ", ".join(dict.fromkeys(a.arm.partition(",")[2] for a in found))
        models = ", ".join(dict.fromkeys(a.model.name for a in found))
        console().print(Text(f"\nRefused: {caches} ({models}): {reason}."))


def _as_dict(arm: ProductionArm) -> dict[str, Any]:
    return {
        "name": arm.name,
        "model": arm.model.name,
        "weights": arm.release.weights,
        "kv_cache_dtype": arm.kv_cache_dtype,
        "decode_kv_cache_dtype": arm.decode_kv_cache_dtype,
        "checkpoint": arm.release.hub,
        "refused": arm.refused,
        "launches": {gpu: _launch_as_dict(arm, gpu) for gpu in arm.gpus},
    }


def _launch_as_dict(arm: ProductionArm, gpu: str) -> dict[str, Any]:
    launch = production_launch(arm, gpu)
    c = launch.capacity
    return {
        "tp": launch.tp,
        "nodes": launch.nodes,
        "command": list(launch.argv),
        "layout": launch.layout,
        "bytes_per_token": c.bytes_per_token,
        "weight_bytes": c.weight_bytes,
        "tokens": c.tokens,
        "static_fraction": c.deployment.static_fraction,
        "notes": list(launch.notes),
    }
