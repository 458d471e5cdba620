"""KL(baseline || candidate) of the next token's distribution, in nats, from full or top-k logprobs.

A top-k list leaves out tokens, so it bounds the divergence instead of giving it:

* From below, always. Every cell of the vocabulary contributes ``kl_div(P, Q) = P log(P/Q) - P + Q``, which
  is never negative, and by the log-sum inequality (data processing) merging tokens never raises the sum.
  Tokens in both lists are cells of their own. The rest is bounded in two ways, of which the larger counts:
  as one merged cell, whose mass both arms give; or split, where a token in one list only has a
  probability of at most the other list's k-th, and the tokens in neither list share what is left.
* From above, only with a fact from outside: an unlisted token may have any smaller probability under the
  candidate, so the divergence has no upper bound. Either the lists hold the whole vocabulary, or it is
  assumed, and stated, that no token's logprob drops by more than ``max_drop_nats``: the part
  outside both lists then adds at most its mass x ``max_drop_nats``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.evals.statistics.kl_div import kl_div_of_logs, least_kl_div

__all__ = ["CITATION", "TokenKl", "full_kl", "topk_kl"]

CITATION = (
    "Kullback S, Leibler RA (1951). On information and sufficiency. Annals of Mathematical Statistics "
    "22:79-86; Cover TM, Thomas JA (2006). Elements of Information Theory, 2nd ed., theorem 2.7.1 "
    "(log-sum inequality)."
)
# Absolute error of a probability mass that float32 logits and softmax leave.
ROUNDING = 2e-6
# A mass may exceed 1 by this much (log-softmax in a low precision); more is not a distribution.
MASS_TOLERANCE = 1e-3
# Listed tokens are matched in blocks of about this many, to bound memory.
_BLOCK_ENTRIES = 1 << 17
_COLUMN_BITS = 20

_Floats = NDArray[np.float64]
_Ids = NDArray[np.int64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenKl:
    """Bounds of KL(baseline || candidate) at each token (nats), shape [tokens].

    Attributes
    ----------
    lower
        At least this; NaN where an arm has no list.
    upper
        At most this; infinite where nothing bounds it, NaN where an arm has no list.
    truncated_baseline, truncated_candidate
        Probability outside each arm's own list.
    largest_drop_nats
        The largest fall of a token's logprob from baseline to candidate that the lists show.
    complete
        Whether the lists hold the whole vocabulary at every token: ``lower`` equals ``upper``.
    max_drop_nats
        The assumption behind ``upper``; None if it was not made.
    no_upper_reason
        Why ``upper`` is infinite somewhere; "" if it is not.
    """

    lower: _Floats
    upper: _Floats
    truncated_baseline: _Floats
    truncated_candidate: _Floats
    largest_drop_nats: float
    complete: bool
    max_drop_nats: float | None
    no_upper_reason: str
    method: str
    citation: str = CITATION


def full_kl(baseline: ArrayLike, candidate: ArrayLike, *, mass_tolerance: float = MASS_TOLERANCE) -> TokenKl:
    """KL of whole distributions, exactly.

    Parameters
    ----------
    baseline, candidate
        Logprobs (nats) of every token of the vocabulary, in one order, shape [tokens, vocabulary]; -inf is
        a probability of 0.
    mass_tolerance
        By how much the probabilities of a token may miss a sum of 1.

    Raises
    ------
    ValueError
        If shapes differ, a logprob is NaN, or the probabilities of a token do not sum to 1.
    """
    base, cand = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if base.ndim != 2 or base.shape != cand.shape or base.shape[1] == 0:
        raise ValueError(
            f"need logprobs of shape [tokens, vocabulary] in both arms, got {base.shape} and {cand.shape}"
        )
    for arm, logprobs in (("baseline", base), ("candidate", cand)):
        remainder, _ = remainder_and_least(logprobs, arm, mass_tolerance)
        refuse_tokens(remainder > mass_tolerance, arm, "probabilities that sum to", 1.0 - remainder)
    kl = kl_div_of_logs(base, cand).sum(axis=1)
    nothing = np.zeros(kl.size)
    with np.errstate(invalid="ignore"):
        drop = np.where(base > -np.inf, base - cand, -np.inf)
    return TokenKl(
        lower=kl,
        upper=kl,
        truncated_baseline=nothing,
        truncated_candidate=nothing,
        largest_drop_nats=float(drop.max(initial=0.0)),
        complete=True,
        max_drop_nats=None,
        no_upper_reason="" if np.all(np.isfinite(kl)) else "the candidate gives a possible token no chance",
        method="KL of whole distributions",
    )


def topk_kl(
    baseline_ids: ArrayLike,
    baseline_logprobs: ArrayLike,
    candidate_ids: ArrayLike,
    candidate_logprobs: ArrayLike,
    *,
    vocabulary_size: int | None = None,
    max_drop_nats: float | None = None,
    rounding: float = ROUNDING,
    mass_tolerance: float = MASS_TOLERANCE,
) -> TokenKl:
    """Bounds of KL from each arm's k most likely tokens.

    Parameters
    ----------
    baseline_ids, candidate_ids
        Token ids, shape [tokens, k] (k may differ between the arms), in any order; -1 fills a shorter list.
        Each list must hold the arm's most likely tokens: what it leaves out is no likelier than its least.
    baseline_logprobs, candidate_logprobs
        Their logprobs (nats), same shapes; NaN where the id is -1.
    vocabulary_size
        If known: lists of that length are whole distributions.
    max_drop_nats
        Assumption behind the upper bound, at least 1: no token of the vocabulary is more than
        e^max_drop_nats times less likely under the candidate. Where the lists refute it there is no
        upper bound.
    rounding
        Absolute error of a mass outside a list, which is a small difference from 1.
    mass_tolerance
        By how much a list's probabilities may sum to more than 1.

    Raises
    ------
    ValueError
        If shapes do not fit, or a list holds an id twice, a NaN, or more than a probability of 1; names
        the token and the arm.
    """
    if max_drop_nats is not None and not max_drop_nats >= 1.0:
        raise ValueError(f"max_drop_nats is {max_drop_nats}; it must be at least 1")
    base = _Lists.of("baseline", baseline_ids, baseline_logprobs, mass_tolerance)
    cand = _Lists.of("candidate", candidate_ids, candidate_logprobs, mass_tolerance)
    if len(base.ids) != len(cand.ids):
        raise ValueError(f"the arms have lists of {len(base.ids)} and {len(cand.ids)} tokens")
    listed = base.there.any(axis=1) & cand.there.any(axis=1)
    lower, upper, drop = (np.full(listed.size, np.nan) for _ in range(3))
    block = max(1, _BLOCK_ENTRIES // max(1, base.ids.shape[1] + cand.ids.shape[1]))
    for start in range(0, listed.size, block):
        at = slice(start, start + block)
        lower[at], upper[at], drop[at] = _bounds(base.part(at), cand.part(at), max_drop_nats, rounding, start)
    complete = np.zeros(listed.size, dtype=bool)
    if vocabulary_size is not None:
        complete = (np.minimum(base.there.sum(axis=1), cand.there.sum(axis=1)) >= vocabulary_size) & listed
    upper[complete] = lower[complete]
    for values in (lower, upper, base.remainder, cand.remainder):
        values[~listed] = np.nan
    whole = bool(complete[listed].all())
    return TokenKl(
        lower=lower,
        upper=upper,
        truncated_baseline=base.remainder,
        truncated_candidate=cand.remainder,
        largest_drop_nats=float(drop[listed].max(initial=0.0)),
        complete=whole,
        max_drop_nats=max_drop_nats,
        no_upper_reason=_no_upper_reason(upper[listed], drop[listed], max_drop_nats),
        method="KL of whole distributions" if whole else "bounds of KL from top-k lists",
    )


def _no_upper_reason(upper: _Floats, drop: _Floats, max_drop_nats: float | None) -> str:
    if np.all(np.isfinite(upper)):
        return ""
    if max_drop_nats is None:
        return (
            "top-k lists bound KL from below only: a token outside the candidate's list may be arbitrarily "
            "unlikely; assume a largest drop of a logprob, or list the whole vocabulary"
        )
    return (
        f"the lists show a logprob falling by {drop.max():.1f} nats, more than the {max_drop_nats:g} assumed"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Lists:
    """An arm's lists: entries that are not there have id -1 and logprob -inf."""

    arm: str
    ids: _Ids  # [tokens, k]
    logprobs: _Floats  # [tokens, k]
    there: _Bools  # [tokens, k]
    remainder: _Floats  # probability outside the list, [tokens]
    least: _Floats  # the least listed probability, [tokens]

    @classmethod
    def of(cls, arm: str, ids: ArrayLike, logprobs: ArrayLike, mass_tolerance: float) -> _Lists:
        names, values = np.asarray(ids), np.asarray(logprobs, dtype=np.float64)
        if names.ndim != 2 or names.shape != values.shape or not 0 < names.shape[1] < 1 << (_COLUMN_BITS - 1):
            raise ValueError(
                f"{arm}: need ids and logprobs of shape [tokens, k], got {names.shape} and {values.shape}"
            )
        if names.size and (names.dtype.kind not in "iu" or names.max() >= 1 << 40):
            raise ValueError(f"{arm}: token ids must be integers below 2^40")
        there: _Bools = np.asarray(names >= 0)
        refuse_tokens((np.isnan(values) & there).any(axis=1), arm, "a listed logprob that is not a number")
        values = np.where(there, values, -np.inf)
        remainder, least = remainder_and_least(values, arm, mass_tolerance)
        # An empty list says nothing of what it leaves out.
        least[~there.any(axis=1)] = 1.0
        return cls(
            arm=arm,
            ids=names.astype(np.int64),
            logprobs=values,
            there=there,
            remainder=remainder,
            least=least,
        )

    def part(self, at: slice) -> _Lists:
        return _Lists(
            arm=self.arm,
            ids=self.ids[at],
            logprobs=self.logprobs[at],
            there=self.there[at],
            remainder=self.remainder[at],
            least=self.least[at],
        )


