"""Where a model is, and on which device it will be served; checked before anything is started."""

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

from equipoise.evals.errors import UsageError
from equipoise.quant.variants import Device

__all__ = ["has_chat_template", "resolve_device", "resolve_model"]

# Folders that a make target prepares first.
_PREPARED = {"smollm2": "make smollm2", "weights": "make weights"}


def resolve_model(path: str) -> str:
    """The directory (or hub id) that a server gets as its model path.

    Parameters
    ----------
    path : str
        ``embedded:NAME``, ``hub:ORG/NAME``, or a checkpoint directory.

    Raises
    ------
    UsageError
        No such embedded model, no such directory, or a directory that is not a checkpoint.
    """
    scheme, _, name = path.partition(":")
    if scheme == "hub" and name:
        return name
    if scheme == "embedded" and name:
        root = Path(str(files("equipoise.tasks.embedded")))
        known = sorted(p.parent.name for p in root.glob("*/config.json"))
        if name not in known:  # a name, never a path out of the package
            raise UsageError(f"no embedded model {name!r}; there are: {', '.join(known)}")
        return str((root / name).resolve())
    folder = Path(path).expanduser()
    if not folder.is_dir():
        how = _PREPARED.get(folder.name) or _PREPARED.get(folder.parent.name)
        how = how or "give a checkpoint directory, embedded:NAME or hub:ORG/NAME"
        raise UsageError(f"model directory {path} does not exist; {how}")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UsageError(f"{folder}/config.json cannot be read ({e}); give a checkpoint directory") from e
    if not isinstance(config, dict):
        raise UsageError(f"{folder}/config.json is not a JSON object; give a checkpoint directory")
    if not any(folder.glob("*.safetensors")):
        raise UsageError(f"{folder} has no *.safetensors; convert the checkpoint to safetensors first")
    return str(folder.resolve())


def has_chat_template(folder: str) -> bool | None:
    """Whether a checkpoint directory brings a chat template; None for a hub id (not known here)."""
    path = Path(folder)
    if not path.is_dir():
        return None
    if (path / "chat_template.jinja").is_file() or (path / "chat_template.json").is_file():
        return True
    try:
        config = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool(config.get("chat_template"))


def resolve_device(name: str) -> Device:
    """``cpu`` or ``cuda``; "auto" takes an NVIDIA GPU where ``nvidia-smi`` lists one."""
    if name == "cpu":
        return "cpu"
    if name == "cuda":
        return "cuda"
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return "cpu"
    done = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=20, check=False)
    return "cuda" if "GPU" in done.stdout else "cpu"
