"""Checked access to the keys of a config.json."""

from collections.abc import Mapping
from typing import Any, NoReturn

from equipoise.evals.errors import CheckpointError

__all__ = ["Fields"]

# No model comes near; they bound the arithmetic and the lists that an untrusted file can ask for.
_MOST = 10**9
_MOST_LAYERS = 10_000


class Fields:
    """The keys of one object of a config file, with errors that name file and key.

    Parameters
    ----------
    values
        The object.
    where
        The file's path, for messages.
    prefix
        Of the keys in messages, e.g. "text_config.".
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.values, self.where, self.prefix = values, where, prefix

    def fail(self, key: str, problem: str) -> NoReturn:
        raise CheckpointError(
            f"{self.where}: {self.prefix}{key} {problem}; correct the file, or download the checkpoint again"
        )

    def integer(
        self, key: str, *, minimum: int = 1, default: int | None = None, nullable: bool = False
    ) -> int:
        """A whole number; ``default`` where the key is missing or null, and 0 for null where ``nullable``."""
        value = self.values.get(key)
        if value is None:
            if nullable and key in self.values:
                return 0
            if default is not None:
                return default
            self.fail(key, "is null" if key in self.values else "is missing")
        if type(value) is not int or not minimum <= value <= _MOST:
            self.fail(key, f"is {value!r:.40}, not a whole number from {minimum} to {_MOST:,}")
        return value

    def layers(self) -> int:
        """``num_hidden_layers``."""
        value = self.integer("num_hidden_layers")
        if value > _MOST_LAYERS:
            self.fail("num_hidden_layers", f"is {value:,}, over {_MOST_LAYERS:,}")
        return value

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            self.fail(key, "is missing" if key not in self.values else f"is {value!r:.40}, not a string")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, f"is {value!r:.40}, not true or false")
        return value
