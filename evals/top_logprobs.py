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
            If an id does not fit into 31 bits, or a logprob is not a number.
        """
        shape = len(rows), max((len(row) for row in rows), default=1) or 1
        ids, logprobs = np.full(shape, -1, dtype="<i4"), np.full(shape, np.nan, dtype="<f4")
        for i, row in enumerate(rows):
            for j, (token_id, logprob) in enumerate(row):
                if not 0 <= token_id < 1 << 31 or np.isnan(logprob):
                    raise ValueError(f"position {positions[i]}: token {token_id}, logprob {logprob}")
                ids[i, j], logprobs[i, j] = token_id, logprob
        return cls(positions=tuple(positions), k=shape[1], ids=ids.tobytes(), logprobs=logprobs.tobytes())

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