def _bounds(
    base: _Lists, cand: _Lists, max_drop_nats: float | None, rounding: float, first: int
) -> tuple[_Floats, _Floats, _Floats]:
    """Lower bound, upper bound and largest visible drop at some tokens, each [tokens]."""
    # Sort both lists of a token by id: a token in both lists stands twice, the baseline's entry first.
    column = np.arange(base.ids.shape[1] + cand.ids.shape[1])
    key = np.sort(np.concatenate([base.ids, cand.ids], axis=1) << _COLUMN_BITS | column, axis=1)
    column, token_id = key & ((1 << _COLUMN_BITS) - 1), key >> _COLUMN_BITS
    there, of_candidate = token_id >= 0, column >= base.ids.shape[1]
    logprob = np.take_along_axis(np.concatenate([base.logprobs, cand.logprobs], axis=1), column, axis=1)
    same = there[:, 1:] & (token_id[:, 1:] == token_id[:, :-1])
    twice = np.argwhere(same & (of_candidate[:, 1:] == of_candidate[:, :-1]))
    if twice.size:
        row, i = twice[0]
        arm = cand.arm if of_candidate[row, i] else base.arm
        raise ValueError(f"token {first + row}: {arm} lists id {token_id[row, i]} twice")
    edge = np.zeros((len(key), 1), dtype=bool)
    in_both = np.concatenate([same, edge], axis=1) | np.concatenate([edge, same], axis=1)
    only_base, only_cand = there & ~of_candidate & ~in_both, there & of_candidate & ~in_both
    p_log, q_log = np.where(same, logprob[:, :-1], -np.inf), np.where(same, logprob[:, 1:], -np.inf)
    shared = kl_div_of_logs(p_log, q_log).sum(axis=1)
    p, q = (np.where(only, np.exp(logprob), 0.0) for only in (only_base, only_cand))

    # 1. Everything that is not in both lists as one cell.
    p_else, q_else = p.sum(axis=1) + base.remainder, q.sum(axis=1) + cand.remainder
    merged = least_kl_div(p_else - rounding, p_else + rounding, q_else - rounding, q_else + rounding)
    # 2. Token by token where one arm's probability is known, and the tokens in neither list as one cell.
    p_most = np.minimum(base.least, base.remainder + rounding)[:, None]  # of a token outside the list
    q_most = np.minimum(cand.least, cand.remainder + rounding)[:, None]
    alone = np.where(only_base, least_kl_div(p, p, 0.0, q_most), 0.0).sum(axis=1)
    alone += np.where(only_cand, least_kl_div(0.0, p_most, q, q), 0.0).sum(axis=1)
    neither = least_kl_div(
        base.remainder - only_cand.sum(axis=1) * p_most[:, 0] - rounding,
        base.remainder + rounding,
        cand.remainder - only_base.sum(axis=1) * q_most[:, 0] - rounding,
        cand.remainder + rounding,
    )
    lower = shared + np.maximum(merged, alone + neither)

    with np.errstate(divide="ignore", invalid="ignore"):
        drops = np.where(p_log > -np.inf, p_log - q_log, -np.inf)
        least_drops = np.where(p > 0.0, logprob - np.log(q_most), -np.inf)
    drop = np.maximum(drops.max(axis=1, initial=-np.inf), least_drops.max(axis=1))
    if max_drop_nats is None:
        return lower, np.full(len(key), np.inf), drop
    p_outside, q_outside = np.minimum(p_else + rounding, 1.0), np.minimum(q_else + rounding, 1.0)
    upper = np.maximum(shared + p_outside * (max_drop_nats - 1.0) + q_outside, lower)
    return lower, np.where(drop > max_drop_nats, np.inf, upper), drop


def remainder_and_least(logprobs: _Floats, arm: str, mass_tolerance: float) -> tuple[_Floats, _Floats]:
    """Probability outside each list, at least 0, and the least listed one, shape [tokens].

    1 - p_max is taken from the logprob itself (-expm1), so that the rest of a nearly certain token
    keeps its digits.
    """
    top = logprobs.argmax(axis=1)[:, None]
    most = np.take_along_axis(logprobs, top, axis=1)[:, 0]
    others = np.exp(logprobs)
    least = np.where(others > 0.0, others, np.inf).min(axis=1)
    np.put_along_axis(others, top, 0.0, axis=1)
    remainder = -np.expm1(most) - others.sum(axis=1)
    refuse_tokens(~(remainder >= -mass_tolerance), arm, "probabilities that sum to", 1.0 - remainder)
    return np.maximum(remainder, 0.0), np.minimum(least, 1.0)


def refuse_tokens(bad: ArrayLike, arm: str, what: str, value: _Floats | None = None) -> None:
    """Raise a ValueError that names the first bad token."""
    found = np.flatnonzero(bad)
    if found.size:
        shown = "" if value is None else f" {value[found[0]]:.6g}"
        raise ValueError(f"token {found[0]}: {arm} has {what}{shown}")
