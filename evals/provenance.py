"""Where a result comes from: code, packages, hardware, servers. Written before the first request.

No host names, user names or home directories, and no secrets: the record travels with reports.
"""

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

__all__ = [
    "collect_provenance",
    "describe_hardware",
    "describe_source",
    "package_versions",
    "without_secrets",
]

#: Whatever shaped the questions, the answers or the numbers; asked by name, never imported.
PACKAGES = (
    "equipoise", "numpy", "scipy", "aiohttp", "uvloop", "pyarrow", "datasets", "pydantic", "rich",
    "torch", "transformers", "safetensors", "compressed-tensors", "triton", "sglang", "lm-eval",
)  # fmt: skip
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
# Facts whose names look secret and are not: counts, sizes and paths of tokenizers.
_PLAIN_NAME = re.compile(r"tokenizer|tokens|token_(map|ids?)|num_token|^authors?$|keyfile$", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET_FLAG = re.compile(r"(--[\w-]*(?:key|secret|password|auth)[\w-]*[= ]+)\S+", re.IGNORECASE)
_COMMAND_TIMEOUT_S = 10


def collect_provenance(
    *,
    plan_hash: str,
    servers: Mapping[str, Mapping[str, Any]] | None = None,
    hashes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Everything about this run that a reader needs in order to repeat it.

    Parameters
    ----------
    plan_hash : str
        Of the registered plan.
    servers : mapping, optional
        What each arm's server said about itself; secrets are removed here.
    hashes : mapping, optional
        Of datasets, tasks, checkpoints and chat templates, by name.

    Returns
    -------
    dict
        JSON values only.
    """
    return {
        "plan_hash": plan_hash,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "source": describe_source(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": package_versions(PACKAGES),
        "hardware": describe_hardware(),
        "servers": {arm: without_secrets(facts) for arm, facts in (servers or {}).items()},
        "hashes": dict(hashes or {}),
    }


def describe_source(directory: Path | None = None) -> dict[str, Any]:
    """The git commit this code was run from, and whether files differ from it; empty for a wheel."""
    directory = Path(__file__).resolve().parent if directory is None else directory
    # The commit of whatever repository a wheel happens to be installed in would be a wrong answer.
    if _output(["git", "ls-files", "--error-unmatch", "."], directory) is None:
        return {}
    commit = _output(["git", "rev-parse", "HEAD"], directory)
    status = _output(["git", "status", "--porcelain", "--untracked-files=no"], directory)
    if commit is None or status is None:
        return {}
    return {"commit": commit, "dirty": bool(status)}


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of the installed ones among ``names``."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe_hardware() -> dict[str, Any]:
    """CPU, memory and GPUs of this machine."""
    gpus = _output(
        ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], Path("/")
    )
    return {
        "cpu": _cpu_model(),
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": gpus.splitlines() if gpus else [],
    }


def without_secrets(value: Any) -> Any:
    """A copy of JSON values without keys and passwords, and with ``~`` for the home directory."""
    if isinstance(value, Mapping):
        return {
            str(name): "***"
            if _is_secret(str(name)) and item not in (None, "", False)
            else without_secrets(item)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_secrets(item) for item in _without_flag_values(value)]
    if isinstance(value, str):
        home = os.path.expanduser("~")
        value = _USER_INFO.sub("***@", _SECRET_FLAG.sub(r"\1***", value))
        return re.sub(rf"{re.escape(home)}(?=/|$)", "~", value) if home not in ("/", "~") else value
    return value


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None and _PLAIN_NAME.search(name) is None


def _without_flag_values(words: Sequence[Any]) -> list[Any]:
    """A command line as a list has its secrets in the word after the flag."""
    kept: list[Any] = []
    for word in words:
        flag = kept[-1] if kept else None
        if isinstance(flag, str) and flag.startswith("--") and "=" not in flag and _is_secret(flag):
            word = "***"  # noqa: PLW2901
        kept.append(word)
    return kept


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _output(command: Sequence[str], directory: Path) -> str | None:
    """What a command prints, or None where there is no such command or it fails."""
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
