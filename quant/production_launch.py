"""The command that serves a production arm on GPUs, and the KV tokens it should then report.

Nothing is started here: the commands are SGLang's own launcher with SGLang's own flags, to be run where the
GPUs are. The static fraction is given explicitly, so that the capacity is that of this very command.
"""

import shlex
from dataclasses import dataclass

from equipoise.evals.errors import UsageError
from equipoise.quant.capacity import DEFAULT_STATIC_FRACTION, Capacity, Deployment, capacity_of
from equipoise.quant.geometry import find_builtin, kv_layout_for
from equipoise.quant.gpus import find_gpu
from equipoise.quant.production import PRODUCTION_GPUS, ProductionArm
from equipoise.quant.variants import SGLANG_VERSION
from equipoise.quant.weights_size import weight_components

__all__ = ["GPUS_PER_NODE", "ProductionLaunch", "described", "production_launch"]

GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionLaunch:
    """One arm on one kind of GPU. ``argv`` has ``$NODE_RANK`` and ``$HEAD_NODE`` where it takes two nodes."""

    arm: ProductionArm
    gpu: str
    tp: int
    argv: tuple[str, ...]
    layout: str
    capacity: Capacity
    pinned: str  # hub id, with @revision if one was given

    @property
    def nodes(self) -> int:
        return -(-self.tp // GPUS_PER_NODE)

    @property
    def as_shell(self) -> str:
        """As one would type it, a flag a line."""
        # Shell variables of a two-node launch stay bare.
        words = [w if "$" in w else shlex.quote(w) for w in self.argv]
        return " \\\n  ".join([" ".join(words[:3]), *words[3:]])

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before believing a result, most specific first."""
        arm = self.arm
        found = [*arm.notes, *arm.release.notes, *arm.model.notes]
        if "@" not in self.pinned:
            found.append(
                "the checkpoint is not pinned: give --revision COMMIT, one of "
                f"https://huggingface.co/{arm.release.hub}/commits"
            )
        return tuple(found)


def production_launch(
    arm: ProductionArm,
    gpu: str,
    *,
    port: int = 30000,
    host: str = "0.0.0.0",  # noqa: S104  a production server is asked from elsewhere
    revision: str | None = None,
    model_path: str | None = None,
    served_model_name: str | None = None,
    extra_args: tuple[str, ...] = (),
) -> ProductionLaunch:
    """The launch of ``arm`` on ``gpu``.

    Parameters
    ----------
    gpu : str
        One of `PRODUCTION_GPUS`.
    revision : str or None
        Commit of the hub repository, to pin the checkpoint.
    model_path : str or None
        A folder to serve instead of the hub's checkpoint: an overlay with a planted fault.
    served_model_name : str or None
        None is ``MODEL+ARM``: an answer says by itself which arm gave it.

    Raises
    ------
    UsageError
        SGLang refuses the arm, the GPU is not known here, or the release does not run on it.
    """
    if gpu not in PRODUCTION_GPUS:
        raise UsageError(f"--gpu {gpu} is not known here; choose {' or '.join(PRODUCTION_GPUS)}")
    if arm.refused:
        raise UsageError(f"{arm.name}: {arm.refused}")
    if gpu not in arm.release.tp:
        raise UsageError(f"{arm.name} does not run on {gpu}: {'; '.join(arm.release.notes)}")
    if not 0 < port < 65536:
        raise UsageError(f"port {port} is not in 1..65535")
    release, model, tp = arm.release, arm.model, arm.release.tp[gpu]
    argv = ["python", "-m", "sglang.launch_server", f"--model-path={model_path or release.hub}"]
    if revision and model_path is None:
        argv.append(f"--revision={revision}")
    argv += [
        f"--served-model-name={served_model_name or f'{model.name}+{arm.arm}'}",
        f"--host={host}",
        f"--port={port}",
        f"--tp-size={tp}",
    ]
    if tp > GPUS_PER_NODE:
        argv += [
            f"--nnodes={tp // GPUS_PER_NODE}",
            "--node-rank=$NODE_RANK",
            "--dist-init-addr=$HEAD_NODE:5000",
        ]
    argv.append(f"--kv-cache-dtype={arm.kv_cache_dtype}")
    backend = model.backend[gpu]
    if backend:
        argv.append(f"--attention-backend={backend}")
    argv += [f"--mem-fraction-static={DEFAULT_STATIC_FRACTION:g}", *release.args, *model.args, *extra_args]
    device, geometry = find_gpu(gpu), find_builtin(model.name)
    layout = kv_layout_for(geometry, arm.kv_cache_dtype, sm_major=device.sm_major)
    # The backends of TensorRT-LLM and the DSA ones set the page size themselves.
    page_tokens = 64 if geometry.attention == "dsa" or backend.startswith("trtllm") else 1
    return ProductionLaunch(
        arm=arm,
        gpu=gpu,
        tp=tp,
        argv=tuple(argv),
        layout=layout,
        capacity=capacity_of(
            geometry,
            weight_components(geometry, release.weights),
            Deployment(gpu=device, tp=tp, page_size=page_tokens),
            layout,
        ),
        pinned=model_path or (f"{release.hub}@{revision}" if revision else release.hub),
    )


def described(launch: ProductionLaunch) -> list[str]:
    """What the command serves, a line a fact: layout, expected capacity, notes."""
    c = launch.capacity
    nodes = f" on {launch.nodes} nodes" if launch.nodes > 1 else ""
    return [
        f"{launch.arm.name} on {launch.tp} x {launch.gpu}{nodes}, SGLang {SGLANG_VERSION}",
        f"checkpoint {launch.pinned}",
        f"KV layout {launch.layout}: {c.bytes_per_token:,} bytes a token "
        f"({c.bytes_per_token_per_gpu:,} on each GPU); expected {c.tokens:,} tokens at static fraction "
        f"{c.deployment.static_fraction:g}",
        *launch.notes,
    ]
