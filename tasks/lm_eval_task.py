"""A task of lm-eval as one of ours."""

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Task

__all__ = ["load_lm_eval_task"]


def load_lm_eval_task(source: str, *, name: str) -> Task:
    """The lm-eval task ``source`` (a name, or the path of a YAML file), under ``name``."""
    raise UsageError(f"task {name!r}: {source}: lm-eval tasks cannot be read yet")
