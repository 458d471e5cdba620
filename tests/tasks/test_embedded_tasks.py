"""The embedded tasks: stable, distinct, held-out items and exact scoring."""

import hashlib
import json
import random

import pytest

from equipoise.evals.types import (
    Message,
    Output,
    Sample,
    SampleKey,
    ScoreStatus,
    Task,
    TaskItem,
    TopLogprobs,
)
from equipoise.tasks.addition import Addition
from equipoise.tasks.brackets import Brackets
from equipoise.tasks.copy import Copy
from equipoise.tasks.dialog_recall import DialogRecall
from equipoise.tasks.embedded.tokenizer import UNK_ID, encode
from equipoise.tasks.generated import Draw, GeneratedTask, SingleTurnTask, draw_held_out
from equipoise.tasks.heldout import is_held_out
from equipoise.tasks.kv_retrieval import KvRetrieval
from equipoise.tasks.logprob import Logprob
from equipoise.tasks.registry import TASKS
from equipoise.tasks.sort import Sort

EMBEDDED = {name: task for name, task in TASKS.items() if isinstance(task, GeneratedTask)}
ALL = pytest.mark.parametrize("task", EMBEDDED.values(), ids=list(EMBEDDED))
SINGLE_TURN = pytest.mark.parametrize(
    "task", [KvRetrieval(), Copy(), Sort(), Brackets(), Addition()], ids=lambda task: task.name
)

# First 12 hex digits of the SHA-256 of the first 50 items' content hashes at seed 1. They change
# only with a task's content; such a change needs a new ``version``.
GOLDEN: dict[str, str] = {
    "kv_retrieval": "b8e5bce0798f",
    "dialog_recall": "97d816c66d92",
    "copy": "d964730cf388",
    "sort": "e906989ab9f1",
    "brackets": "454f778f2d4e",
    "addition": "cb20ecec61b7",
    "logprob": "e7014a79c5b7",
}


def reply(text: str | None, finish_reason: str = "stop", **more: object) -> Output:
    return Output(
        text=text,
        finish_reason=finish_reason,
        prompt_tokens=10,
        completion_tokens=3,
        latency_s=0.1,
        **more,  # type: ignore[arg-type]
    )


def sample(item: TaskItem, *outputs: Output, error: str | None = None) -> Sample:
    return Sample(
        key=SampleKey(model="m", arm="a", task=item.task, item_id=item.id),
        content_hash=item.content_hash,
        outputs=outputs,
        attempts=1,
        started_unix_s=0.0,
        latency_s=0.1,
        error=error,
    )


@ALL
def test_content_is_what_it_was_when_the_version_was_given(task: Task) -> None:
    hashes = "".join(item.content_hash for item in task.items(50, 1))
    assert hashlib.sha256(hashes.encode()).hexdigest()[:12] == GOLDEN[task.name]


@ALL
def test_more_items_begin_with_the_fewer(task: Task) -> None:
    assert list(task.items(30, 7))[:10] == list(task.items(10, 7))


@ALL
def test_items_are_distinct_within_a_seed_and_differ_between_seeds(task: Task) -> None:
    first, second = task.items(400, 1), task.items(400, 2)
    assert len({item.id for item in first}) == len({item.content_hash for item in first}) == 400
    assert not {item.id for item in first} & {item.id for item in second}
    shared = {item.content_hash for item in first} & {item.content_hash for item in second}
    assert len(shared) < 40  # a few sums or short strings may come up twice


@ALL
def test_items_are_json_and_in_the_vocabulary(task: Task) -> None:
    for item in task.items(20, 3):
        assert json.loads(json.dumps(item.inputs)) == item.inputs
        texts = [item.target.replace("\n", ""), item.inputs.get("question", "")]
        assert UNK_ID not in encode("".join(texts))


@ALL
def test_thousands_of_items_are_available(task: Task) -> None:
    assert len(task.items(2000, 5)) == 2000


@ALL
def test_every_item_is_held_out_from_training(task: GeneratedTask) -> None:
    draws = draw_held_out(task, 50, 11)
    assert all(is_held_out(drawn.split_key) for drawn in draws)


def test_held_out_share_is_one_in_eight() -> None:
    keys = [f"A:{a:03d}+{b:03d}" for a in range(100) for b in range(100)]
    assert sum(map(is_held_out, keys)) / len(keys) == pytest.approx(1 / 8, abs=0.015)


