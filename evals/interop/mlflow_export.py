"""A run in MLflow: parameters, metrics, tags, and the report's files as artifacts."""

import os
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.tracked_run import TrackedRun, library, said

__all__ = ["log_mlflow"]

ID_TAG = "equipoise.run_id"


def log_mlflow(run: TrackedRun, *, project: str, directory: Path | None, force: bool) -> str:
    """Log the run into the experiment ``project``; where it is.

    ``directory`` keeps everything there (SQLite and files). Without it MLflow's own settings decide, such as
    MLFLOW_TRACKING_URI; credentials are MLflow's own too.

    Raises
    ------
    UsageError
        MLflow is not installed or refuses, or the run was logged before (without ``force``).
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = library("mlflow", "mlflow")
    uri = None
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{directory.resolve() / 'mlflow.db'}"
    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = _experiment(client, project, directory)
        earlier = client.search_runs([experiment], filter_string=f"tags.`{ID_TAG}` = '{run.run_id}'")
        if earlier and not force:
            raise UsageError(
                f"run {run.name} is in MLflow's experiment {project!r} already ({earlier[0].info.run_id}); "
                "replace it with --force"
            )
        logged = _log(client, mlflow.entities, experiment, run)
        for old in earlier:
            client.delete_run(old.info.run_id)
    except mlflow.exceptions.MlflowException as e:
        raise UsageError(f"MLflow: {said(e)}") from e
    return f"MLflow experiment {project}, run {logged}" + (f" in {directory}" if directory else "")


def _experiment(client: Any, name: str, directory: Path | None) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    artifacts = None if directory is None else (directory.resolve() / "artifacts").as_uri()
    return str(client.create_experiment(name, artifact_location=artifacts))


def _log(client: Any, entities: Any, experiment: str, run: TrackedRun) -> str:
    started, finished = (round(1000 * s) for s in (run.started_unix_s, run.finished_unix_s))
    tags = {**run.tags, ID_TAG: run.run_id}
    run_id: str = client.create_run(experiment, start_time=started, run_name=run.name, tags=tags).info.run_id
    status = "FAILED"  # until everything is there
    try:
        metrics = [entities.Metric(name, value, finished, 0) for name, value in run.metrics.items()]
        params = [entities.Param(name, value) for name, value in run.params.items()]
        for start in range(0, max(len(metrics), len(params)), 100):  # what one request may hold
            client.log_batch(run_id, metrics=metrics[start : start + 100], params=params[start : start + 100])
        for name, text in run.files.items():
            client.log_text(run_id, text, name)
        status = "FINISHED"
    finally:
        client.set_terminated(run_id, status=status, end_time=finished)
    return run_id
