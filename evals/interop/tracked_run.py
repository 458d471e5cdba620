"""A run for an experiment tracker, in plain values: what all of them take."""

import importlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from equipoise.evals.errors import UsageError

__all__ = ["USER_INFO", "TrackedRun", "library", "metric_names", "said"]

MAX_NAME_CHARS = 200  # the shortest limit on a metric's name is mlflow's 250
MAX_VALUE_CHARS = 500  # of a parameter or a tag, which every version of every tracker takes
#: Name and password in a URL.
USER_INFO = re.compile(r"(?<=://)[^/\s@]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What is logged. ``metrics`` are finite numbers, the rest is text; ``files`` are the artifacts' texts.

    ``run_id`` is the same for every export of one run: letters and digits.
    """

    name: str
    run_id: str
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    started_unix_s: float = 0.0
    finished_unix_s: float = 0.0


def metric_names(metrics: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """Metrics under names that every tracker takes; undefined ones are left out, no two share a name."""
    found: dict[str, float] = {}
    for name, value in metrics:
        if value is None or not math.isfinite(value):
            continue
        taken = re.sub(r"[^A-Za-z0-9_. /-]+", "_", name)[:MAX_NAME_CHARS].strip("/. ")
        if taken in found or not taken:
            taken = f"{taken}_{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        found[taken] = float(value)
    return found


def library(name: str, extra: str) -> Any:
    """An optional package.

    Raises
    ------
    UsageError
        It is not installed; the message says how to get it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is not None and e.name.partition(".")[0] != name:
            raise
        raise UsageError(f"{name} is not installed: pip install 'equipoise[{extra}]'") from e


def said(error: Exception) -> str:
    """What a tracker's exception says, in one line, without a password that is part of a URL."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return USER_INFO.sub("***@", first)[:MAX_VALUE_CHARS]
