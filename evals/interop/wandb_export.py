"""A run in Weights & Biases: configuration, metrics, tags, and the report's files as an artifact."""

import os
from pathlib import Path

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.tracked_run import TrackedRun, library, said

__all__ = ["log_wandb"]

#: What W&B would gather about this machine, this folder and this terminal has nothing to do with the run.
QUIET = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
MAX_TAG_CHARS = 64


def log_wandb(run: TrackedRun, *, project: str, directory: Path | None, force: bool) -> str:
    """Log the run into ``project``; where it is.

    ``directory`` keeps everything there, offline (``wandb sync`` sends it later). Without it W&B's own
    settings decide, such as WANDB_MODE and WANDB_ENTITY; credentials are W&B's own too.

    Raises
    ------
    UsageError
        W&B is not installed or refuses, or the run was logged before (without ``force``).
    """
    wandb = library("wandb", "wandb")
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        earlier = sorted((directory / "wandb").glob(f"offline-run-*-{run.run_id}"))
        if earlier and not force:
            raise UsageError(f"run {run.name} is there already ({earlier[0]}); log it again with --force")
    settings = {name: value for name, value in QUIET.items() if name in wandb.Settings.model_fields}
    try:
        logged = wandb.init(
            project=project,
            name=run.name,
            id=run.run_id,
            resume="allow" if force else "never",
            mode=None if directory is None else "offline",
            dir=None if directory is None else os.fspath(directory),
            config={**run.params, **{f"tag.{name}": value for name, value in run.tags.items()}},
            tags=[run.tags["verdict"][:MAX_TAG_CHARS]] if "verdict" in run.tags else [],
            settings=wandb.Settings(**settings),
        )
        failed = True
        try:
            logged.log(dict(run.metrics))
            artifact = wandb.Artifact(f"report-{run.run_id}", type="report")
            for name, text in run.files.items():
                with artifact.new_file(name, mode="w", encoding="utf-8") as out:
                    out.write(text)
            logged.log_artifact(artifact)
            failed = False
        finally:
            logged.finish(exit_code=int(failed))
    except wandb.Error as e:
        raise UsageError(f"W&B: {said(e)}") from e
    return f"W&B project {project}, run {run.run_id}" + (f" in {directory} (offline)" if directory else "")
