"""A run in Trackio: configuration, metrics, and the report's files as an artifact."""

import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.tracked_run import TrackedRun, library, said

__all__ = ["log_trackio"]

_REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID", "TRACKIO_WEBHOOK_URL")


def log_trackio(run: TrackedRun, *, project: str, directory: Path | None, force: bool) -> str:
    """Log the run into ``project``; where it is.

    ``directory`` keeps everything there, and nothing is sent. Without it Trackio's own settings decide, such
    as TRACKIO_SPACE_ID; what a space holds cannot be looked up, so that a run may be there twice.

    Raises
    ------
    UsageError
        Trackio is not installed or refuses, or the run was logged before (without ``force``).
    """
    if directory is not None:
        if "trackio" in sys.modules:  # it reads its folder once, when it is imported
            raise UsageError("Trackio is in use in this process already; export in a process of its own")
        directory.mkdir(parents=True, exist_ok=True)
        os.environ["TRACKIO_DIR"] = os.fspath(directory.resolve())
        for name in _REMOTE:
            os.environ.pop(name, None)
    trackio = library("trackio", "trackio")
    local = not any(os.environ.get(name) for name in _REMOTE[:2])
    with redirect_stdout(sys.stderr):
        earlier = _logged_before(trackio, project, run.name) if local else []
        if earlier and not force:
            raise UsageError(
                f"run {run.name} is in Trackio's project {project!r} already; replace it with --force"
            )
        try:
            trackio.init(
                project=project,
                name=run.name,
                config={**run.params, **{f"tag.{name}": value for name, value in run.tags.items()}},
                resume="never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            trackio.log(dict(run.metrics))
            _log_files(trackio, run)
            trackio.finish()
        except ValueError as e:
            raise UsageError(f"Trackio: {said(e)}") from e
        for old in earlier:
            old.delete()
    return f"Trackio project {project}, run {run.name}" + (f" in {directory}" if directory else "")


def _logged_before(trackio: Any, project: str, name: str) -> list[Any]:
    try:
        return [found for found in trackio.Api().runs(project) if found.name == name]
    except ValueError as e:
        if "does not exist" not in str(e):
            raise UsageError(f"Trackio: {said(e)}") from e
        return []  # the project is new


def _log_files(trackio: Any, run: TrackedRun) -> None:
    with tempfile.TemporaryDirectory() as folder:
        artifact = trackio.Artifact(f"report-{run.run_id}", type="report")
        for name, text in run.files.items():
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            artifact.add_file(path)
        trackio.log_artifact(artifact)
