"""Long text behind a cached prefix: what is scored, at which positions, and when it is an error."""

import pytest
from replies import output, sample

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Output, ScoreStatus, TopLogprobs
from equipoise.tasks.logprob_text import LogprobText
from equipoise.tasks.options import with_options

TASK = LogprobText(prefix_tokens=(256, 1024), scored_tokens=64, top_n=2)
CONTEXT = 100


def scored(logprobs: list[float | None], *, start: int = CONTEXT - 1, cached: int = CONTEXT - 1) -> Output:
    """A reply about ``logprobs`` behind 100 tokens; every other token is the model's first choice."""
    n = len(logprobs)
    ids = tuple(range(n + CONTEXT - start))
    return output(
        "",
        "length",
        prompt_tokens=CONTEXT + n,
        cached_tokens=cached,
        prompt_logprobs_start=start,
        prompt_logprobs=(None,) * (CONTEXT - start) + tuple(logprobs),
        prompt_token_ids=ids,
        prompt_top1_ids=(None, *(i if i % 2 else -1 for i in ids[1:])),
        prompt_top_logprobs=TopLogprobs.of(range(CONTEXT, CONTEXT + n), [[(7, -0.5), (8, -1.5)]] * n),
    )


def test_the_prefix_is_warmed_and_the_rest_scored_from_one_token_before_it() -> None:
    for item in TASK.items(4, 1):
        first = TASK.next_request(item, [])
        assert first is not None and first.text is not None
        second = TASK.next_request(item, [output("", "length", prompt_tokens=CONTEXT)])
        assert second is not None and second.text is not None and second.prompt_logprobs is not None
        assert second.text.startswith(f"{first.text} ")
        assert (second.prompt_logprobs.start, second.prompt_logprobs.top_n) == (CONTEXT - 1, 2)
        assert len(first.text) <= int(item.strata["length"]) * 4.2 < len(first.text) + 250
        assert TASK.next_request(item, [output("")] * 2) is None


def test_about_half_of_what_is_scored_stands_in_the_prefix() -> None:
    shares = {}
    for repeated in (0.0, 0.5, 1.0):
        task = LogprobText(prefix_tokens=(512,), scored_tokens=1000, repeated=repeated)
        prefix, text = task.parts(task.items(1, 1)[0])
        found = [s for s in text.split(". ") if s.strip()]
        shares[repeated] = sum(s.strip() in prefix for s in found) / len(found)
    assert shares[0.0] == 0.0
    assert 0.3 < shares[0.5] < 0.7
    assert shares[1.0] > 0.98


def test_items_are_stable_and_a_longer_list_begins_with_a_shorter_one() -> None:
    items = list(TASK.items(20, 1))
    assert items[:5] == list(TASK.items(5, 1))
    assert len({i.content_hash for i in items}) == 20
    assert [i.strata["length"] for i in items[:4]] == ["256", "1024", "256", "1024"]
    assert items[0].content_hash == "b79689060dadc877"
    other = with_options(TASK, {"repeated": 0.25}).items(1, 1)[0]
    assert other.content_hash != items[0].content_hash


def test_tokens_are_scored_by_their_absolute_position() -> None:
    (item,) = TASK.items(1, 1)
    score = TASK.score(item, sample(item, output("", prompt_tokens=CONTEXT), scored([-1.0, -2.0, -3.0])))
    assert (score.status, score.value) == (ScoreStatus.SCORED, None)
    assert score.token_logprobs == (-1.0, -2.0, -3.0)
    assert score.token_positions == (100, 101, 102)
    assert score.token_is_top1 == (True, False, True)
    assert score.token_top_logprobs is not None
    assert score.token_top_logprobs.positions == (100, 101, 102)
    assert score.cached_tokens == CONTEXT - 1


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (output("", prompt_tokens=110), "no prompt logprobs"),
        (scored([]), "adds no token"),
        (scored([-1.0, None]), "no finite logprob"),
        (scored([-1.0, float("-inf")]), "no finite logprob"),
        (scored([-1.0], start=CONTEXT + 1), "do not cover"),
    ],
)
def test_a_reply_that_does_not_cover_what_is_scored_is_an_error(second: Output, reason: str) -> None:
    (item,) = TASK.items(1, 1)
    score = TASK.score(item, sample(item, output("", prompt_tokens=CONTEXT), second))
    assert (score.status, score.token_logprobs) == (ScoreStatus.ERRORED, None)
    assert reason in score.reason


def test_refusals_and_errors_are_told_apart() -> None:
    (item,) = TASK.items(1, 1)
    assert TASK.score(item, sample(item, error="refused: too long")).status is ScoreStatus.REFUSED
    assert TASK.score(item, sample(item, error="HTTP 500")).status is ScoreStatus.ERRORED
    assert TASK.score(item, sample(item, output(""))).status is ScoreStatus.ERRORED


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prefix_tokens": [1]}, "prefix_tokens must be 64"),
        ({"scored_tokens": 1}, "scored_tokens must be 16"),
        ({"repeated": 2}, "repeated must be 0 to 1"),
        ({"top_n": 0}, "top_n must be 1"),
        ({"bytes_per_token": 50}, "bytes_per_token must be 1 to 20"),
    ],
)
def test_impossible_options_say_what_is_possible(options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        with_options(TASK, options)