def test_training_stream_never_contains_a_held_out_key() -> None:
    from equipoise.tasks.embedded.curriculum import STAGES, stream
    from equipoise.tasks.embedded.tokenizer import ASSISTANT_ID, USER_ID, decode

    rng, checked = random.Random(3), 0
    for stage in STAGES:
        source = stream(rng, stage)
        for _ in range(20):
            ids, _ = next(source)
            for chunk in "".join(map(chr, ids)).split(chr(USER_ID))[1:]:
                question, closed, _ = chunk.partition(chr(ASSISTANT_ID))
                text = decode(map(ord, question))
                if closed and text[0] in "CSBAK":
                    key = text.partition("?")[0] if text[0] == "K" else text
                    assert not is_held_out(key), text
                    checked += 1
    assert checked > 400


def test_too_many_items_for_the_difficulty_is_an_error_that_names_the_task() -> None:
    with pytest.raises(ValueError, match="addition has only"):
        Addition(digits=(1,)).items(100, 1)


@SINGLE_TURN
def test_only_the_exact_target_scores_one(task: SingleTurnTask) -> None:
    item = task.items(1, 1)[0]
    right = task.score(item, sample(item, reply(item.target)))
    assert (right.value, right.status) == (1.0, ScoreStatus.SCORED)
    assert task.score(item, sample(item, reply(f" {item.target}\n"))).value == 1.0
    for wrong in ("", item.target[:-1], item.target + "x", item.target.upper() + "!"):
        assert task.score(item, sample(item, reply(wrong))).value == 0.0


@SINGLE_TURN
def test_a_reply_cut_off_by_the_budget_is_wrong_even_if_its_text_is_right(task: SingleTurnTask) -> None:
    item = task.items(1, 1)[0]
    score = task.score(item, sample(item, reply(item.target, "length")))
    assert (score.value, score.status) == (0.0, ScoreStatus.TRUNCATED)


@ALL
def test_errors_and_null_content_are_never_scored(task: Task) -> None:
    item = task.items(1, 1)[0]
    failed = task.score(item, sample(item, error="HTTP 500"))
    assert (failed.value, failed.status, failed.reason) == (None, ScoreStatus.ERRORED, "HTTP 500")
    null = task.score(item, sample(item, *[reply(None)] * 3))
    assert null.value is None
    assert null.status is (ScoreStatus.ERRORED if task.kind == "logprob" else ScoreStatus.REFUSED)


@SINGLE_TURN
def test_one_request_then_done(task: SingleTurnTask) -> None:
    item = task.items(1, 1)[0]
    request = task.next_request(item, [])
    assert request is not None
    assert request.messages == (Message(role="user", content=item.inputs["question"]),)
    assert request.sampling.temperature == 0.0
    assert request.sampling.max_new_tokens >= 2 * (len(item.target) + 1)
    assert task.next_request(item, [reply("x")]) is None


@pytest.mark.parametrize(
    ("task", "solve"),
    [
        (Copy(), lambda q: q),
        (Sort(), lambda q: "".join(sorted(q))),
        (Addition(), lambda q: str(sum(map(int, q.split("+"))))[::-1]),
    ],
    ids=["copy", "sort", "addition"],
)
def test_targets_are_right(task: SingleTurnTask, solve) -> None:  # type: ignore[no-untyped-def]
    for item in task.items(50, 1):
        assert item.target == solve(item.inputs["question"][2:])


def test_brackets_targets_close_everything() -> None:
    pairs = {"(": ")", "[": "]", "{": "}", "<": ">"}
    for item in Brackets().items(50, 1):
        text = item.inputs["question"][2:] + item.target
        stack: list[str] = []
        for bracket in text:
            if bracket in pairs:
                stack.append(pairs[bracket])
            else:
                assert stack.pop() == bracket
        assert not stack


def test_kv_retrieval_targets_are_in_the_table_and_keys_are_unique() -> None:
    for item in KvRetrieval().items(50, 1):
        table, _, asked = item.inputs["question"].removeprefix("K:").partition("?")
        pairs = [pair.split("=") for pair in table.rstrip(";").split(";")]
        assert len({key for key, _ in pairs}) == len(pairs) >= 40
        assert dict(pairs)[asked] == item.target


