"""config.json of a lossless checkpoint: servers that cannot read it refuse it by name."""

from collections.abc import Mapping
from typing import Any

from equipoise.evals.errors import CheckpointError
from equipoise.quant.lossless.container import CONTAINER_VERSION

__all__ = ["LOSSLESS_METHOD", "lossless_config", "original_config"]

LOSSLESS_METHOD = "bf16-lossless"
_KEY = "quantization_config"


def lossless_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with ``quantization_config`` replaced, and what was there (as in Kimi's INT4) kept in it."""
    section: dict[str, Any] = {"quant_method": LOSSLESS_METHOD, "version": CONTAINER_VERSION}
    if _KEY in config:
        section["original"] = config[_KEY]
    return {**config, _KEY: section}


def original_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What `lossless_config` was given.

    Raises
    ------
    CheckpointError
        The config is not of a lossless checkpoint, or of another version.
    """
    section = config.get(_KEY)
    if not isinstance(section, Mapping) or section.get("quant_method") != LOSSLESS_METHOD:
        raise CheckpointError(
            f"config.json: {_KEY}.quant_method is not {LOSSLESS_METHOD}: not a lossless checkpoint"
        )
    if section.get("version") != CONTAINER_VERSION:
        raise CheckpointError(
            f"config.json: lossless version {section.get('version')!r}, and this program reads "
            f"{CONTAINER_VERSION}: use the program that wrote it"
        )
    restored = dict(config)
    if "original" in section:
        restored[_KEY] = section["original"]
    else:
        del restored[_KEY]
    return restored
