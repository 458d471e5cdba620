"""The checkpoint that an arm serves: how its weights are stored, whether a fault is planted in it, and
whether it is the same model as the baseline's but for that.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.evals.errors import ParityError
from equipoise.quant.checkpoint import MAX_CONFIG_BYTES, Checkpoint, read_json
from equipoise.quant.geometry.stored import stored_weights
from equipoise.quant.overlay import expected_config, planted_fault
from equipoise.quant.rounded import rounding_of

__all__ = ["CHECKPOINT_FACTS", "ArmCheckpoint", "arm_checkpoint", "require_same_model"]

#: The server facts in which an arm with a checkpoint of its own differs, and no others.
CHECKPOINT_FACTS = ("model_path", "tokenizer_path")

# Keys of a config.json that say how weights are stored, not what they compute.
_STORAGE_KEYS = (
    "quantization_config", "compression_config", "torch_dtype", "dtype", "transformers_version",
    "_name_or_path",
)  # fmt: skip
# Whatever else the answers depend on: tokenizer, templates, sampling defaults, remote code.
_TEXT_FILES = re.compile(
    r"(tokenizer.*|special_tokens_map|added_tokens|vocab|generation_config|preprocessor_config)\.json"
    r"|chat_template\..*|merges\.txt|.*\.(model|tiktoken|py)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCheckpoint:
    """``weights`` as in an arm's name; ``planted`` is the fault of an overlay, "" for an honest checkpoint.

    ``note`` says what serving it does not show; "" where it is served as it is stored.
    """

    path: str
    weights: str = "bf16"
    planted: str = ""
    note: str = ""

    @property
    def suffix(self) -> str:
        """Behind the served model's name: ``+control=noise-k-0.5``."""
        return f"+control={self.planted}" if self.planted else ""


def arm_checkpoint(path: str) -> ArmCheckpoint:
    """What a resolved model path holds; of a hub id nothing is known here, and it counts as BF16.

    Raises
    ------
    CheckpointError
        Its config, or our record in it, cannot be read.
    """
    folder = Path(path)
    if not folder.is_dir():
        return ArmCheckpoint(path=path)
    config = read_json(folder / "config.json", max_bytes=MAX_CONFIG_BYTES)
    rounding = rounding_of(folder)
    return ArmCheckpoint(
        path=path,
        weights=rounding.weights if rounding else stored_weights(config, _text(config)),
        planted=planted_fault(folder),
        note=rounding.note if rounding else "",
    )


def require_same_model(own: Path, base: Path) -> None:
    """Refuse a checkpoint that differs from the baseline's in more than its weights, or its planted fault.

    Raises
    ------
    ParityError
        Config, tokenizer, templates, code or the tensors' names and shapes differ; names the first.
    CheckpointError
        One of them cannot be read.
    """
    ours, theirs = Checkpoint.open(own), Checkpoint.open(base)
    expected = expected_config(own, theirs.config) if planted_fault(own) else theirs.config
    mine, wanted = (_computed(c) for c in (ours.config, expected))
    for key in sorted(mine.keys() | wanted.keys()):
        if mine.get(key) != wanted.get(key):
            raise _other(own, base, f"config.json: {key} is {mine.get(key)!r}, there {wanted.get(key)!r}")
    names = sorted(
        {p.name for folder in (own, base) for p in folder.iterdir() if _TEXT_FILES.fullmatch(p.name)}
    )
    for name in names:
        if _sha256(own / name) != _sha256(base / name):
            raise _other(own, base, f"{name} is not the same")
    if not any(
        c.get("quantization_config") or c.get("compression_config") for c in (ours.config, theirs.config)
    ):
        shapes = [{n: (t.dtype, t.shape) for n, t in c.tensors.items()} for c in (ours, theirs)]
        for name in sorted(shapes[0].keys() | shapes[1].keys()):
            if shapes[0].get(name) != shapes[1].get(name):
                raise _other(
                    own, base, f"tensor {name} is {shapes[0].get(name)}, there {shapes[1].get(name)}"
                )


def _other(own: Path, base: Path, what: str) -> ParityError:
    return ParityError(
        f"the checkpoint {own} is not {base} with other weights: {what}; make it from that checkpoint again"
    )


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def _computed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what says how weights are stored, at either level."""
    kept = {k: v for k, v in config.items() if k not in _STORAGE_KEYS}
    if isinstance(kept.get("text_config"), Mapping):
        kept["text_config"] = {k: v for k, v in kept["text_config"].items() if k not in _STORAGE_KEYS}
    return kept


def _sha256(path: Path) -> str:
    """Of a file; "" where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
