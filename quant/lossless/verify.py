"""Proof that a lossless file holds the original, bit for bit."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise.evals.errors import CheckpointError
from equipoise.quant.checkpoint import read_shard
from equipoise.quant.lossless.reader import LosslessFile

__all__ = ["SpecialValues", "Verified", "verify_lossless"]


@dataclass(slots=True, kw_only=True)
class SpecialValues:
    """BF16 values that a cast would lose or change, counted."""

    nan: int = 0
    infinite: int = 0
    subnormal: int = 0
    negative_zero: int = 0

    def count(self, values: NDArray[np.uint16]) -> None:
        magnitude = values & 0x7FFF
        self.nan += int(np.count_nonzero(magnitude > 0x7F80))
        self.infinite += int(np.count_nonzero(magnitude == 0x7F80))
        self.subnormal += int(np.count_nonzero(np.subtract(magnitude, 1, dtype=np.uint16) < 0x7F))
        self.negative_zero += int(np.count_nonzero(values == 0x8000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """All of it is identical; what that covers."""

    tensors: int
    nbytes: int  # of the original file, its header too
    stored_bytes: int
    special: SpecialValues


def verify_lossless(
    path: str | os.PathLike[str], original: str | os.PathLike[str], *, threads: int = 1
) -> Verified:
    """Decode all of ``path`` and compare with the safetensors file ``original``.

    Raises
    ------
    CheckpointError
        They differ, or one is damaged; names the file, tensor and the first byte.
    """
    shard, special = read_shard(Path(original)), SpecialValues()
    with LosslessFile.open(path) as lossless, shard.path.open("rb") as file:
        header = lossless.original_header
        if file.read(8 + len(header)) != len(header).to_bytes(8, "little") + header:
            raise CheckpointError(f"{path} was not made from {original}: the headers differ")
        for name, info in lossless.tensors.items():
            position = 0
            for chunk in lossless.chunks(name, threads=threads):
                due = np.frombuffer(file.read(chunk.nbytes), np.uint8)
                found = chunk.view(np.uint8)
                if due.size != found.size or not np.array_equal(due, found):
                    same = np.minimum(due.size, found.size)
                    differing = np.flatnonzero(due[:same] != found[:same])
                    byte = position + int(differing[0] if differing.size else same)
                    raise CheckpointError(
                        f"{path}: tensor {name} differs from {original} at its byte {byte:,}; "
                        "convert it again"
                    )
                if info.dtype == "BF16":
                    special.count(found.view("<u2"))
                position += chunk.nbytes
    return Verified(
        tensors=len(lossless.tensors),
        nbytes=shard.size,
        stored_bytes=lossless.stored_bytes,
        special=special,
    )
