"""Lists of the likeliest tokens, packed: a run has millions of them, in memory and in its journal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["TopLogprobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprobs:
    """The most likely tokens at some prompt positions, as packed arrays.

    A list a position, most likely first as the server sent them. ``ids`` are little-endian int32 and
    ``logprobs`` (nats) little-endian float32, which is what servers compute; both have shape
    [len(positions), k], row by row, and a list shorter than ``k`` is filled with id -1 and NaN.
    """

    positions: tuple[int, ...]
    k: int
    ids: bytes
    logprobs: bytes

    def __post_init__(self) -> None:
        size = 4 * self.k * len(self.positions)
        if self.k < 1 or (len(self.ids), len(self.logprobs)) != (size, size):
            raise ValueError(
                f"{len(self.positions)} lists of {self.k} tokens need {size} bytes of ids and of logprobs, "
                f"not {len(self.ids)} and {len(self.logprobs)}"
            )

    @classmethod
    def of(cls, positions: Sequence[int], rows: Sequence[Sequence[tuple[int, float]]]) -> "TopLogprobs":
        """From one list of (token id, logprob) a position.

        Raises
        ------
        ValueError
            If an id does not fit into 31 bits, or a logprob is not a finite number.
        """
        k = max((len(row) for row in rows), default=1) or 1
        ids, logprobs = [], []
        for position, row in zip(positions, rows, strict=True):
            for token_id, logprob in row:
                if not 0 <= token_id < 1 << 31 or not -1e30 < logprob < 1e30:
                    raise ValueError(f"position {position}: token {token_id} with logprob {logprob}")
            ids.append([token_id for token_id, _ in row] + [-1] * (k - len(row)))
            logprobs.append([logprob for _, logprob in row] + [np.nan] * (k - len(row)))
        return cls(
            positions=tuple(positions),
            k=k,
            ids=np.array(ids, dtype="<i4").tobytes(),
            logprobs=np.array(logprobs, dtype="<f4").tobytes(),
        )

    @property
    def id_rows(self) -> npt.NDArray[np.int32]:
        """Token ids, shape [positions, k]; -1 where a list has ended."""
        return np.frombuffer(self.ids, dtype="<i4").reshape(len(self.positions), self.k)

    @property
    def logprob_rows(self) -> npt.NDArray[np.float32]:
        """Logprobs (nats), shape [positions, k]; NaN where a list has ended."""
        return np.frombuffer(self.logprobs, dtype="<f4").reshape(len(self.positions), self.k)

    def at(self, positions: Sequence[int]) -> "TopLogprobs | None":
        """The lists at these positions, in this order; None if one of them has none."""
        row_of = {position: row for row, position in enumerate(self.positions)}
        rows = [row_of.get(position, -1) for position in positions]
        if -1 in rows:
            return None
        return TopLogprobs(
            positions=tuple(positions),
            k=self.k,
            ids=self.id_rows[rows].tobytes(),
            logprobs=self.logprob_rows[rows].tobytes(),
        )