class TestDialog:
    task = DialogRecall()

    def test_each_question_is_the_models_own_last_answer(self) -> None:
        item = self.task.items(1, 1)[0]
        request = self.task.next_request(item, [reply("zz")])
        assert request is not None
        assert request.messages is not None
        assert [(m.role, m.content) for m in request.messages[1:]] == [("assistant", "zz"), ("user", "?zz")]

    def test_following_the_table_gives_the_target(self) -> None:
        for item in self.task.items(50, 1):
            text, _, key = item.inputs["question"].removeprefix("K:").partition("?")
            table = dict(pair.split("=") for pair in text.rstrip(";").split(";"))
            outputs: list[Output] = []
            while (request := self.task.next_request(item, outputs)) is not None:
                assert request.messages is not None
                key = table[request.messages[-1].content.rpartition("?")[2]]
                outputs.append(reply(key))
            assert len(outputs) == item.inputs["turns"]
            assert self.task.score(item, sample(item, *outputs)).value == 1.0
            assert self.task.score(item, sample(item, *outputs[:-1], reply("zz"))).value == 0.0

    @pytest.mark.parametrize("last", [reply("", "stop"), reply("abc", "length"), reply(None)])
    def test_the_conversation_ends_where_nothing_can_be_asked(self, last: Output) -> None:
        item = self.task.items(1, 1)[0]
        assert self.task.next_request(item, [last]) is None
        assert self.task.score(item, sample(item, last)).value in (0.0, None)

    def test_a_missing_turn_is_wrong_even_if_the_last_reply_equals_the_target(self) -> None:
        item = self.task.items(1, 1)[0]
        assert self.task.score(item, sample(item, reply(item.target))).value == 0.0

    def test_draw_and_item_agree(self) -> None:
        drawn: Draw = draw_held_out(self.task, 1, 1)[0]
        item = self.task.items(1, 1)[0]
        assert drawn.turns[0][0] == item.inputs["question"]
        assert drawn.turns[-1][1] == item.target


class TestLogprob:
    task = Logprob()

    def test_the_prefix_is_warmed_before_anything_is_scored(self) -> None:
        item = self.task.items(1, 1)[0]
        warm = self.task.next_request(item, [])
        ask = self.task.next_request(item, [reply("x")])
        assert warm is not None
        assert ask is not None
        assert warm.input_ids is not None
        assert ask.input_ids is not None
        assert warm.prompt_logprobs is None
        assert ask.prompt_logprobs is not None
        assert ask.prompt_logprobs.top_n == 20
        assert ask.prompt_logprobs.top_positions == tuple(item.inputs["scored"])
        start = ask.prompt_logprobs.start
        assert ask.input_ids[:start] == warm.input_ids
        assert start > 150
        assert min(item.inputs["scored"]) > start
        assert self.task.next_request(item, [reply("x"), reply("x")]) is None

    def test_scored_tokens_are_the_answers(self) -> None:
        from equipoise.tasks.embedded.tokenizer import EOS_ID, decode

        for item in self.task.items(20, 1):
            ids = item.inputs["input_ids"]
            answer_ids = [ids[i] for i in item.inputs["scored"] if ids[i] != EOS_ID]
            assert decode(answer_ids) == item.target.replace("\n", "")

    def test_score_picks_the_scored_positions(self) -> None:
        item = self.task.items(1, 1)[0]
        ids, start = item.inputs["input_ids"], item.inputs["start"]
        output = reply(
            "x",
            "length",
            cached_tokens=start - 1,
            prompt_logprobs_start=start,
            prompt_logprobs=(None, *(-float(i) for i in range(start + 1, len(ids)))),
            prompt_top1_ids=(None, *ids[start + 1 :]),
            prompt_top_logprobs=TopLogprobs.of(
                range(start + 1, len(ids)), [[(i, -0.5), (63, -2.0)] for i in ids[start + 1 :]]
            ),
        )
        score = self.task.score(item, sample(item, reply("x", "length"), output))
        assert score.status is ScoreStatus.SCORED
        assert score.token_positions == tuple(item.inputs["scored"])
        assert score.token_logprobs == tuple(-float(i) for i in item.inputs["scored"])
        assert score.token_is_top1 == (True,) * len(item.inputs["scored"])
        assert score.token_top_logprobs is not None
        assert score.token_top_logprobs.positions == score.token_positions
        assert score.token_top_logprobs.id_rows[:, 0].tolist() == [ids[i] for i in item.inputs["scored"]]
        assert score.vocabulary_size == 64
        assert score.cached_tokens == start - 1

    def test_a_missing_logprob_is_an_error_that_names_the_position(self) -> None:
        item = self.task.items(1, 1)[0]
        output = reply("x", prompt_logprobs_start=item.inputs["start"], prompt_logprobs=(-1.0,))
        score = self.task.score(item, sample(item, reply("x"), output))
        assert (score.value, score.status) == (None, ScoreStatus.ERRORED)
        assert str(item.inputs["scored"][0]) in score.reason


def test_items_say_where_in_the_table_and_how_long_the_numbers_are() -> None:
    for item in KvRetrieval().items(60, 1):
        table, asked = item.inputs["question"].removeprefix("K:").split(";?")
        keys = [pair.split("=")[0] for pair in table.split(";")]
        third = ("first", "middle", "last")[3 * keys.index(asked) // len(keys)]
        assert item.strata == {"depth": f"{third} third"}
    for item in Addition().items(60, 1):
        assert item.strata == {"digits": str(len(item.inputs["question"]) // 2 - 1)}
