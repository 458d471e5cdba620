"""What an arm serves, as facts and their digest: which runs are attempts at the same thing.

No URL, port, host, path of this machine or secret goes in, so the same candidate has the same digest
wherever it is served from. Facts in which the same candidate may legitimately differ between runs
(sizes by free memory, logging, ...) are left out: listed is what makes a candidate, not what does not.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.evals.experiment.checkpoint_digest import SMALL_BYTES, checkpoint_digest
from equipoise.evals.experiment.serving import ServerSpec, journal_in
from equipoise.evals.journal import Journal
from equipoise.evals.plan import ArmSpec
from equipoise.evals.sample_json import canonical_json

__all__ = ["ATTEMPT_RECORD", "IDENTITY_FACTS", "Served", "served"]

ATTEMPT_RECORD = "attempt"  # in a run's journal: what was registered in the ledger

#: Of an endpoint's own facts, those that make it the candidate it is.
IDENTITY_FACTS = (
    "version", "model_path", "revision", "weight_version", "load_format", "dtype", "quantization",
    "kv_cache_dtype", "kv_layout", "quantization_param_path",
    "attention_backend", "prefill_attention_backend", "decode_attention_backend", "moe_runner_backend",
    "speculative_algorithm", "speculative_draft_model_path",
    "json_model_override_args", "lora_paths", "model_impl", "tp_size", "dp_size", "ep_size", "pp_size",
    "root", "owned_by",  # of an OpenAI-compatible endpoint's model list
)  # fmt: skip

# Flags of our own servers that say where and how large, not what.
_PLACE_FLAGS = {
    "--model-path", "--host", "--port", "--served-model-name", "--max-total-tokens", "--max-running-requests",
    "--mem-fraction-static", "--log-level", "--log-level-http", "--sleep-on-idle",
}  # fmt: skip
_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What an arm serves. ``facts`` is what the digest is of, for a reader."""

    digest: str  # "served:", "endpoint:" or "recorded:" and a SHA-256
    facts: Mapping[str, Any]


def served(
    model: str,
    arm: ArmSpec,
    spec: ServerSpec | None,
    endpoint: Mapping[str, Any] | None,
    checkpoints: dict[str, str],
) -> Served | None:
    """What this arm of this model serves; None where it is not known before its server is up.

    Parameters
    ----------
    spec : ServerSpec or None
        The server that we start for the arm, if we do.
    endpoint : mapping or None
        What the arm's endpoint said about itself, once it was asked.
    checkpoints : dict
        Digests by model path; those that are missing are added, so that each is read once.

    Raises
    ------
    UsageError
        The checkpoint cannot be read.
    JournalError
        The recorded run cannot be read.
    """
    if arm.replay is not None:
        return _recorded(model, arm.name, Path(arm.replay))
    if spec is not None:
        facts = _launched(spec, checkpoints)
        return None if facts is None else _served("served", facts)
    if endpoint is None:
        return None
    named = arm.served_model or endpoint.get("served_model_name")
    facts = {k: _place_free(endpoint[k]) for k in IDENTITY_FACTS if endpoint.get(k) is not None}
    return _served("endpoint", facts | {"api": arm.api, "served_model": _place_free(named)})


def _served(kind: str, facts: Mapping[str, Any]) -> Served:
    sha256 = hashlib.sha256(canonical_json(facts).encode("ascii")).hexdigest()
    return Served(digest=f"{kind}:{sha256}", facts=facts)


def _launched(spec: ServerSpec, checkpoints: dict[str, str]) -> dict[str, Any] | None:
    python, _, *words = spec.launch.argv
    flags = dict(word.partition("=")[::2] for word in words)
    model = flags["--model-path"]
    if model not in checkpoints:
        found = _checkpoint(model)
        if found is None:
            return None
        checkpoints[model] = found
    return {
        "checkpoint": checkpoints[model],
        "arguments": sorted(
            [name, _content(value)] for name, value in flags.items() if name not in _PLACE_FLAGS
        ),
        "sglang": _sglang_version(python),
    }


def _checkpoint(model: str) -> str | None:
    """By content; a hub id by its name and the revision in the local cache, None until it is there."""
    if Path(model).is_dir():
        return checkpoint_digest(Path(model))
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    try:
        reference = cache / f"models--{model.replace('/', '--')}" / "refs" / "main"
        revision = reference.read_text(encoding="ascii")[:64].strip()
    except (OSError, UnicodeDecodeError):
        return None
    return f"hub:{model}@{revision}"


def _content(value: str) -> str:
    """An argument that names a file stands for what is in it."""
    path = Path(value)
    if not path.is_absolute():
        return value
    if path.is_file() and path.stat().st_size <= SMALL_BYTES:
        return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    return path.name


def _sglang_version(python: str) -> str:
    """Of the environment that serves; empty if it has none installed as a package."""
    code = "import importlib.metadata as m; print(m.version('sglang'))"
    try:
        done = subprocess.run(
            [python, "-P", "-c", code], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _place_free(value: Any) -> Any:
    """Without the directories of the machine that serves: an absolute path stands for its last name."""
    if isinstance(value, str) and value.startswith("/"):
        return Path(value).name
    return json.loads(json.dumps(value))


def _recorded(model: str, arm: str, path: Path) -> Served:
    """A replay is a look at what the recorded run served; if that run does not say, at its answers."""
    with Journal.read(journal_in(path)) as journal:
        known = [v for _, _, v in journal.records(ATTEMPT_RECORD) if v.get("model") == model]
        digest = known[-1].get("arms", {}).get(arm) if known else None
        if isinstance(digest, str):
            return Served(digest=digest, facts={"recorded": digest})
        return _served(
            "recorded", {"answers": journal.digest(answers_only=True, model=model, arm=arm), "arm": arm}
        )
