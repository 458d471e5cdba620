"""Generated long contexts: of the length asked for, the same everywhere, hidden where they say."""

import hashlib
import json
import random
import zlib
from itertools import islice
from pathlib import Path

import kimi_chat
import pytest
from replies import output, sample

from equipoise.evals.errors import UsageError
from equipoise.evals.types import ScoreStatus
from equipoise.tasks.long.base import LongTask
from equipoise.tasks.long.coreference import Coreference
from equipoise.tasks.long.niah import Niah
from equipoise.tasks.long.niah_multi import NiahMulti
from equipoise.tasks.long.prose import grammar_digest, sentences
from equipoise.tasks.long.var_tracking import VarTracking
from equipoise.tasks.long.word_count import WordCount
from equipoise.tasks.options import with_options
from equipoise.tasks.validate import validate_task

TASKS: dict[str, LongTask] = {
    "niah": Niah(tokens=(1024, 4096)),
    "niah-completion": Niah(tokens=(1024, 4096), protocol="completion", values="words"),
    "niah-uuids": Niah(tokens=(1024,), values="uuids"),
    "niah_multi": NiahMulti(tokens=(1024, 4096)),
    "var_tracking": VarTracking(tokens=(1024, 4096)),
    "word_count": WordCount(tokens=(1024, 4096), asks=("frequent", "count")),
    "coreference": Coreference(tokens=(2048, 4096)),
}
ALL = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
WITH_TEXT = pytest.mark.parametrize("task", [Niah(), NiahMulti(), VarTracking()], ids=lambda t: t.name)

# First 12 hex digits of the SHA-256 of the first three items' conversations at seed 1. They change only with
# the content, which needs a new ``version`` unless the prose changed (its digest is in every content hash).
GOLDEN = {
    "niah": "4b111b8109ef",
    "niah-completion": "dd1da350619b",
    "niah-uuids": "847fc6852296",
    "niah_multi": "5319390c7bcb",
    "var_tracking": "1e93ab287389",
    "word_count": "402e3f032d83",
    "coreference": "de043101d9bb",
}


def text_of(task: LongTask, item) -> str:  # type: ignore[no-untyped-def]
    return "\n".join(f"{m.role}: {m.content}" for m in task.messages(item))


@pytest.mark.parametrize("name", TASKS)
def test_conversations_are_what_they_were_when_the_version_was_given(name: str) -> None:
    task = TASKS[name]
    whole = "\n\n".join(text_of(task, item) for item in task.items(3, 1))
    assert hashlib.sha256(whole.encode()).hexdigest()[:12] == GOLDEN[name]


@ALL
def test_more_items_begin_with_the_fewer_and_all_differ(task: LongTask) -> None:
    items = list(task.items(40, 7))
    assert items[:10] == list(task.items(10, 7))
    assert len({i.id for i in items}) == len({i.content_hash for i in items}) == 40
    assert json.loads(json.dumps([i.inputs for i in items])) == [i.inputs for i in items]
    others = task.items(40, 8)
    assert not {i.id for i in items} & {i.id for i in others}


@ALL
def test_right_answers_score_one_and_wrong_ones_less(task: LongTask) -> None:
    found = validate_task(task, n=60)
    assert (found.faults, found.right, found.wrong) == ((), 60, 60)


@ALL
def test_lengths_and_depths_go_round(task: LongTask) -> None:
    items = task.items(6 * len(task.tokens) * task.depths, 2)
    lengths = [i.strata["length"] for i in items]
    assert {x: lengths.count(x) for x in lengths} == {str(t): 6 * task.depths for t in task.tokens}
    depths = {i.strata["depth"] for i in items if "depth" in i.strata}
    assert depths in (set(), {"0-20%", "20-40%", "40-60%", "60-80%", "80-100%"})


@ALL
def test_prompts_hold_the_tokens_asked_for_of_kimis_tokenizer(task: LongTask) -> None:
    for item in task.items(10, 3):
        tokens = len(kimi_chat.encode(kimi_chat.render(task.messages(item))))
        assert 0.75 * int(item.strata["length"]) < tokens <= 1.02 * int(item.strata["length"])


@ALL
def test_a_million_tokens_are_within_their_bytes(task: LongTask) -> None:
    task = with_options(task, {"tokens": [1_000_000]})  # type: ignore[assignment]
    (item,) = task.items(1, 1)
    size = sum(len((m.content or "").encode()) for m in task.messages(item))
    assert 0.8 * 1e6 * task.bytes_per_token < size <= 1e6 * task.bytes_per_token
    assert len(json.dumps(item.inputs)) < 100_000


