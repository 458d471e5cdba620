"""Two result sets become one table a task: what pairs, and a count of everything that does not."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

import numpy as np
import numpy.typing as npt

from equipoise.evals.errors import ParityError
from equipoise.evals.interop.result_set import ItemResult, TaskResults
from equipoise.evals.types import ArmAnswers, FloatArray, PairedTable, ScoreStatus

__all__ = ["PairedResults", "pair_results"]

_Answers = Mapping[str, Mapping[int, ItemResult]]  # item id -> repeat -> answer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedResults:
    """A paired table, and what was seen on the way.

    Attributes
    ----------
    hash_checked
        Paired items whose content hashes were both there and equal.
    outside
        With ``common_only``: items that only one set has, by reason; they are not in the table's plan.
    truncated_scored_right
        Truncated answers (baseline, candidate) that the tool had given a score above 0.
    """

    table: PairedTable
    hash_checked: int
    outside: Mapping[str, int]
    truncated_scored_right: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    arm: str
    answers: _Answers
    repeats: int


def pair_results(
    baseline: TaskResults,
    candidate: TaskResults,
    *,
    model: str,
    task: str,
    baseline_arm: str,
    candidate_arm: str,
    common_only: bool = False,
) -> PairedResults:
    """Pair two sets' results on one task, by item id and, where both logs have one, by content hash.

    Parameters
    ----------
    baseline, candidate
        Results of one task.
    model, task, baseline_arm, candidate_arm
        Names for the table, the messages and the reasons of exclusion.
    common_only
        Compare only the items that both sets have; otherwise an item that one set lacks is missing there.

    Returns
    -------
    PairedResults
        Items in the baseline's order. Truncated answers count as wrong (intention to treat). An item that
        lacks one of its set's repeats, or has one without a score, is missing in that set.

    Raises
    ------
    ParityError
        Another metric, an item twice, the same id with another content hash or cluster, a cluster id
        missing on some items, or no common item.
    """
    if baseline.metric != candidate.metric and baseline.hash_kind == candidate.hash_kind:
        raise ParityError(
            f"task {task!r}: {baseline_arm} is scored by {baseline.metric!r}, {candidate_arm} by "
            f"{candidate.metric!r}; choose one metric that both have (--metric)"
        )
    one, other = _side(baseline, baseline_arm, task), _side(candidate, candidate_arm, task)
    if not one.answers.keys() & other.answers.keys():
        raise ParityError(
            f"task {task!r}: no item id is in both sets ({_example(one)}; {_example(other)}); "
            "check that both ran the same data, or name the id column (--item-column)"
        )
    ids = list(dict.fromkeys([*one.answers, *baseline.planned_ids, *other.answers, *candidate.planned_ids]))
    outside: Counter[str] = Counter()
    if common_only:
        for mine, theirs in ((one, other), (other, one)):
            alone = len(mine.answers.keys() - theirs.answers.keys())
            if alone:
                outside[f"only in {mine.arm}"] = alone
        ids = [i for i in ids if i in one.answers and i in other.answers]
    checked = _check_hashes(one, other, same_kind=baseline.hash_kind == candidate.hash_kind, task=task)
    clusters = _clusters(one, other, task)
    return PairedResults(
        table=_table(ids, one, other, clusters, model=model, task=task),
        hash_checked=checked,
        outside=dict(outside),
        truncated_scored_right=(_truncated_right(one), _truncated_right(other)),
    )


def _side(results: TaskResults, arm: str, task: str) -> _Side:
    answers: dict[str, dict[int, ItemResult]] = {}
    for item in results.items:
        by_repeat = answers.setdefault(item.item_id, {})
        if item.repeat in by_repeat:
            raise ParityError(
                f"task {task!r}, {arm}: item {item.item_id!r} is there twice (repeat {item.repeat}); "
                "remove one, or name the column that numbers repeats (--repeat-column)"
            )
        by_repeat[item.repeat] = item
    seen = max((len(r) for r in answers.values()), default=0)
    return _Side(arm=arm, answers=answers, repeats=max(results.planned_repeats or 0, seen))


def _example(side: _Side) -> str:
    return f"{side.arm} has {len(side.answers)} items, such as {next(iter(side.answers), 'none')!r}"


def _hash(answers: Mapping[int, ItemResult]) -> set[str]:
    return {a.content_hash for a in answers.values() if a.content_hash is not None}


def _check_hashes(one: _Side, other: _Side, *, same_kind: bool, task: str) -> int:
    """How many common items have equal hashes; unequal ones are refused."""
    checked = 0
    for item_id, answers in one.answers.items():
        mine = _hash(answers)
        theirs = _hash(other.answers[item_id]) if same_kind and item_id in other.answers else mine
        if len(mine) > 1 or len(theirs) > 1 or (mine and theirs and mine != theirs):
            raise ParityError(
                f"task {task!r}, item {item_id!r}: another question under the same id: content hash "
                f"{sorted(mine)} in {one.arm}, {sorted(theirs)} in {other.arm}; "
                "compare logs of the same data, prompt and few-shot settings"
            )
        checked += bool(same_kind and item_id in other.answers and mine and theirs)
    return checked


def _clusters(one: _Side, other: _Side, task: str) -> Mapping[str, str]:
    """The cluster of each item; empty if neither set names clusters."""
    found: dict[str, str] = {}
    for side in (one, other):
        named = {i: {a.cluster_id for a in answers.values()} for i, answers in side.answers.items()}
        if not any(c is not None for clusters in named.values() for c in clusters):
            continue
        for item_id, clusters in named.items():
            cluster = next(iter(clusters))
            if len(clusters) > 1 or cluster is None or found.get(item_id, cluster) != cluster:
                names = sorted(str(c) for c in {*clusters, *({found[item_id]} if item_id in found else ())})
                raise ParityError(
                    f"task {task!r}, {side.arm}: item {item_id!r} has the cluster ids {', '.join(names)}; "
                    "every item needs one cluster id, the same in both sets"
                )
            found[item_id] = cluster
    return found


def _table(
    ids: list[str], one: _Side, other: _Side, clusters: Mapping[str, str], *, model: str, task: str
) -> PairedTable:
    kept: list[str] = []
    excluded: Counter[str] = Counter()
    missing = [0, 0]
    values: tuple[list[list[float]], list[list[float]]] = ([], [])
    truncated: tuple[list[list[bool]], list[list[bool]]] = ([], [])
    tokens: tuple[list[list[float]], list[list[float]]] = ([], [])
    lone: tuple[list[float], list[float]] = ([], [])
    for item_id in ids:
        answers = [side.answers.get(item_id, {}) for side in (one, other)]
        reasons = [_missing_reason(a, side) for a, side in zip(answers, (one, other), strict=True)]
        for k, reason in enumerate(reasons):
            missing[k] += reason is not None
        if any(reasons):
            excluded[" and ".join(r for r in reasons if r)] += 1
            for k, reason in enumerate(reasons):
                if reason is None:
                    lone[k].append(float(np.mean([_value(a) for a in answers[k].values()])))
            continue
        kept.append(item_id)
        for k in (0, 1):
            in_order = [answers[k][r] for r in sorted(answers[k])]
            values[k].append([_value(a) for a in in_order])
            truncated[k].append([a.status is ScoreStatus.TRUNCATED for a in in_order])
            tokens[k].append([nan if (t := a.completion_tokens) is None else float(t) for a in in_order])
    return PairedTable(
        model=model,
        task=task,
        baseline_arm=one.arm,
        candidate_arm=other.arm,
        item_ids=tuple(kept),
        cluster_ids=tuple(clusters.get(i, i) for i in kept),
        baseline=_array(values[0], one.repeats),
        candidate=_array(values[1], other.repeats),
        baseline_truncated=_flags(truncated[0], one.repeats),
        candidate_truncated=_flags(truncated[1], other.repeats),
        n_planned=len(ids),
        missing_baseline=missing[0],
        missing_candidate=missing[1],
        unpaired_baseline=np.array(lone[0], dtype=np.float64),
        unpaired_candidate=np.array(lone[1], dtype=np.float64),
        excluded=dict(excluded),
        baseline_answers=_answers(tokens[0], one.repeats),
        candidate_answers=_answers(tokens[1], other.repeats),
    )


def _answers(tokens: list[list[float]], repeats: int) -> ArmAnswers:
    lengths = _array(tokens, repeats)
    return ArmAnswers(completion_tokens=None if np.all(np.isnan(lengths)) else lengths)


def _missing_reason(answers: Mapping[int, ItemResult], side: _Side) -> str | None:
    if not answers:
        return f"not in {side.arm}"
    if len(answers) < side.repeats:
        return f"{len(answers)} of {side.repeats} repeats in {side.arm}"
    for answer in answers.values():
        if answer.status is not ScoreStatus.TRUNCATED and answer.score is None:
            return f"{answer.status.value} in {side.arm}" + (f" ({answer.reason})" if answer.reason else "")
    return None


def _value(answer: ItemResult) -> float:
    if answer.status is ScoreStatus.TRUNCATED:
        return 0.0
    score = answer.score
    if score is None or not 0.0 <= score <= 1.0:  # NaN fails the comparison too
        raise ParityError(f"item {answer.item_id!r}: score {score} is not in [0, 1]; mend the log")
    return score


def _truncated_right(side: _Side) -> int:
    return sum(
        a.status is ScoreStatus.TRUNCATED and a.score is not None and a.score > 0.0
        for answers in side.answers.values()
        for a in answers.values()
    )


def _array(rows: list[list[float]], repeats: int) -> FloatArray:
    return np.array(rows, dtype=np.float64).reshape(len(rows), repeats)


def _flags(rows: list[list[bool]], repeats: int) -> npt.NDArray[np.bool_]:
    return np.array(rows, dtype=np.bool_).reshape(len(rows), repeats)
