"""A digest of what a checkpoint directory holds: the same wherever it lies, another for other weights.

What is hashed, by file name (never by path; documents are left out):

* Up to `FULL_BYTES` in all, every byte.
* Beyond that, hundreds of gigabytes must not be read only to name a checkpoint. Files up to
  `SMALL_BYTES` (config, tokenizer, chat template, safetensors index) are still hashed whole; of a
  larger one its size, `SAMPLES` evenly spaced pieces, and of a safetensors file the whole header
  (names, types, shapes and places of all tensors) and every KV-cache scale.

A large checkpoint that was changed only between the pieces therefore keeps its digest: it counts as
another attempt at the same candidate, which is the safe side.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from equipoise.evals.errors import UsageError
from equipoise.evals.sample_json import canonical_json

__all__ = ["checkpoint_digest"]

FULL_BYTES = 1 << 30
SMALL_BYTES = 32 << 20
SAMPLES = 8
SAMPLE_BYTES = 64 << 10
MAX_FILES = 10_000
MAX_HEADER_BYTES = 100 << 20  # the format's own limit
MAX_SCALE_BYTES = 1 << 20  # of one tensor
_SUFFIXES = {".json", ".jinja", ".safetensors", ".model", ".tiktoken", ".txt", ".py", ".bin", ".gguf"}
_REPORTS = {"equipoise_conversion.json"}  # of `quant convert`: when a file was written, not what is in it
_KV_SCALE = re.compile(r"(^|[._])k?v?_?[kv]_scale")
_BLOCK = 1 << 20


def checkpoint_digest(folder: Path, *, full_bytes: int = FULL_BYTES) -> str:
    """SHA-256 (hex) of a checkpoint's files; see the module for what is read.

    Raises
    ------
    UsageError
        A file cannot be read, is no safetensors file, or there are too many.
    """
    path = folder
    try:
        files = sorted(
            p
            for p in folder.iterdir()
            if p.suffix in _SUFFIXES and p.name[0] != "." and p.name not in _REPORTS and p.is_file()
        )
        if len(files) > MAX_FILES:
            raise UsageError(f"{folder}: over {MAX_FILES} files; give a checkpoint directory")
        whole = sum(p.stat().st_size for p in files) <= full_bytes
        found = {}
        for path in files:
            with path.open("rb") as f:
                size = path.stat().st_size
                parts = _all(f) if whole or size <= SMALL_BYTES else _some(f, path, size)
                sha = hashlib.sha256()
                for part in parts:
                    sha.update(part)
                found[path.name] = [size, sha.hexdigest()]
    except OSError as e:
        raise UsageError(f"{path}: cannot be read ({e.strerror}); the checkpoint must be readable") from e
    return hashlib.sha256(canonical_json({"whole": whole, "files": found}).encode()).hexdigest()


def _all(f: IO[bytes]) -> Iterator[bytes]:
    while part := f.read(_BLOCK):
        yield part


def _some(f: IO[bytes], path: Path, size: int) -> Iterator[bytes]:
    for i in range(SAMPLES):
        f.seek(i * (size - SAMPLE_BYTES) // (SAMPLES - 1))
        yield f.read(SAMPLE_BYTES)
    if path.suffix != ".safetensors":
        return
    f.seek(0)
    length = int.from_bytes(f.read(8), "little")
    if not 0 < length <= min(size - 8, MAX_HEADER_BYTES):
        raise UsageError(f"{path}: not a safetensors file (a header of {length} bytes)")
    header = f.read(length)
    yield header
    yield from _kv_scales(f, path, header, start=8 + length, size=size)


def _kv_scales(f: IO[bytes], path: Path, header: bytes, *, start: int, size: int) -> Iterator[bytes]:
    """They decide how an FP8 cache rounds, and are too small for a sample to meet them."""
    try:
        tensors = json.loads(header)
        places = [
            (start + int(t["data_offsets"][0]), start + int(t["data_offsets"][1]))
            for name, t in sorted(tensors.items())
            if _KV_SCALE.search(name)
        ]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as e:
        raise UsageError(f"{path}: its safetensors header cannot be read ({e})") from e
    for begin, end in places:
        if not start <= begin <= end <= size or end - begin > MAX_SCALE_BYTES:
            raise UsageError(
                f"{path}: a KV-cache scale lies outside the file, or has over {MAX_SCALE_BYTES} bytes"
            )
        f.seek(begin)
        yield f.read(end - begin)
