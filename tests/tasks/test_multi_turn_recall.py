"""A conversation goes on with the model's own replies, and its questions are about what was said last."""

import pytest
from replies import output, sample

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Output, ScoreStatus, TaskItem
from equipoise.tasks.multi_turn_recall import MultiTurnRecall
from equipoise.tasks.options import with_options
from equipoise.tasks.validate import validate_task

TASK = MultiTurnRecall()


def played(item: TaskItem, *last: Output) -> list[Output]:
    """OK to everything but the questions, which get ``last``."""
    return [*[output("OK")] * item.inputs["first"], *last]


def test_right_answers_score_one_and_wrong_ones_less() -> None:
    found = validate_task(TASK, n=100)
    assert (found.faults, found.right, found.wrong) == ((), 100, 100)


def test_items_are_stable_distinct_and_extendable() -> None:
    items = list(TASK.items(50, 1))
    assert items[:10] == list(TASK.items(10, 1))
    assert len({i.id for i in items}) == len({i.content_hash for i in items}) == 50
    assert items[0].content_hash == "39e1e9a10900ba18"


def test_every_turn_is_asked_with_all_replies_before_it() -> None:
    (item,) = TASK.items(1, 1)
    turns, outputs = item.inputs["turns"], []
    for number in range(len(turns)):
        request = TASK.next_request(item, outputs)
        assert request is not None and request.messages is not None
        assert [m.role for m in request.messages] == ["user", "assistant"] * number + ["user"]
        assert [m.content for m in request.messages[::2]] == turns[: number + 1]
        assert [m.content for m in request.messages[1::2]] == [f"reply {i}" for i in range(number)]
        outputs.append(output(f" reply {number}\n"))
    assert TASK.next_request(item, outputs) is None
    assert len(turns) == 2 + TASK.talk + TASK.corrections + TASK.questions
    assert turns[-1].endswith("Reply with the number alone.")


def test_what_was_corrected_is_asked_and_the_correction_is_right() -> None:
    for item in TASK.items(30, 2):
        turns, answers = item.inputs["turns"], item.inputs["answers"]
        (correction,) = [t for t in turns if t.startswith("A correction: ")]
        key, value = correction.removeprefix("A correction: the ").removesuffix(". Reply: OK").split(" is ")
        at = turns.index(f"What is the {key}? Reply with the number alone.")
        assert answers[at - item.inputs["first"]] == value
        assert not any(f"he {key} is {value}." in t for t in turns if t != correction)


@pytest.mark.parametrize(
    ("last", "value", "status", "extracted"),
    [
        (("{0}", "It is {1}.", "**{2}**"), 1.0, ScoreStatus.SCORED, "{0} | {1} | {2}"),
        (("{0}", "no idea", "{2}"), 2 / 3, ScoreStatus.SCORED, "{0} | - | {2}"),
        (("{0} or {1}", "{1}", "{2}"), 2.5 / 3, ScoreStatus.SCORED, "{0}, {1} | {1} | {2}"),
        (("", "", ""), 0.0, ScoreStatus.SCORED, None),
    ],
)
def test_the_score_is_the_share_of_questions_answered(
    last: tuple[str, ...], value: float, status: ScoreStatus, extracted: str | None
) -> None:
    (item,) = TASK.items(1, 3)
    answers = item.inputs["answers"]
    score = TASK.score(item, sample(item, *played(item, *(output(x.format(*answers)) for x in last))))
    assert score.value == pytest.approx(value)
    assert score.status is status
    assert score.extracted == (None if extracted is None else extracted.format(*answers))


def test_replies_cut_off_truncate_only_where_they_are_answers() -> None:
    (item,) = TASK.items(1, 4)
    answers = [output(x) for x in item.inputs["answers"]]
    talk = [output("A bicycle stays", "length")] * item.inputs["first"]
    assert TASK.score(item, sample(item, *talk, *answers)).value == 1.0
    cut = [output(item.inputs["answers"][0], "length"), *answers[1:]]
    assert TASK.score(item, sample(item, *played(item, *cut))).status is ScoreStatus.TRUNCATED


def test_a_conversation_ends_where_nothing_was_said() -> None:
    (item,) = TASK.items(1, 5)
    for finish, status in [("stop", ScoreStatus.REFUSED), ("length", ScoreStatus.TRUNCATED)]:
        outputs = [output("OK"), output(None, finish)]
        assert TASK.next_request(item, outputs) is None
        assert TASK.score(item, sample(item, *outputs)).status is status
    assert TASK.score(item, sample(item, error="refused: too long")).status is ScoreStatus.REFUSED
    assert TASK.score(item, sample(item, output("OK"))).status is ScoreStatus.ERRORED


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"questions": 9}, "questions must be 1 to facts"),
        ({"corrections": 5}, "talk must be at least corrections"),
        ({"talk": 99}, "at most 20"),
    ],
)
def test_impossible_options_say_what_is_possible(options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        with_options(TASK, options)
