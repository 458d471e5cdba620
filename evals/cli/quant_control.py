"""``equipoise quant control``: a checkpoint with a planted fault, for servers that have no plugin of ours."""

import shlex
from pathlib import Path

import click

from equipoise.evals.cli.shell import errors_exit
from equipoise.evals.errors import UsageError
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.control_strengths import MEASURED, named_strength
from equipoise.quant.controls import CONTROL_KINDS, ControlKind, ControlPlan, ControlSpec, plan_control
from equipoise.quant.overlay import write_overlay
from equipoise.quant.production import find_arm
from equipoise.quant.production_launch import production_launch

__all__ = ["control"]


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--kind", type=click.Choice(CONTROL_KINDS), required=True, help="Which fault.")
@click.option("--strength", metavar="X|gross|mild", required=True, help="Its size.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to create.")
@click.option("--layers", metavar="all|0-3,7", help="[default: those that lie in one shard]")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the noise.")
@click.option("--link", type=click.Choice(["symbolic", "hard"]), default="symbolic", show_default=True)
@click.option("--variant", metavar="VARIANT", help="Production variant whose launch command to show.")
@click.option("--gpu", default="H200", show_default=True, help="Of that command.")
@errors_exit
def control(
    *,
    model: str,
    kind: ControlKind,
    strength: str,
    out: Path,
    layers: str | None,
    seed: int,
    link: str,
    variant: str | None,
    gpu: str,
) -> None:
    """Make a positive control of MODEL: the same checkpoint, but its cached K is off by a known amount.

    MODEL (a folder or embedded:NAME) is only read: one shard, or only the config, is written anew, the rest
    is linked. noise-k: every channel of K is off by this relative RMS. scale-k: K times X. rope-theta: the
    rotary base times X. "gross" and "mild" are strengths measured on the embedded models, with every layer
    changed; a large model may need more, and the run itself says whether it noticed.
    """
    from equipoise.evals.experiment.checkpoints import resolve_model

    arm = find_arm(variant) if variant else None
    folder = Path(resolve_model(model))
    if not folder.is_dir():
        raise UsageError(f"{model} is not on this disk; download it, then give its folder")
    checkpoint = Checkpoint.open(folder)
    spec = ControlSpec(
        kind=kind,
        strength=_strength(strength, kind, checkpoint),
        layers=_layers(layers),
        seed=seed,
    )
    plan = plan_control(checkpoint, spec)
    click.echo(_announced(plan), err=True)
    if strength in MEASURED and len(plan.layers) < plan.geometry.num_layers:
        click.echo(
            f"{strength} was measured with every layer changed; here it does less: see --layers", err=True
        )
    written = write_overlay(plan, out, link="hard" if link == "hard" else "symbolic")
    for name, rms in list(written.relative_rms.items())[:3]:
        click.echo(f"{name}: changed by {rms:.4g} of its RMS, as stored", err=True)
    click.echo(
        f"wrote {out}: {', '.join(written.written)} of its own, {written.linked} files linked", err=True
    )
    fault = f"control={spec.label}"
    if arm is not None:
        launch = production_launch(
            arm,
            gpu.upper(),
            model_path=str(out.resolve()),
            served_model_name=f"{arm.model.name}+{arm.arm}+{fault}",
            extra_args=(f"--weight-version={fault}",),
        )
        click.echo(launch.as_shell)
        return
    click.echo(f"equipoise serve {shlex.quote(str(out.resolve()))}@bf16 --print")
    click.echo(
        "on another server take the baseline's own command with "
        f"--model-path={shlex.quote(str(out.resolve()))} --served-model-name=NAME+{fault} "
        f"--weight-version={fault}",
        err=True,
    )


def _strength(text: str, kind: ControlKind, checkpoint: Checkpoint) -> float:
    from equipoise.quant.geometry import load_geometry

    if text in MEASURED:
        return named_strength(text, kind, latent=load_geometry(checkpoint.config).is_latent)
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--strength {text!r} is neither a number nor {' or '.join(MEASURED)}") from None


def _layers(text: str | None) -> tuple[int, ...] | None:
    """``all`` is (), ``0-3,7`` is (0, 1, 2, 3, 7)."""
    if text is None:
        return None
    if text == "all":
        return ()
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (not dash or last.isdecimal()) and len(part) < 16):
            raise UsageError(f"--layers {text!r} is not of the form all or 0-3,7")
        found += range(int(first), int(last or first) + 1)
        if len(found) > 10_000 or not found:
            raise UsageError(f"--layers {text!r}: no model has these layers")
    return tuple(found)


def _announced(plan: ControlPlan) -> str:
    layers = plan.layers
    count = f"{len(layers)} of {plan.geometry.num_layers} layers"
    if not plan.shards:
        return f"{plan.spec.label}: {count}, config only"
    return (
        f"{plan.spec.label}: {count}, {len(plan.shards)} shards ({plan.copied_bytes / 1e9:.3g} GB) are copied"
    )
