"""Log-likelihood tasks score the continuation's tokens only, and call nothing an answer that is none."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Output, Sample, SampleKey, ScoreStatus, TaskItem
from equipoise.tasks.arc_easy import ArcEasy
from equipoise.tasks.lambada import Lambada
from equipoise.tasks.rows import RowSource, load_rows, sample_rows

ROWS = [
    {"query": f"Question: number {i}?", "choices": ["yes", "no", "maybe"], "gold": i % 3} for i in range(20)
]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "multiple_choice"
    folder.mkdir()
    (folder / "arc_easy.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    passages = [{"context": f"the cat sat on mat {i}, the", "continuation": "cat"} for i in range(5)]
    (folder / "lambada_openai.jsonl").write_text("".join(json.dumps(r) + "\n" for r in passages))
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    return folder


def _context(tokens: int) -> Output:
    return Output(text="", finish_reason="length", prompt_tokens=tokens, completion_tokens=1, latency_s=0.0)


def _scored(context_tokens: int, logprobs: list[float | None], *, top1: bool = True) -> Output:
    """A reply whose prompt logprobs start one token before the continuation."""
    ids = tuple(range(100, 101 + len(logprobs)))
    return Output(
        text="",
        finish_reason="length",
        prompt_tokens=context_tokens + len(logprobs),
        completion_tokens=1,
        latency_s=0.0,
        cached_tokens=context_tokens - 1,
        prompt_logprobs_start=context_tokens - 1,
        prompt_logprobs=(None, *logprobs),
        prompt_token_ids=ids,
        prompt_top1_ids=(None, *(ids[1:] if top1 else (1,) * len(logprobs))),
    )


def _sample(item: TaskItem, outputs: list[Output]) -> Sample:
    key = SampleKey(model="m", arm="A1", task=item.task, item_id=item.id)
    return Sample(
        key=key,
        content_hash=item.content_hash,
        outputs=tuple(outputs),
        attempts=1,
        started_unix_s=0.0,
        latency_s=0.0,
    )


def test_arc_asks_context_then_each_choice_one_token_before_its_start(data: Path) -> None:
    task = ArcEasy()
    (item,) = task.items(1, seed=3)
    first = task.next_request(item, [])
    assert first is not None
    assert first.text is not None and first.text.endswith("\nAnswer:")
    outputs = [_context(10)]
    for choice in ("yes", "no", "maybe"):
        request = task.next_request(item, outputs)
        assert request is not None and request.prompt_logprobs is not None
        assert request.text == f"{first.text} {choice}"
        assert request.prompt_logprobs.start == 9
        outputs.append(_scored(10, [-1.0]))
    assert task.next_request(item, outputs) is None


def test_arc_picks_the_choice_with_the_highest_sum_not_the_shortest(data: Path) -> None:
    task = ArcEasy()
    (item,) = (i for i in task.items(20, seed=3) if i.id == "arc_easy-00001")
    outputs = [_context(10), _scored(10, [-3.0]), _scored(10, [-1.0, -1.5]), _scored(10, [-2.0, -2.0])]
    score = task.score(item, _sample(item, outputs))
    assert (score.value, score.extracted, score.cached_tokens) == (1.0, "no", 9)


def test_lambada_is_right_only_if_every_token_is_the_first_choice(data: Path) -> None:
    task = Lambada()
    (item,) = task.items(1, seed=1)
    right = task.score(item, _sample(item, [_context(7), _scored(7, [-0.1, -0.2])]))
    wrong = task.score(item, _sample(item, [_context(7), _scored(7, [-0.1, -0.2], top1=False)]))
    assert (right.value, wrong.value) == (1.0, 0.0)


@pytest.mark.parametrize(
    "broken",
    [
        lambda out: replace(out, prompt_logprobs=None),
        lambda out: replace(out, prompt_tokens=7),  # the continuation merged into the context
        lambda out: replace(out, prompt_logprobs=(None, None, -0.1)),
        lambda out: replace(out, prompt_logprobs=(None, float("nan"), -0.1)),
        lambda out: replace(out, prompt_logprobs_start=8),
    ],
)
def test_what_cannot_be_scored_is_an_error_never_a_wrong_answer(data: Path, broken) -> None:
    task = Lambada()
    (item,) = task.items(1, seed=1)
    score = task.score(item, _sample(item, [_context(7), broken(_scored(7, [-0.1, -0.2]))]))
    assert score.value is None
    assert score.status is ScoreStatus.ERRORED
    assert score.reason


def test_items_are_stable_unique_and_extendable(data: Path) -> None:
    few, many = ArcEasy().items(5, seed=2), ArcEasy().items(12, seed=2)
    assert [i.id for i in many[:5]] == [i.id for i in few]
    assert len({i.id for i in many}) == 12
    assert [i.id for i in ArcEasy().items(5, seed=4)] != [i.id for i in few]


def test_bad_data_is_named_with_its_line_or_row(data: Path) -> None:
    with pytest.raises(UsageError, match=r"'arc_easy' has 20 items; the plan asks for 21"):
        ArcEasy().items(21, seed=1)
    (data / "arc_easy.jsonl").write_text('{"query": "q", "choices": ["a"], "gold": 4}\n')
    with pytest.raises(UsageError, match="arc_easy row 0 is malformed"):
        ArcEasy().items(1, seed=1)
    (data / "arc_easy.jsonl").write_text("{}\n{not json\n")
    with pytest.raises(UsageError, match=r"arc_easy\.jsonl:2: not JSON"):
        ArcEasy().items(1, seed=1)
    (data / "arc_easy.jsonl").unlink()
    with pytest.raises(UsageError, match="EQUIPOISE_DATA must name a directory"):
        ArcEasy().items(1, seed=1)
    with pytest.raises(UsageError, match="no rows"):
        sample_rows([], 1, 1, name="x")


def test_real_rows_give_the_published_counts() -> None:
    if not os.environ.get("EQUIPOISE_DATA"):
        pytest.skip("EQUIPOISE_DATA is not set: no offline copy of ARC-Easy and LAMBADA")
    assert len(load_rows(ArcEasy.source)[0]) == 2376
    assert len(load_rows(Lambada.source)[0]) == 5153
    for item in ArcEasy().items(400, seed=1):
        assert 3 <= len(item.inputs["continuations"]) <= 5
        assert item.target in [c.strip() for c in item.inputs["continuations"]]


def test_unreachable_hub_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", refuse)
    source = RowSource(
        local="x.jsonl", hub="o/n", config="c", split="test", revision="0" * 40, licence="", citation=""
    )
    with pytest.raises(UsageError, match=r"o/n .*no route; set EQUIPOISE_DATA .*directory with x\.jsonl"):
        load_rows(source)


def test_hub_rows_are_asked_like_local_ones() -> None:
    arc = {"question": "Q?", "choices": {"text": ["yes", "no"], "label": ["1", "2"]}, "answerKey": "2"}
    local_arc = {"query": "Question: Q?", "choices": ["yes", "no"], "gold": 1}
    assert ArcEasy().parse(arc, local=False) == ArcEasy().parse(local_arc, local=True)
    passage = {"text": "the cat sat on the mat"}
    local_passage = {"context": "the cat sat on the", "continuation": "mat"}
    assert Lambada().parse(passage, local=False) == Lambada().parse(local_passage, local=True)
