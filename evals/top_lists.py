"""The likeliest tokens of two arms at the same positions, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.evals.types import FloatArray, Score

__all__ = ["TopLists", "top_lists"]

_Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopLists:
    """A list a token, likeliest first; id -1 and logprob NaN where a list has ended or was not sent.

    ``vocabulary_size`` is None where it is not known, or not the same for all tokens.
    """

    baseline_ids: _Ids  # [tokens, k]
    baseline_logprobs: FloatArray  # [tokens, k], nats
    candidate_ids: _Ids  # [tokens, k of the candidate]
    candidate_logprobs: FloatArray
    vocabulary_size: int | None

    @property
    def first_choices(self) -> tuple[_Ids, _Ids] | None:
        """Each arm's likeliest token, shape [tokens]; None where a token has no list in an arm."""
        found = self.baseline_ids[:, 0], self.candidate_ids[:, 0]
        return found if all((ids >= 0).all() for ids in found) else None


def top_lists(baseline: Sequence[Score], candidate: Sequence[Score]) -> TopLists | None:
    """The lists of paired teacher-forced scores, token by token; None where an arm has none at all."""
    sizes = {s.vocabulary_size for s in (*baseline, *candidate)}
    base, cand = _rows(baseline), _rows(candidate)
    if base is None or cand is None:
        return None
    return TopLists(
        baseline_ids=base[0],
        baseline_logprobs=base[1],
        candidate_ids=cand[0],
        candidate_logprobs=cand[1],
        vocabulary_size=sizes.pop() if len(sizes) == 1 else None,
    )


def _rows(scores: Sequence[Score]) -> tuple[_Ids, FloatArray] | None:
    lists = [s.token_top_logprobs for s in scores]
    k = max((top.k for top in lists if top is not None), default=0)
    if k == 0:
        return None
    counts = [len(s.token_logprobs or ()) for s in scores]
    ids = np.full((sum(counts), k), -1, dtype=np.int32)
    logprobs = np.full(ids.shape, np.nan)
    stop = 0
    for top, count in zip(lists, counts, strict=True):
        start, stop = stop, stop + count
        if top is not None:
            ids[start:stop, : top.k], logprobs[start:stop, : top.k] = top.id_rows, top.logprob_rows
    return ids, logprobs
