"""Files that appear whole or not at all, and never replace another one unasked."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from equipoise.evals.errors import UsageError

__all__ = ["new_file", "refuse_existing"]


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise UsageError if there is something at ``path`` that may not be replaced."""
    if path.is_dir() and not path.is_symlink():
        raise UsageError(f"{path} is a folder; give a file with --out")
    if not force and os.path.lexists(path):
        raise UsageError(f"{path} exists already; replace it with --force, or give another place with --out")


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A path beside ``path`` to write to: takes its place when the block ends, vanishes if the block raises.

    Raises
    ------
    UsageError
        ``path`` exists and ``force`` is not set, or it cannot be written.
    """
    refuse_existing(path, force=force)
    new = path.with_name(f".{path.name[:200]}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield new
        refuse_existing(path, force=force)
        os.replace(new, path)
    except OSError as e:
        raise UsageError(
            f"{path} cannot be written ({e.strerror or e}); give another place with --out"
        ) from e
    finally:
        with suppress(OSError):  # what stopped the writing is the error to tell
            new.unlink(missing_ok=True)