@pytest.mark.parametrize("name", ["niah", "niah_multi", "var_tracking"])
def test_every_needle_is_in_the_text_once_and_where_it_should_be(name: str) -> None:
    task = TASKS[name]
    for item in task.items(20, 5):
        text = text_of(task, item)
        found = [text.find(sentence) / len(text) for _, sentence in item.inputs["needles"]]
        assert all(text.count(sentence) == 1 for _, sentence in item.inputs["needles"])
        for (depth, _), at in zip(item.inputs["needles"], found, strict=True):
            assert abs(at - depth) < 0.1
        if name == "niah":
            low, high = item.strata["depth"].removesuffix("%").split("-")
            assert float(low) <= 100 * item.inputs["needles"][0][0] < float(high)


def test_the_frequent_words_are_the_most_frequent_and_counts_are_true() -> None:
    task = WordCount(tokens=(512, 2048), asks=("frequent", "count"))
    for item in task.items(20, 5):
        words = text_of(task, item).split("\n\n")[1].split()
        counts = {w: words.count(w) for w in set(words)}
        often = sorted(counts, key=counts.__getitem__, reverse=True)[: task.frequent]
        assert set(often) == set(item.inputs["often"])
        if item.strata["ask"] == "count":
            assert str(counts[item.inputs["often"][0]]) == item.target
        else:
            assert set(often) == set(item.target.split(", "))


def test_the_text_to_repeat_is_the_one_of_that_number() -> None:
    task = Coreference(tokens=(4096,), same=3)
    for item in task.items(20, 5):
        messages = task.messages(item)
        asked = f"Write a {item.inputs['form']} about a"
        same = [
            messages[i + 1].content
            for i, m in enumerate(messages[:-1])
            if m.role == "user"
            and m.content.startswith(asked)
            and m.content.endswith(f" {item.inputs['topic']}.")
        ]
        number = int(item.inputs["question"].rpartition("the ")[2][0])
        assert len(same) == 3
        assert item.target.split(" ", 1)[1] == same[number - 1]


@pytest.mark.parametrize(
    ("answer", "value", "extracted"),
    [
        ("Answer: 1111111, 2222222", 1.0, "1111111, 2222222"),
        ("**Answer:** 2222222 and 1111111.", 1.0, "2222222, 1111111"),
        ("They are 1,111,111 and 2,222,222", 1.0, "1111111, 2222222"),
        ("Answer: 1111111", 0.5, "1111111"),
        ("Answer: 1111111, 3333333", 0.5, "1111111, 3333333"),
        ("3333333? no. answer : 1111111, 2222222", 1.0, "1111111, 2222222"),
        ("Answer: 1111111, 2222222, 3333333, 4444444", 0.5, "1111111, 2222222, 3333333, 4444444"),
        ("Answer: 11111112222222", 0.0, None),
        ("I do not know", 0.0, None),
        ("", 0.0, None),
    ],
)
def test_a_share_of_the_values_is_credited_and_naming_more_costs(
    answer: str, value: float, extracted: str | None
) -> None:
    task = NiahMulti(tokens=(1024,), kinds=("multi_value",), needles=2)
    (item,) = task.items(1, 1)
    first, second = item.target.split(", ")
    for old, new in (("1111111", first), ("2222222", second)):
        answer = answer.replace(old, new).replace(f"{int(old):,}", f"{int(new):,}")
        extracted = None if extracted is None else extracted.replace(old, new)
    score = task.score(item, sample(item, output(answer)))
    assert (score.value, score.extracted, score.status) == (value, extracted, ScoreStatus.SCORED)


@pytest.mark.parametrize(
    ("given", "value"), [("12", 1.0), ("9", 0.75), ("24", 0.0), ("1,200", 0.0), ("x", 0.0)]
)
def test_a_count_is_credited_by_how_near_it_is(given: str, value: float) -> None:
    task = WordCount(tokens=(512,), asks=("count",))
    item = next(i for i in task.items(50, 1))
    given = str(round(int(given) / 12 * int(item.target))) if given.isdigit() else given
    assert task.grade(item, f"Answer: {given}").value == pytest.approx(value, abs=0.1)


