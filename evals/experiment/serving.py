"""Servers of a plan's arms: which are needed, how they are launched, which arm asks which."""

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from equipoise.evals.backends.openai_http import OpenAIHttp
from equipoise.evals.backends.replay import Replay
from equipoise.evals.backends.sglang_http import SglangHttp
from equipoise.evals.backends.sglang_server import SglangServer, choose_port
from equipoise.evals.errors import ServerError, UsageError
from equipoise.evals.experiment.arm_checkpoint import ArmCheckpoint, arm_checkpoint, require_same_model
from equipoise.evals.experiment.checkpoints import resolve_device, resolve_model
from equipoise.evals.plan import ArmSpec, Plan
from equipoise.evals.types import Backend
from equipoise.quant.kv_layouts import unservable
from equipoise.quant.sglang.dense_mla import DENSE_FLAG, dense_limit
from equipoise.quant.variants import (
    Device,
    KVVariant,
    LaunchCommand,
    ServeOptions,
    build_launch_command,
    find_variant,
    resolve_server_python,
)

__all__ = [
    "ServerSpec",
    "as_shell",
    "backend_of",
    "journal_in",
    "launch_for",
    "serve_until_interrupted",
    "servers_of",
    "variant_named",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One server that we start, and the arms that ask it.

    ``own_checkpoint``: it serves other weights than the model's path, as the plan says.
    """

    model: str
    variant: KVVariant
    launch: LaunchCommand
    arms: tuple[ArmSpec, ...]
    checkpoint: ArmCheckpoint | None = None
    own_checkpoint: bool = False

    @property
    def name(self) -> str:
        """Of this server among those of its model; a file may be called so."""
        if not self.own_checkpoint or self.checkpoint is None:
            return self.variant.name
        return f"{self.checkpoint.weights}{self.checkpoint.suffix}+{self.variant.name}"

    @property
    def label(self) -> str:
        return f"{self.model}@{self.name}"

    @property
    def arm(self) -> str:
        """What it stores, for reports: ``w=fp8-block,kv=bf16``."""
        dense = "+attention=dense-mla" if DENSE_FLAG in self.launch.argv else ""
        return self.variant.arm + dense + (self.checkpoint.suffix if self.checkpoint else "")

    @property
    def control(self) -> str:
        """The planted fault, in the cache or in the checkpoint; "" for an honest server."""
        return self.variant.control or (self.checkpoint.planted if self.checkpoint else "")


def variant_named(name: str) -> KVVariant:
    """The KV-cache variant of this name.

    Raises
    ------
    UsageError
        There is none; the known ones are listed.
    """
    try:
        return find_variant(name)
    except ValueError as e:
        raise UsageError(str(e)) from e


def servers_of(plan: Plan, model: str, model_path: str, device: Device) -> list[ServerSpec]:
    """The servers that one model's arms need: one for each variant, whatever the number of arms.

    Raises
    ------
    UsageError
        An unknown variant, one that this model or device cannot have, or no Python with sglang.
    """
    own = next((m.checkpoints for m in plan.models if m.name == model), {})
    by_server: dict[tuple[str, str], list[ArmSpec]] = {}
    for arm in plan.arms:
        if arm.variant is not None:
            by_server.setdefault((arm.variant, own.get(arm.name, "")), []).append(arm)
    taken: list[int] = []
    specs = []
    # All servers of a plan get one size, or the arms would differ in it.
    most = max((len(a) for a in by_server.values()), default=0)
    for (name, path), arms in by_server.items():
        taken.append(choose_port(avoid=taken))
        try:
            checkpoint = _checkpoint_of(model_path, path)
            options = ServeOptions(
                served_model_name=model + checkpoint.suffix,
                max_total_tokens=plan.runner.concurrency * most * plan.runner.context_tokens
                if device == "cpu"
                else None,
                max_running_requests=plan.runner.concurrency * most if device == "cpu" else None,
            )
            variant = replace(variant_named(name), weights=checkpoint.weights)
            launch = _launch(checkpoint.path, variant, port=taken[-1], device=device, options=options)
        except UsageError as e:
            raise UsageError(f"plan {plan.name!r}, model {model!r}, arm {arms[0].name!r}: {e}") from e
        specs.append(
            ServerSpec(
                model=model,
                variant=variant,
                launch=launch,
                arms=tuple(arms),
                checkpoint=checkpoint,
                own_checkpoint=bool(path),
            )
        )
    return specs


def _checkpoint_of(model_path: str, own: str) -> ArmCheckpoint:
    """What a server loads: the model's own path, or other weights of it, checked to be the same model."""
    if not own:
        return arm_checkpoint(model_path)
    path = resolve_model(own)
    if not (Path(path).is_dir() and Path(model_path).is_dir()):
        raise UsageError(f"{own} cannot be compared with {model_path}: both must be folders on this disk")
    require_same_model(Path(path), Path(model_path))
    return arm_checkpoint(path)


def backend_of(plan: Plan, arm: ArmSpec, *, url: str | None, run_id: str) -> Backend:
    """The client of one arm; ``url`` is that of the server we started for it, if we did."""
    if arm.replay is not None:
        return Replay(journal_in(Path(arm.replay)))
    target = url or arm.url
    assert target is not None, "an arm has a server, a URL or a replay"
    if arm.api == "openai":
        assert arm.served_model is not None, "checked by the plan"
        return OpenAIHttp(
            target,
            model=arm.served_model,
            api_key_env=arm.api_key_env,
            timeout_s=plan.runner.timeout_s,
            stream=arm.stream,
        )
    return SglangHttp(
        target,
        cache_salt=f"{run_id}/{arm.name}",
        timeout_s=plan.runner.timeout_s,
        api_key_env=arm.api_key_env,
    )


def journal_in(path: Path) -> Path:
    """The journal of a run directory, or the journal itself."""
    return path / "journal.sqlite" if path.is_dir() else path


def launch_for(what: str, *, port: int, device: str) -> LaunchCommand:
    """The command behind ``equipoise serve MODEL@VARIANT``.

    Raises
    ------
    UsageError
        Not of that form, unknown model or variant.
    """
    model, at, variant = what.rpartition("@")
    if not at or not model:
        raise UsageError(f"{what!r} is not MODEL@VARIANT; e.g. embedded:kimi_tiny@fp8_e4m3")
    path = resolve_model(model)
    # SGLang reads what follows a colon as the name of an adapter, and refuses it.
    served = model.replace(":", "-") + arm_checkpoint(path).suffix
    options = ServeOptions(served_model_name=served)
    return _launch(path, variant_named(variant), port=port, device=resolve_device(device), options=options)


def as_shell(launch: LaunchCommand) -> str:
    """The command as one would type it, its environment in front."""
    env = [f"{k}={shlex.quote(v)}" for k, v in launch.env.items()]
    return " \\\n  ".join([" ".join(env), *map(shlex.quote, launch.argv)])


async def serve_until_interrupted(launch: LaunchCommand, console: Console) -> None:
    """Start a server and keep it until the task is cancelled (Ctrl-C) or the server dies."""
    log = Path(f"sglang-{launch.port}.log")
    server = SglangServer(label=launch.url, command=launch, log_path=log)
    with console.status(f"starting {launch.url} (log: {log})"):
        await server.start()
    try:
        console.print(f"ready: {launch.url}  (Ctrl-C ends it; log: {log})")
        while server.alive():  # noqa: ASYNC110  a process gives no event
            await asyncio.sleep(0.5)
        tail = "\n".join(server.log_tail())
        raise ServerError(f"the server at {launch.url} died; the end of its log ({log}):\n{tail}")
    finally:
        await server.stop()


def _launch(
    model_path: str, variant: KVVariant, *, port: int, device: Device, options: ServeOptions
) -> LaunchCommand:
    layout = variant.layout if device == "cpu" else None
    if layout is not None and (reason := unservable(layout, model_path)):
        raise UsageError(f"variant {variant.name}: {reason}")
    if device == "cpu" and dense_limit(model_path) is not None:
        options = replace(options, extra_args=(*options.extra_args, DENSE_FLAG))
    try:
        python = resolve_server_python(os.environ)
        return build_launch_command(
            model_path, variant, port=port, device=device, python=python, options=options
        )
    except (ValueError, FileNotFoundError) as e:
        raise UsageError(str(e)) from e


def labels(specs: Sequence[ServerSpec]) -> Mapping[str, str]:
    """Arm name -> what its server stores, for reports."""
    return {arm.name: spec.arm for spec in specs for arm in spec.arms}
