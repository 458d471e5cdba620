"""A new file that appears whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path

from equipoise.evals.errors import CheckpointError, UsageError

__all__ = ["new_file"]


@contextmanager
def new_file(path: Path) -> Iterator[BufferedRandom]:
    """Open ``path`` for writing under another name; rename it when it is complete and on disk.

    Raises
    ------
    UsageError
        It exists already.
    CheckpointError
        It cannot be written: no space, no permission. Nothing is left behind.
    """
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists; nothing is overwritten: choose another name or remove it")
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as e:
        raise CheckpointError(f"cannot write {path}: {e.strerror}; nothing was left behind") from e
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
