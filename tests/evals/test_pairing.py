"""Pairing: nothing pairs that was not the same question, and nothing is lost without a count."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.evals.errors import ParityError
from equipoise.evals.pairing import LogprobTable, ScoredSample, pair, pair_logprobs
from equipoise.evals.types import AnswerFacts, PairedTable, SampleKey, Score, ScoreStatus, TaskItem


def items(n: int) -> list[TaskItem]:
    return [
        TaskItem(task="copy", id=f"i{k}", inputs={}, target="", content_hash=f"h{k}", cluster_id=f"i{k}")
        for k in range(n)
    ]


def sample(k: int, arm: str, score: Score | float, repeat: int = 0) -> ScoredSample:
    key = SampleKey(model="m", arm=arm, task="copy", item_id=f"i{k}", repeat=repeat)
    if not isinstance(score, Score):
        score = Score(value=score, status=ScoreStatus.SCORED)
    return ScoredSample(key=key, content_hash=f"h{k}", score=score)


def arm(name: str, scores: list[Any]) -> list[ScoredSample]:
    return [sample(k, name, s) for k, s in enumerate(scores) if s is not None]


def paired(a: list[ScoredSample], b: list[ScoredSample], n: int, repeats: int = 1) -> PairedTable:
    return pair(items(n), a, b, baseline_arm="A1", candidate_arm="B", repeats=repeats)


ERRORED = Score(value=None, status=ScoreStatus.ERRORED)
REFUSED = Score(value=None, status=ScoreStatus.REFUSED)
TRUNCATED = Score(value=1.0, status=ScoreStatus.TRUNCATED)


def test_items_pair_by_id_whatever_the_order_of_the_samples() -> None:
    table = paired(arm("A1", [1.0, 0.0, 1.0]), arm("B", [1.0, 1.0, 0.0])[::-1], 3)
    assert table.item_ids == ("i0", "i1", "i2")
    assert table.baseline.tolist() == [[1.0], [0.0], [1.0]]
    assert table.candidate.tolist() == [[1.0], [1.0], [0.0]]
    assert table.excluded == {}


def test_every_item_that_does_not_pair_is_counted_once_by_reason() -> None:
    a = arm("A1", [1.0, ERRORED, 0.0, None, ERRORED, 1.0, 1.0])
    b = arm("B", [0.0, 1.0, REFUSED, 1.0, ERRORED, None, 1.0])
    table = paired(a, b, 7)
    assert table.item_ids == ("i0", "i6")
    assert table.excluded == {
        "errored in A1": 1,
        "refused in B": 1,
        "no sample in A1": 1,
        "errored in A1 and errored in B": 1,
        "no sample in B": 1,
    }
    assert table.n + sum(table.excluded.values()) == table.n_planned == 7
    assert (table.missing_baseline, table.missing_candidate) == (3, 3)
    assert table.unpaired_baseline.tolist() == [0.0, 1.0]
    assert table.unpaired_candidate.tolist() == [1.0, 1.0]


def test_a_truncated_answer_is_wrong_and_an_errored_one_is_not() -> None:
    table = paired(arm("A1", [1.0, 1.0]), arm("B", [TRUNCATED, ERRORED]), 2)
    assert table.candidate.tolist() == [[0.0]]
    assert table.candidate_truncated.tolist() == [[True]]
    assert table.baseline_truncated.tolist() == [[False]]


def test_an_item_that_lacks_a_repeat_is_missing() -> None:
    a = [sample(k, "A1", 1.0, r) for k in range(2) for r in range(2)]
    b = [sample(0, "B", 0.0, 0), sample(0, "B", 1.0, 1), sample(1, "B", 1.0, 1)]
    table = paired(a, b, 2, repeats=2)
    assert table.candidate.tolist() == [[0.0, 1.0]]
    assert table.excluded == {"1 of 2 repeats in B": 1}


def test_no_pairs_at_all_give_an_empty_table_not_an_error() -> None:
    table = paired(arm("A1", [1.0]), [], 1)
    assert table.n == 0
    assert table.baseline.shape == (0, 1)


def test_another_content_hash_is_refused_by_item_and_arm() -> None:
    b = [replace(sample(0, "B", 1.0), content_hash="other")]
    with pytest.raises(ParityError, match=r"arm 'B'.*item 'i0'.*'other'.*'h0'"):
        paired(arm("A1", [1.0]), b, 1)


def test_an_unplanned_or_repeated_item_is_refused_by_name() -> None:
    with pytest.raises(ParityError, match="item 'i1': not an item of the plan"):
        paired(arm("A1", [1.0]), [sample(1, "B", 1.0)], 1)
    with pytest.raises(ParityError, match="item 'i0': repeat 0 is there twice"):
        paired(arm("A1", [1.0]), [sample(0, "B", 1.0), sample(0, "B", 0.0)], 1)
    with pytest.raises(ParityError, match="repeat 1, but the plan asks for 1"):
        paired(arm("A1", [1.0]), [sample(0, "B", 1.0, repeat=1)], 1)


@pytest.mark.parametrize("value", [float("nan"), -0.1, 1.1])
def test_a_score_outside_0_to_1_is_refused(value: float) -> None:
    with pytest.raises(ParityError, match=r"item 'i0'.*not in"):
        paired(arm("A1", [1.0]), arm("B", [value]), 1)


def test_samples_of_another_task_or_model_are_refused() -> None:
    other = replace(sample(0, "B", 1.0), key=SampleKey(model="x", arm="B", task="copy", item_id="i0"))
    with pytest.raises(ParityError, match=r"models \['m', 'x'\]"):
        paired(arm("A1", [1.0]), [other], 1)
    with pytest.raises(ParityError, match="no planned items"):
        paired([], [], 0)


def logprobs(values: list[float], cached: int | None = 10, positions: tuple[int, ...] | None = None) -> Score:
    return Score(
        value=None,
        status=ScoreStatus.SCORED,
        token_logprobs=tuple(values),
        token_positions=positions,
        token_is_top1=tuple(v > -1 for v in values),
        cached_tokens=cached,
    )


def paired_logprobs(a: list[Any], b: list[Any]) -> LogprobTable:
    return pair_logprobs(items(len(a)), arm("A1", a), arm("B", b), baseline_arm="A1", candidate_arm="B")


def test_logprobs_pair_token_by_token() -> None:
    table = paired_logprobs(
        [logprobs([-1.0, -2.0], positions=(5, 6)), logprobs([-3.0])],
        [logprobs([-1.5, -0.5], positions=(5, 6)), logprobs([-3.0])],
    )
    assert table.sequence.tolist() == ["i0", "i0", "i1"]
    assert table.position.tolist() == [5, 6, 0]
    assert table.baseline.tolist() == [-1.0, -2.0, -3.0]
    assert table.candidate.tolist() == [-1.5, -0.5, -3.0]
    assert table.candidate_top1 is not None
    assert table.candidate_top1.tolist() == [False, True, False]


@pytest.mark.parametrize("cached", [0, None])
def test_a_sequence_whose_cache_was_not_read_counts_for_nothing(cached: int | None) -> None:
    table = paired_logprobs(
        [logprobs([-1.0]), logprobs([-1.0]), ERRORED], [logprobs([-1.0], cached), logprobs([-2.0]), ERRORED]
    )
    assert table.sequence.tolist() == ["i1"]
    assert (table.n_paired, table.cache_not_read) == (2, 1)
    assert table.excluded == {"cache not read in B": 1, "errored in A1 and errored in B": 1}


def test_arms_that_scored_different_tokens_are_refused() -> None:
    with pytest.raises(ParityError, match=r"item 'i0'.*different tokens \(1 and 2\)"):
        paired_logprobs([logprobs([-1.0])], [logprobs([-1.0, -1.0])])
    with pytest.raises(ParityError, match="different tokens"):
        paired_logprobs([logprobs([-1.0], positions=(3,))], [logprobs([-1.0], positions=(4,))])


def test_no_usable_sequence_gives_an_empty_table() -> None:
    table = paired_logprobs([logprobs([-1.0], cached=0)], [logprobs([-1.0])])
    assert table.baseline.size == 0
    assert table.baseline_top1 is None
    assert np.array_equal(table.candidate, np.empty(0))


def test_facts_about_answers_follow_their_items() -> None:
    def with_facts(k: int, name: str, extracted: str | None, facts: AnswerFacts) -> ScoredSample:
        score = Score(value=1.0, status=ScoreStatus.SCORED, extracted=extracted)
        return replace(sample(k, name, score), facts=facts)

    loop = AnswerFacts(prompt_tokens=9, completion_tokens=40, degenerate=True)
    plain = AnswerFacts(prompt_tokens=8, completion_tokens=4, degenerate=False)
    a = [with_facts(0, "A1", "x", plain), with_facts(1, "A1", "x", plain), with_facts(2, "A1", "x", plain)]
    b = [with_facts(2, "B", None, loop), with_facts(0, "B", "x", plain)]
    table = paired(a, b, 3)
    assert table.item_ids == ("i0", "i2")
    assert table.prompt_tokens is not None
    assert table.prompt_tokens.tolist() == [8.0, 8.0]
    answers = table.candidate_answers
    assert answers.completion_tokens is not None
    assert answers.completion_tokens.tolist() == [[4.0], [40.0]]
    assert answers.degenerate is not None
    assert answers.degenerate.tolist() == [[False], [True]]
    assert answers.unextracted is not None
    assert answers.unextracted.tolist() == [[False], [True]]


def test_what_is_not_known_of_the_answers_is_not_made_up() -> None:
    table = paired(arm("A1", [1.0, 0.0]), arm("B", [1.0, 0.0]), 2)
    assert table.prompt_tokens is None
    for answers in (table.baseline_answers, table.candidate_answers):
        assert (answers.completion_tokens, answers.unextracted, answers.degenerate) == (None, None, None)
    a = [replace(s, facts=AnswerFacts(completion_tokens=3)) for s in arm("A1", [1.0, 0.0])]
    mixed = paired([a[0], sample(1, "A1", 0.0)], arm("B", [1.0, 0.0]), 2).baseline_answers
    assert mixed.completion_tokens is not None
    assert np.array_equal(mixed.completion_tokens, [[3.0], [np.nan]], equal_nan=True)


def test_strata_keep_the_order_of_the_pairs() -> None:
    law, mixed, bare = items(3)
    planned = [replace(law, strata={"subject": "law"}), replace(mixed, strata={"subject": "art"}), bare]
    table = pair(
        planned,
        arm("A1", [1.0, 1.0, 1.0]),
        arm("B", [1.0, ERRORED, 1.0]),
        baseline_arm="A1",
        candidate_arm="B",
    )
    assert table.strata == {"subject": ("law", "")}
