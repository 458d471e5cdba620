"""Which task a plan's entry means: one of ours by name, a file of the user's, or one of lm-eval's."""

import difflib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from equipoise.evals.errors import PlanError, UsageError
from equipoise.evals.plan import TaskSpec
from equipoise.evals.types import Task
from equipoise.tasks.options import with_options
from equipoise.tasks.registry import TASKS
from equipoise.tasks.user_task import load_python_task, load_toml_task

__all__ = ["task_of"]

ALLOW_CODE = "EQUIPOISE_TASK_CODE"


def task_of(spec: TaskSpec, registry: Mapping[str, Task] = TASKS) -> Task:
    """The task of a plan's entry, with its options.

    Raises
    ------
    PlanError
        An unknown name (with the nearest one), a file that changed since the plan was registered, Python
        that is not allowed to run, or options that the task does not have.
    """
    try:
        return with_options(_named(spec, registry), spec.options)
    except PlanError:
        raise
    except UsageError as e:
        raise PlanError(str(e)) from e


def _named(spec: TaskSpec, registry: Mapping[str, Task]) -> Task:
    if spec.file is not None:
        return _from_file(spec, Path(spec.file))
    if spec.lm_eval is not None:
        return _from_lm_eval(spec.name, spec.lm_eval)
    task = registry.get(spec.name)
    if task is None:
        near = difflib.get_close_matches(spec.name, registry, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known tasks: {', '.join(registry)}"
        raise PlanError(f"unknown task {spec.name!r}; {hint}")
    return task


def _from_file(spec: TaskSpec, path: Path) -> Task:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as e:
        raise PlanError(f"task {spec.name!r}: cannot read {path} ({e.strerror})") from e
    if spec.file_sha256 is not None and spec.file_sha256 != digest:
        raise PlanError(
            f"task {spec.name!r}: {path} is not the registered file (SHA-256 {digest[:12]}, registered "
            f"{spec.file_sha256[:12]}); restore it, or start a new run"
        )
    if path.suffix == ".toml":
        return load_toml_task(path, name=spec.name)
    if path.suffix in (".yaml", ".yml"):
        return _from_lm_eval(spec.name, str(path))
    if path.suffix != ".py":
        raise PlanError(f"task {spec.name!r}: {path} is neither TOML, YAML (lm-eval) nor Python")
    if os.environ.get(ALLOW_CODE) != "allow":
        raise PlanError(
            f"task {spec.name!r} is Python code ({path}) that would run on this machine; read it, then set "
            f"{ALLOW_CODE}=allow"
        )
    return load_python_task(path, name=spec.name)


def _from_lm_eval(name: str, source: str) -> Task:
    from equipoise.tasks.lm_eval_task import load_lm_eval_task  # an optional package

    return load_lm_eval_task(source, name=name)
