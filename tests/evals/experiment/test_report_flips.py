"""Every flip is told, with excerpts of both replies that show where they first differ."""

from types import SimpleNamespace

import pytest

from equipoise.evals.experiment.flip_replies import Answer, first_difference, reply
from equipoise.evals.experiment.questions import Question
from equipoise.evals.experiment.report_flips import SHOWN_PER_DIRECTION, all_flips, flips_of
from equipoise.evals.experiment.scored import ModelSamples
from equipoise.evals.pairing import ScoredSample
from equipoise.evals.plan import TaskSpec
from equipoise.evals.types import (
    AnswerFacts,
    ArmRole,
    Output,
    Sample,
    SampleKey,
    Score,
    ScoreStatus,
    TaskItem,
    ToolCall,
)
from equipoise.reports.model import Excerpt


def output(text: str | None, **more) -> Output:
    values = {
        "text": text,
        "finish_reason": "stop",
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "latency_s": 0.1,
    }
    return Output(**(values | more))


CALLS = [(ToolCall(name="f", arguments=text),) for text in ('{"a": 1}', '{"a": 2}')]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([output("abc")], [output("abc")], None),
        ([output("abcd")], [output("abxd")], ("answer", 2, None, 1)),
        ([output("abc")], [output("abcd")], ("answer", 3, None, 1)),
        ([output("")], [output(None)], ("answer", 0, None, 1)),
        ([output("x", reasoning="ab")], [output("y", reasoning="ac")], ("thinking", 1, None, 1)),
        ([output("", tool_calls=CALLS[0])], [output("", tool_calls=CALLS[1])], ("tool calls", 8, None, 1)),
        ([output("x"), output("ab")], [output("x"), output("b")], ("answer", 0, None, 2)),
        ([output("x"), output("ab")], [output("x")], ("answer", 0, None, 2)),
        ([output("ab", token_ids=(5, 6))], [output("ac", token_ids=(5, 7))], ("answer", 1, 1, 1)),
        ([output("ab", token_ids=(5,))], [output("ac", token_ids=(5, 7))], ("answer", 1, 1, 1)),
        ([output("ab", token_ids=(5, 6))], [output("ac")], ("answer", 1, None, 1)),
    ],
)
def test_the_first_difference_is_found_by_turn_part_character_and_token(ours, theirs, expected):
    found = first_difference(ours, theirs)
    assert (found and (found.part, found.char, found.token, found.turn)) == expected


def test_the_trace_shows_the_logprobs_around_the_first_token_that_differs():
    ids = tuple(range(50))
    ours = output("a", token_ids=ids, output_logprobs=tuple(-0.01 * i for i in ids))
    theirs = output("b", token_ids=(*ids[:30], 99), output_logprobs=tuple(-0.02 * i for i in range(31)))
    found = first_difference([ours], [theirs])
    assert found is not None
    assert found.trace is not None
    at = found.token - found.trace.start
    assert found.token == 30
    assert found.trace.baseline[at] == pytest.approx(-0.30)
    assert found.trace.candidate[at:] == (pytest.approx(-0.60),)
    assert (found.trace.baseline_tokens[at], found.trace.candidate_tokens[at]) == ("id 30", "id 99")


def test_tokens_known_as_text_alone_are_compared_and_shown():
    ours = output("ab", output_tokens=("a", "b"), output_logprobs=(-0.1, -0.2))
    theirs = output("ac", output_tokens=("a", "c"), output_logprobs=(-0.1, -0.3))
    found = first_difference([ours], [theirs])
    assert found is not None
    assert found.trace is not None
    assert (found.token, found.trace.baseline_tokens, found.trace.candidate_tokens) == (
        1,
        ("a", "b"),
        ("a", "c"),
    )


@pytest.mark.parametrize("at", [0, 10, 74, 75, 76, 5_000, 9_999])
def test_an_excerpt_holds_the_place_that_matters_and_says_where_it_begins(at):
    text = "".join(chr(33 + i % 90) for i in range(10_000))
    excerpt = Excerpt.of(text, 100, around=at)
    assert len(excerpt.text) == 100
    assert excerpt.chars == 10_000
    assert text[excerpt.start : excerpt.start + 100] == excerpt.text
    assert excerpt.start <= at < excerpt.start + 100


def sample(arm: str, item_id: str, *outputs: Output) -> Sample:
    key = SampleKey(model="m", arm=arm, task="t", item_id=item_id)
    return Sample(key=key, content_hash="h", outputs=outputs, attempts=1, started_unix_s=1.0, latency_s=0.1)


def test_a_reply_tells_its_score_length_and_truncation():
    last = output("y" * 9_000, finish_reason="length", reasoning="z" * 9_000, completion_tokens=4_096)
    score = Score(value=0.0, status=ScoreStatus.TRUNCATED)
    told = reply(Answer(sample=sample("B", "1", last), score=score, outputs=(last,)), None, 600)
    assert told is not None
    assert (len(told.text.text), told.text.chars, len(told.thinking.text)) == (600, 9_000, 300)
    assert (told.score, told.truncated, told.tokens, told.turns) == (0.0, True, 4_096, 1)


def _run(changes):
    """Items of which arms A1 and B have these scores, and the plan and questions they belong to."""
    inputs = {"question": "q" * 5_000 + "?"}
    items = [
        TaskItem(task="t", id=str(i), inputs=inputs, target="x", content_hash="h", cluster_id=str(i))
        for i in range(len(changes))
    ]
    samples, scored = {}, {}
    for arm, which in (("A1", 0), ("B", 1)):
        rows = [sample(arm, item.id, output(f"{arm}")) for item in items]
        samples[arm, "t"] = rows
        scored[arm, "t"] = [
            ScoredSample(
                key=s.key,
                content_hash="h",
                score=Score(value=change[which], status=ScoreStatus.SCORED),
                facts=AnswerFacts(),
            )
            for s, change in zip(rows, changes, strict=True)
        ]
    task = SimpleNamespace(kind="accuracy", next_request=lambda item, outputs: None)
    question = Question(spec=TaskSpec(name="t", items=len(items), margin=0.05), task=task, items=items)
    arms = {ArmRole.BASELINE: SimpleNamespace(name="A1"), ArmRole.CANDIDATE: SimpleNamespace(name="B")}
    return SimpleNamespace(arm=arms.get), [question], ModelSamples(model="m", samples=samples, scored=scored)


def test_the_report_shows_the_first_flips_and_all_flips_are_told_elsewhere():
    run = _run([(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] * 30)
    shown = flips_of(*run)
    whole = list(all_flips(*run))
    assert (shown.lost, shown.gained, len(shown.shown)) == (30, 30, 2 * SHOWN_PER_DIRECTION)
    assert [f.direction for f in whole].count("lost") == 30
    assert len({f.item_id for f in whole}) == 60
    assert whole[0].prompt.text.endswith("?")
    assert shown.shown[0].prompt.start == 0
    assert whole[0].baseline_reply.text.text == "A1"
