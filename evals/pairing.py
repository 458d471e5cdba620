"""Two arms' scores become one table: paired by item id and content hash, every exclusion counted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from equipoise.evals.answers import arm_answers, prompt_tokens, strata_of
from equipoise.evals.errors import ParityError
from equipoise.evals.top_lists import TopLists, top_lists
from equipoise.evals.types import (
    AnswerFacts,
    FloatArray,
    PairedTable,
    SampleKey,
    Score,
    ScoreStatus,
    TaskItem,
)

__all__ = ["LogprobTable", "ScoredSample", "pair", "pair_logprobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """One arm's answer to one item, scored. ``content_hash`` is the sample's own record of the item."""

    key: SampleKey
    content_hash: str
    score: Score
    facts: AnswerFacts = field(default_factory=AnswerFacts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogprobTable:
    """Two arms' logprobs (nats) of the same tokens, only where both read their prefix from the cache.

    Token arrays have shape [tokens]; ``excluded`` counts sequences by reason, those whose cache was not
    read (``cache_not_read``) included.
    """

    model: str
    task: str
    baseline_arm: str
    candidate_arm: str
    sequence: npt.NDArray[np.str_]
    position: npt.NDArray[np.int64]
    baseline: FloatArray
    candidate: FloatArray
    baseline_top1: npt.NDArray[np.bool_] | None
    candidate_top1: npt.NDArray[np.bool_] | None
    n_planned: int
    n_paired: int
    cache_not_read: int
    missing_baseline: int
    missing_candidate: int
    excluded: Mapping[str, int]
    top_lists: TopLists | None = None


def pair(
    items: Sequence[TaskItem],
    baseline: Sequence[ScoredSample],
    candidate: Sequence[ScoredSample],
    *,
    baseline_arm: str,
    candidate_arm: str,
    repeats: int = 1,
) -> PairedTable:
    """Pair two arms' accuracies on one task.

    Parameters
    ----------
    items
        The planned items: what is in neither arm is counted as missing in both.
    baseline, candidate
        All samples of the two arms on this task, in any order.
    baseline_arm, candidate_arm
        Names for messages and for the reasons of exclusion.
    repeats
        Repeats an item; an item that lacks one in an arm is missing there.

    Returns
    -------
    PairedTable
        Items in the plan's order. Truncated samples count as wrong (intention to treat); a sample whose
        value is None counts as missing, never as wrong.

    Raises
    ------
    ParityError
        If the arms did not answer the planned items: an unknown or repeated id, or another content hash;
        or if a score is NaN or outside [0, 1].
    """
    task, model = _task_and_model(items, baseline, candidate)
    base = _by_item(items, baseline, baseline_arm, repeats)
    cand = _by_item(items, candidate, candidate_arm, repeats)
    kept: list[TaskItem] = []
    values: tuple[list[list[float]], list[list[float]]] = ([], [])
    truncated: tuple[list[list[bool]], list[list[bool]]] = ([], [])
    lone: tuple[list[float], list[float]] = ([], [])
    excluded: Counter[str] = Counter()
    missing = [0, 0]
    for item in items:
        scores = (base[item.id], cand[item.id])
        reasons = tuple(
            _missing_reason(s, arm, repeats)
            for s, arm in zip(scores, (baseline_arm, candidate_arm), strict=True)
        )
        for side, reason in enumerate(reasons):
            missing[side] += reason is not None
        if any(reasons):
            excluded[" and ".join(r for r in reasons if r)] += 1
            for side, reason in enumerate(reasons):
                if reason is None:
                    lone[side].append(float(np.mean([_value(s, item) for s in scores[side]])))
            continue
        kept.append(item)
        for side in (0, 1):
            values[side].append([_value(s, item) for s in scores[side]])
            truncated[side].append([s.status is ScoreStatus.TRUNCATED for s in scores[side]])
    shape = (len(kept), repeats)
    facts, other_facts = (_by_repeat(kept, samples, repeats) for samples in (baseline, candidate))
    extracts = any(s.score.extracted is not None for s in (*baseline, *candidate))
    return PairedTable(
        model=model,
        task=task,
        baseline_arm=baseline_arm,
        candidate_arm=candidate_arm,
        item_ids=tuple(i.id for i in kept),
        cluster_ids=tuple(i.cluster_id for i in kept),
        baseline=np.array(values[0], dtype=np.float64).reshape(shape),
        candidate=np.array(values[1], dtype=np.float64).reshape(shape),
        baseline_truncated=np.array(truncated[0], dtype=np.bool_).reshape(shape),
        candidate_truncated=np.array(truncated[1], dtype=np.bool_).reshape(shape),
        n_planned=len(items),
        missing_baseline=missing[0],
        missing_candidate=missing[1],
        unpaired_baseline=np.array(lone[0], dtype=np.float64),
        unpaired_candidate=np.array(lone[1], dtype=np.float64),
        excluded=dict(excluded),
        baseline_answers=arm_answers(facts, shape, extracts=extracts),
        candidate_answers=arm_answers(other_facts, shape, extracts=extracts),
        prompt_tokens=prompt_tokens(facts),
        strata=strata_of(kept),
    )


def pair_logprobs(
    items: Sequence[TaskItem],
    baseline: Sequence[ScoredSample],
    candidate: Sequence[ScoredSample],
    *,
    baseline_arm: str,
    candidate_arm: str,
) -> LogprobTable:
    """Pair two arms' teacher-forced logprobs, token by token.

    Raises
    ------
    ParityError
        As for `pair`; also if the arms scored different numbers or positions of tokens of an item.
    """
    task, model = _task_and_model(items, baseline, candidate)
    base = _by_item(items, baseline, baseline_arm, 1)
    cand = _by_item(items, candidate, candidate_arm, 1)
    excluded: Counter[str] = Counter()
    missing = [0, 0]
    cache_not_read = 0
    pairs: list[tuple[TaskItem, Score, Score]] = []
    for item in items:
        reasons = (
            _missing_reason(base[item.id], baseline_arm, 1, logprobs=True),
            _missing_reason(cand[item.id], candidate_arm, 1, logprobs=True),
        )
        for side, reason in enumerate(reasons):
            missing[side] += reason is not None
        if any(reasons):
            excluded[" and ".join(r for r in reasons if r)] += 1
            continue
        one, other = base[item.id][0], cand[item.id][0]
        _check_same_tokens(item, one, other, baseline_arm, candidate_arm)
        unread = [a for a, s in ((baseline_arm, one), (candidate_arm, other)) if not s.cached_tokens]
        if unread:
            cache_not_read += 1
            excluded[f"cache not read in {' and '.join(unread)}"] += 1
            continue
        pairs.append((item, one, other))
    return LogprobTable(
        model=model,
        task=task,
        baseline_arm=baseline_arm,
        candidate_arm=candidate_arm,
        sequence=np.array([i.id for i, s, _ in pairs for _ in s.token_logprobs or ()], dtype=np.str_),
        position=np.array([p for _, s, _ in pairs for p in _positions(s)], dtype=np.int64),
        baseline=np.array([x for _, s, _ in pairs for x in s.token_logprobs or ()], dtype=np.float64),
        candidate=np.array([x for _, _, s in pairs for x in s.token_logprobs or ()], dtype=np.float64),
        baseline_top1=_top1([s for _, s, _ in pairs]),
        candidate_top1=_top1([s for _, _, s in pairs]),
        top_lists=top_lists([s for _, s, _ in pairs], [s for _, _, s in pairs]),
        n_planned=len(items),
        n_paired=len(pairs) + cache_not_read,
        cache_not_read=cache_not_read,
        missing_baseline=missing[0],
        missing_candidate=missing[1],
        excluded=dict(excluded),
    )


def _by_repeat(
    items: Sequence[TaskItem], samples: Sequence[ScoredSample], repeats: int
) -> list[list[tuple[Score, AnswerFacts]]]:
    found = {(s.key.item_id, s.key.repeat): (s.score, s.facts) for s in samples}
    return [[found[item.id, k] for k in range(repeats)] for item in items]


def _task_and_model(
    items: Sequence[TaskItem], baseline: Sequence[ScoredSample], candidate: Sequence[ScoredSample]
) -> tuple[str, str]:
    if not items:
        raise ParityError("nothing to pair: the task has no planned items; give it at least one")
    names = {i.task for i in items} | {s.key.task for s in (*baseline, *candidate)}
    models = {s.key.model for s in (*baseline, *candidate)}
    if len(names) > 1 or len(models) > 1:
        raise ParityError(
            f"samples of tasks {sorted(names)} and models {sorted(models)} cannot pair; "
            "pair each task of each model alone"
        )
    ids = Counter(i.id for i in items)
    twice = next((i for i, count in ids.items() if count > 1), None)
    if twice is not None:
        raise ParityError(f"task {items[0].task!r}: item id {twice!r} is planned twice; ids must be unique")
    alone = next((i.id for i in items if not i.cluster_id), None)
    if alone is not None:
        raise ParityError(
            f"task {items[0].task!r}: item {alone!r} has no cluster_id; give it its own id if it stands alone"
        )
    return items[0].task, next(iter(models), "")


def _by_item(
    items: Sequence[TaskItem], samples: Sequence[ScoredSample], arm: str, repeats: int
) -> dict[str, list[Score]]:
    """Scores of each planned item in order of repeat; an empty or short list where samples are missing."""
    planned = {i.id: i for i in items}
    found: dict[tuple[str, int], Score] = {}
    for sample in samples:
        item_id, repeat = sample.key.item_id, sample.key.repeat
        where = f"arm {arm!r}, task {sample.key.task!r}, item {item_id!r}"
        if item_id not in planned:
            raise ParityError(f"{where}: not an item of the plan; pair runs of one plan and one item seed")
        if sample.content_hash != planned[item_id].content_hash:
            raise ParityError(
                f"{where}: content hash {sample.content_hash!r}, the plan's item has "
                f"{planned[item_id].content_hash!r}: another question; rerun this arm with the plan's items"
            )
        if not 0 <= repeat < repeats:
            raise ParityError(f"{where}: repeat {repeat}, but the plan asks for {repeats} (numbered from 0)")
        if (item_id, repeat) in found:
            raise ParityError(f"{where}: repeat {repeat} is there twice; remove the duplicate sample")
        found[item_id, repeat] = sample.score
    return {i: [found[i, k] for k in range(repeats) if (i, k) in found] for i in planned}


def _missing_reason(scores: list[Score], arm: str, repeats: int, *, logprobs: bool = False) -> str | None:
    """Why an item has no usable score in an arm; None if it has."""
    if not scores:
        return f"no sample in {arm}"
    if len(scores) < repeats:
        return f"{len(scores)} of {repeats} repeats in {arm}"
    for score in scores:
        if logprobs and not score.token_logprobs:
            return f"{_status_word(score)} in {arm}"
        if not logprobs and score.value is None and score.status is not ScoreStatus.TRUNCATED:
            return f"{_status_word(score)} in {arm}"
    return None


def _status_word(score: Score) -> str:
    return "no value" if score.status is ScoreStatus.SCORED else score.status.value


def _value(score: Score, item: TaskItem) -> float:
    if score.status is ScoreStatus.TRUNCATED:
        return 0.0
    value = score.value
    if value is None or not 0.0 <= value <= 1.0:  # NaN fails the comparison too
        raise ParityError(
            f"task {item.task!r}, item {item.id!r}: score {value} is not in [0, 1]; fix the grader"
        )
    return value


def _check_same_tokens(
    item: TaskItem, one: Score, other: Score, baseline_arm: str, candidate_arm: str
) -> None:
    if len(one.token_logprobs or ()) != len(other.token_logprobs or ()) or _positions(one) != _positions(
        other
    ):
        raise ParityError(
            f"task {item.task!r}, item {item.id!r}: arms {baseline_arm!r} and {candidate_arm!r} scored "
            f"different tokens ({len(one.token_logprobs or ())} and {len(other.token_logprobs or ())}); "
            "check that both use one tokenizer"
        )


def _positions(score: Score) -> tuple[int, ...]:
    return score.token_positions or tuple(range(len(score.token_logprobs or ())))


def _top1(scores: Sequence[Score]) -> npt.NDArray[np.bool_] | None:
    if not scores or any(s.token_is_top1 is None for s in scores):
        return None
    return np.array([x for s in scores for x in s.token_is_top1 or ()], dtype=np.bool_)
