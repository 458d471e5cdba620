"""Lists of likely tokens: packed without loss, kept by the journal, paired token by token."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.evals.sample_json import sample_from_json, sample_to_json
from equipoise.evals.top_lists import top_lists
from equipoise.evals.top_logprobs import TopLogprobs
from equipoise.evals.types import Output, Sample, SampleKey, Score, ScoreStatus

ENTRY = st.tuples(st.integers(0, 2**31 - 1), st.floats(-1e4, 0.0, width=32))
ROWS = st.lists(st.lists(ENTRY, min_size=1, max_size=5), min_size=1, max_size=6)


def sample_with(top: TopLogprobs | None) -> Sample:
    output = Output(
        text="x",
        finish_reason="stop",
        prompt_tokens=9,
        completion_tokens=1,
        latency_s=0.5,
        prompt_top_logprobs=top,
    )
    key = SampleKey(model="m", arm="A1", task="logprob", item_id="i")
    return Sample(key=key, content_hash="h", outputs=(output,), attempts=1, started_unix_s=0.0, latency_s=0.5)


@given(ROWS)
def test_lists_survive_packing_and_the_journal(rows: list[list[tuple[int, float]]]) -> None:
    top = TopLogprobs.of(range(3, 3 + len(rows)), rows)
    back = sample_from_json(sample_to_json(sample_with(top))).outputs[0].prompt_top_logprobs
    assert back == top
    assert back is not None
    for row, ids, logprobs in zip(rows, back.id_rows, back.logprob_rows, strict=True):
        assert list(zip(ids[: len(row)].tolist(), logprobs[: len(row)].tolist(), strict=True)) == row
        assert (ids[len(row) :] == -1).all()
        assert np.isnan(logprobs[len(row) :]).all()


def test_the_journal_form_is_compact_and_an_old_one_reads_as_none() -> None:
    rows = [[(i, -0.1 - i) for i in range(20)]] * 50
    text = sample_to_json(sample_with(TopLogprobs.of(range(50), rows)))
    assert len(text) < 50 * 20 * 11 + 600
    old = sample_to_json(sample_with(None))
    assert "top_logprobs" not in old
    assert sample_from_json(old).outputs[0].prompt_top_logprobs is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": "!!!!"}, "base64"),
        ({"ids": "AAAA"}, "need 8 bytes"),
        ({"k": 0}, "need 0 bytes"),
        ({"k": 1 << 40}, "bytes of ids"),
        ({"positions": [1, 2, 3]}, "3 lists"),
        ({"ids": 7}, "not a sample"),
    ],
)
def test_a_damaged_list_is_not_read(change: dict[str, object], message: str) -> None:
    row = json.loads(sample_to_json(sample_with(TopLogprobs.of([4], [[(1, -0.5), (2, -1.0)]]))))
    row["outputs"][0]["prompt_top_logprobs"] |= change
    with pytest.raises(ValueError, match=message):
        sample_from_json(json.dumps(row))


@pytest.mark.parametrize("entry", [(-1, -1.0), (2**31, -1.0), (1, math.nan), (1, -math.inf), (1, 1e300)])
def test_what_no_server_means_is_refused_with_its_position(entry: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="position 7"):
        TopLogprobs.of([7], [[entry]])


def test_lists_are_found_by_position_or_not_at_all() -> None:
    top = TopLogprobs.of([5, 6, 9], [[(1, -1.0)], [(2, -2.0)], [(3, -3.0)]])
    chosen = top.at([9, 5])
    assert chosen is not None
    assert (chosen.positions, chosen.id_rows.tolist()) == ((9, 5), [[3], [1]])
    assert top.at([5, 7]) is None


def score(n: int, lists: list[list[tuple[int, float]]] | None, vocabulary_size: int | None = 64) -> Score:
    return Score(
        value=None,
        status=ScoreStatus.SCORED,
        token_logprobs=(-1.0,) * n,
        token_top_logprobs=None if lists is None else TopLogprobs.of(range(n), lists),
        vocabulary_size=vocabulary_size,
    )


def test_two_arms_lists_stand_token_by_token_and_a_missing_one_is_marked() -> None:
    wide = score(2, [[(1, -0.1), (2, -3.0)], [(5, -0.2)]])
    narrow = score(2, [[(1, -0.1)], [(6, -0.2)]])
    found = top_lists([wide, score(1, None)], [narrow, score(1, [[(7, -1.0)]])])
    assert found is not None
    assert found.baseline_ids.tolist() == [[1, 2], [5, -1], [-1, -1]]
    assert np.isnan(found.baseline_logprobs[2]).all()
    assert found.candidate_ids.tolist() == [[1], [6], [7]]
    assert found.vocabulary_size == 64
    assert found.first_choices is None  # one token has no list
    both = top_lists([wide], [narrow])
    assert both is not None
    assert both.first_choices is not None
    assert (both.first_choices[0] == both.first_choices[1]).tolist() == [True, False]
    assert top_lists([score(2, None)], [narrow]) is None
    mixed = top_lists([wide, score(1, [[(1, -1.0)]], None)], [narrow, score(1, [[(1, -1.0)]])])
    assert mixed is not None
    assert mixed.vocabulary_size is None
