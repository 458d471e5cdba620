"""``equipoise quant lossless``: what lossless BF16 compression saves."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from equipoise.evals.cli.quant import needs_modules
from equipoise.evals.cli.shell import console, errors_exit

if TYPE_CHECKING:
    from equipoise.quant.lossless.savings import Saving
    from equipoise.quant.lossless.stat import LosslessStat

__all__ = ["lossless"]


@click.group()
def lossless() -> None:
    """Lossless compression of BF16 tensors (quant convert --format bf16-lossless)."""


@lossless.command()
@click.argument("model", metavar="MODEL")
@click.option("--all", "everything", is_flag=True, help="Encode every block, not a sample.")
@click.option("--weights", metavar="FORMAT", help="Of a built-in model: stored in this format.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
@needs_modules("zstandard", "xxhash")
def stat(*, model: str, everything: bool, weights: str | None, as_json: bool) -> None:
    """Exponent entropy, its limit and the ratio reached, by kind of tensor; the share of MODEL it saves.

    MODEL is a folder, a safetensors file (lossless or not), embedded:NAME, or the name of a built-in model.
    """
    from equipoise.evals.cli.quant_geometry import model_geometry
    from equipoise.evals.experiment.checkpoints import resolve_model
    from equipoise.quant.lossless.savings import predict_saving
    from equipoise.quant.lossless.stat import lossless_stat

    path = Path(resolve_model(model) if model.startswith("embedded:") else model).expanduser()
    if path.exists():
        most = None if everything else 8
        found = lossless_stat(path, tensors_per_kind=most, blocks_per_tensor=most and 4)
        if as_json:
            click.echo(json.dumps(_as_json(found), indent=2, allow_nan=False))
        else:
            _print_stat(found)
        return
    geometry, _ = model_geometry(model)
    saving = predict_saving(geometry, weights)
    if as_json:
        click.echo(json.dumps(asdict(saving) | {"saved_share": saving.saved_share}, indent=2))
    else:
        _print_saving(saving)


def _as_json(found: "LosslessStat") -> dict[str, object]:
    kinds = [asdict(k) | {"limit": k.limit, "stored": k.stored} for k in found.kinds]
    return {
        "path": str(found.path),
        "total_bytes": found.total_bytes,
        "bf16_bytes": found.bf16_bytes,
        "predicted_saved_share": found.predicted_saved_share,
        "stored_saved_share": found.stored_saved_share,
        "kinds": kinds,
    }


def _print_stat(found: "LosslessStat") -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("count", "dtype", "MB", "sampled", "H, bits", "(H+8)/16", "predicted", "stored"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("tensors", overflow="fold")
    for k in found.kinds:
        table.add_row(
            f"{k.tensors:,}",
            k.dtype,
            f"{k.nbytes / 1e6:,.2f}",
            f"{k.sampled_bytes / k.nbytes:.0%}" if k.sampled_bytes else "",
            *("" if v is None else f"{v:.3f}" for v in (k.exponent_bits, k.limit, k.predicted, k.stored)),
            Text(k.kind),
        )
    out = console()
    out.print(table)
    share = found.bf16_bytes / found.total_bytes if found.total_bytes else 0.0
    lines = [
        f"\n{found.bf16_bytes:,} of {found.total_bytes:,} bytes are BF16 ({share:.1%}); lossless BF16 is "
        f"predicted to save {found.predicted_saved_share:.1%} of the whole."
    ]
    if found.stored_saved_share is not None:
        lines.append(f"These files are lossless ones, and save {found.stored_saved_share:.1%}.")
    lines.append(
        "The limit holds for exponents coded alone, with signs and mantissas as they are: rows of different "
        "scale, constants and scales without signs go below it."
    )
    for line in lines:
        out.print(Text(line), soft_wrap=True)


def _print_saving(saving: "Saving") -> None:
    def share(part: float) -> str:
        return f"{part / 1e9:,.1f} GB, {part / saving.total_bytes:.1%}"

    lines = [
        f"{saving.model}, weights stored as {saving.weights}: {saving.total_bytes / 1e9:,.1f} GB",
        f"BF16 weights: {share(saving.bf16_weight_bytes)}; saves {share(saving.saved_weight_bytes)}",
    ]
    if saving.bf16_scale_bytes:
        lines.append(
            f"BF16 scales: {share(saving.bf16_scale_bytes)}; saves {share(saving.saved_scale_bytes)}"
        )
    lines.append(
        f"Lossless BF16 would save about {saving.saved_share:.1%} of the checkpoint. Ratios are those of "
        "weights like Gaussian noise; stat on the checkpoint itself measures them."
    )
    for line in lines:
        console().print(Text(line), soft_wrap=True)