@pytest.mark.parametrize(
    ("change", "low", "high"),
    [
        (lambda t: t, 1.0, 1.0),
        (lambda t: f"Sure. {t}", 1.0, 1.0),
        (lambda t: t[: len(t) // 2], 0.5, 0.9),
        (lambda t: t.split(" ", 1)[1], 0.0, 0.0),  # without its code
        (lambda t: "x" * 5000 + t, 0.0, 0.0),
        (lambda t: t.split(" ", 1)[0], 0.0, 0.0),
    ],
)
def test_a_repetition_is_credited_by_its_words_and_needs_its_code(change, low, high) -> None:  # type: ignore[no-untyped-def]
    task = Coreference(tokens=(2048,))
    (item,) = task.items(1, 1)
    assert low <= task.grade(item, change(item.target)).value <= high


@ALL
@pytest.mark.parametrize(
    "answer",
    ["Answer: " * 150_000, "1234567," * 150_000, "a-b " * 300_000, "\ud800\x00" * 100_000, "{" * 1_000_000],
    ids=["answers", "numbers", "words", "odd", "braces"],
)
def test_a_hostile_answer_is_graded_wrong(task: LongTask, answer: str) -> None:
    (item,) = task.items(1, 1)
    for text in (answer, item.target.split(" ")[0] + answer):
        score = task.score(item, sample(item, output(text)))
        assert score.status is ScoreStatus.SCORED
        assert score.value is not None
        assert score.value < 1.0 or "completion" in item.inputs.values()


def test_a_completion_is_what_follows_and_its_budget_is_no_truncation() -> None:
    task = Niah(tokens=(512,), protocol="completion")
    (item,) = task.items(1, 1)
    request = task.next_request(item, ())
    assert not task.needs_chat_template
    assert request is not None
    assert request.text is not None
    assert request.text.endswith(item.inputs["question"])
    for text, value, extracted in [
        (f" {item.target}. The", 1.0, item.target),
        (f" 7654321, not {item.target}", 0.0, "7654321"),
        (" green", 0.0, None),
    ]:
        score = task.score(item, sample(item, output(text, "length")))
        assert (score.value, score.extracted, score.status) == (value, extracted, ScoreStatus.SCORED)


@ALL
def test_what_the_server_refuses_is_no_answer(task: LongTask) -> None:
    (item,) = task.items(1, 1)
    said = "HTTP 400: The input is longer than the model's context length"
    for error, status in [(f"refused: {said}", ScoreStatus.REFUSED), (said, ScoreStatus.ERRORED)]:
        score = task.score(item, sample(item, error=error))
        assert (score.value, score.status, score.reason) == (None, status, error)
    assert task.score(item, sample(item, output(None))).status is ScoreStatus.REFUSED


@WITH_TEXT
def test_a_file_of_the_users_own_is_what_things_are_hidden_in(task: LongTask, tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("Erste Zeile über Füße. Zweite\nZeile! Dritte Zeile? " * 3, encoding="utf-8")
    chosen = with_options(task, {"text": str(path), "tokens": [512]})
    assert isinstance(chosen, LongTask)
    (item,) = chosen.items(1, 1)
    text = text_of(chosen, item)
    assert "Zweite Zeile!" in text
    assert len(text.encode()) <= 512 * chosen.bytes_per_token
    (ours,) = with_options(task, {"tokens": [512]}).items(1, 1)
    assert (ours.target, ours.id) == (item.target, item.id)
    assert ours.content_hash != item.content_hash


@WITH_TEXT
@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot read"), (b"\xff\xfe. A. B.", "not UTF-8"), (b"No end", "has 1 sentences")],
)
def test_a_text_that_cannot_be_used_is_named(
    task: LongTask, content: bytes | None, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "book.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as raised:
        with_options(task, {"text": str(path)}).items(1, 1)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        (Niah(), {"tokens": [100]}, "tokens must be 256"),
        (Niah(), {"depths": 0}, "depths must be 1 to 100"),
        (Niah(), {"bytes_per_token": 0}, "bytes_per_token must be 1 to 20"),
        (Niah(), {"values": "letters"}, "numbers, words, uuids"),
        (Niah(), {"protocol": "both"}, "chat or completion"),
        (NiahMulti(), {"kinds": ["multi_ke"]}, "multi_key, multi_value"),
        (NiahMulti(), {"tokens": [256], "needles": 50}, "needles must be 2 to 5"),
        (VarTracking(), {"tokens": [256], "chains": 4}, "do not fit into 256"),
        (WordCount(), {"asks": ["least"]}, "frequent, count"),
        (WordCount(), {"tokens": [256], "factor": 90}, "frequent \\* factor"),
        (Coreference(), {"tokens": [256]}, "tokens must be at least"),
        (Coreference(), {"tokens": [1024], "same": 9}, "same must be 2 to"),
    ],
)
def test_impossible_options_say_what_is_possible(
    task: LongTask, options: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        with_options(task, options)


# -- prose ------------------------------------------------------------------------------------


def test_prose_is_ascii_sentences_of_bounded_size_with_short_numbers() -> None:
    found = list(islice(sentences(random.Random(3)), 20_000))
    text = " ".join(found)
    assert text.isascii()
    assert all(s[-1] == "." and (s[0].isupper() or s[0] in '"0123456789') for s in found)
    assert (min(map(len, found)) >= 12) and (max(map(len, found)) <= 250)
    assert max(len(word) for word in text.split() if word.isdigit()) <= 3
    assert len(set(found)) > 0.999 * len(found)


def test_prose_is_about_as_compressible_as_english() -> None:
    text = " ".join(islice(sentences(random.Random(4)), 10_000)).encode()
    assert len(zlib.compress(text, 9)) > 0.3 * len(text)


def test_the_digest_stands_for_the_prose() -> None:
    assert grammar_digest() == "dce1ad17be910e16"
    assert list(islice(sentences(random.Random(5)), 50)) == list(islice(sentences(random.Random(5)), 50))
