"""Multiple choice by log-likelihood: asked and judged as lm-eval does, on its own definitions."""

import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from choice_rows import HUB, LISTED
from hub_rows import serve_rows

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Output, Sample, SampleKey, ScoreStatus, TaskItem
from equipoise.tasks.arc_challenge import ArcChallenge
from equipoise.tasks.arc_easy import ArcEasy
from equipoise.tasks.boolq import BoolQ
from equipoise.tasks.copa import Copa
from equipoise.tasks.lambada import Lambada
from equipoise.tasks.loglikelihood import LoglikelihoodTask, likely_replies
from equipoise.tasks.openbookqa import OpenBookQA
from equipoise.tasks.options import with_options
from equipoise.tasks.piqa import Piqa
from equipoise.tasks.validate import validate_task
from equipoise.tasks.winogrande import Winogrande

DATA = Path(os.environ.get("EQUIPOISE_DATA", ""))
#: task, items, clusters, content hash of row 1, which changes only with a new version
LOCAL: dict[str, tuple[LoglikelihoodTask, int, int, str]] = {
    "arc_easy": (ArcEasy(), 2376, 2376, "674f3f2f50072cb5"),
    "arc_challenge": (ArcChallenge(), 1172, 1172, "3a945b7d3eddf0bb"),
    "piqa": (Piqa(), 1838, 1803, "e6b2813a5e642d54"),
    "copa": (Copa(), 100, 100, "d2bacec905055e2e"),
    "winogrande": (Winogrande(), 1267, 993, "30c094b8bb3e7fe3"),
    "boolq": (BoolQ(), 3270, 2938, "456822c516c3ca45"),
    "openbookqa": (OpenBookQA(), 500, 500, "6eb56809418074d6"),
    "lambada": (Lambada(), 5153, 5153, "b758b5d1f162f980"),
}


def on_hub(
    monkeypatch: pytest.MonkeyPatch, task: LoglikelihoodTask, rows: Sequence[Mapping[str, Any]]
) -> None:
    serve_rows(monkeypatch, {(task.source.hub, task.source.config): rows})


def local(name: str) -> LoglikelihoodTask:
    task = LOCAL[name][0]
    if not os.environ.get("EQUIPOISE_DATA") or not (DATA / task.source.local).is_file():
        pytest.skip(f"EQUIPOISE_DATA has no {task.source.local}")
    return task


def sample(item: TaskItem, outputs: Sequence[Output]) -> Sample:
    return Sample(
        key=SampleKey(model="m", arm="A1", task=item.task, item_id=item.id),
        content_hash=item.content_hash,
        outputs=tuple(outputs),
        attempts=1,
        started_unix_s=0.0,
        latency_s=0.0,
    )


@pytest.mark.parametrize("name", LOCAL)
def test_all_items_load_and_are_judged_right_and_wrong(name: str) -> None:
    task, (_, count, clusters, content) = local(name), LOCAL[name]
    found = validate_task(task)
    assert found.faults == ()
    assert (found.items, found.right, found.wrong) == (count, count, count)
    items = task.items(count, 1)
    assert len({i.cluster_id for i in items}) == clusters
    assert {i.id: i for i in items}[f"{name}-00001"].content_hash == content


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """lm-eval's own tasks over the rows of HUB."""
    lm_eval = pytest.importorskip("lm_eval.tasks")
    own = Path(lm_eval.__file__).parent
    folder = tmp_path_factory.mktemp("lm_eval")
    for name, (_, path, rows) in HUB.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")}
        (folder / f"ours_{name}.yaml").write_text(
            f"include: {own / path}\ntask: ours_{name}\ndataset_path: json\ndataset_name: null\n"
            f"training_split: null\nvalidation_split: null\nfewshot_split: null\ntest_split: test\n"
            f"dataset_kwargs: {json.dumps(options)}\n"
        )
    manager = lm_eval.TaskManager(include_path=str(folder), include_defaults=False)
    return {name: manager.load([f"ours_{name}"])["tasks"][f"ours_{name}"] for name in HUB}


@pytest.mark.parametrize("name", HUB)
def test_contexts_and_continuations_are_lm_evals(
    name: str, definitions: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, _, rows = HUB[name]
    on_hub(monkeypatch, task, rows)
    items = {i.id: i for i in task.items(len(rows), 1)}
    theirs = definitions[name]
    theirs.build_all_requests(rank=0, world_size=1)
    for number in range(len(rows)):
        inputs = items[f"{name}-{number:05d}"].inputs
        contexts = inputs.get("contexts") or [inputs["context"]] * len(inputs["continuations"])
        asked = [i.args for i in theirs.instances if i.doc_id == number]
        assert [c + k for c, k in zip(contexts, inputs["continuations"], strict=True)] == [
            c + k for c, k in asked
        ]
        # lm-eval moves spaces that end a context when it makes tokens of it.
        assert contexts == [c.rstrip() for c, _ in asked]


@pytest.mark.parametrize("name", HUB)
def test_every_metric_is_lm_evals_on_any_logprobs(
    name: str, definitions: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, _, rows = HUB[name]
    on_hub(monkeypatch, task, rows)
    rng = random.Random(5)
    docs = list(definitions[name].test_docs())
    for item in task.items(len(rows), 1):
        for _ in range(40):
            logprobs = [-rng.choice([1.0, 2.0, 4.0, rng.random() * 9]) for _ in item.inputs["choices"]]
            wanted = definitions[name].process_results(
                docs[int(item.id[-5:])], [(x, False) for x in logprobs]
            )
            for metric in set(task.metrics) & set(wanted):
                mine = with_options(task, {"metric": metric})
                score = mine.score(item, sample(item, likely_replies(item, logprobs, greedy=False)))
                assert score.value == wanted[metric], (metric, logprobs)


def test_acc_norm_divides_by_characters_and_acc_bytes_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"query": "Question: q?", "choices": ["ééé", "abcdé"], "gold": 1}
    item = ArcEasy()._item(0, row, True)
    for logprobs, right in [
        ([-3.0, -4.0], {"acc": 0.0, "acc_norm": 1.0, "acc_bytes": 0.0}),
        ([-3.0, -2.0], {"acc": 1.0, "acc_norm": 1.0, "acc_bytes": 1.0}),
    ]:
        for metric, value in right.items():
            outputs = likely_replies(item, logprobs, greedy=False)
            assert ArcEasy(metric=metric).score(item, sample(item, outputs)).value == value


def test_a_metric_that_the_task_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="'boolq': metric must be one of acc, not 'acc_norm'"):
        with_options(BoolQ(), {"metric": "acc_norm"})


def test_winogrande_warms_each_context_before_it_is_scored() -> None:
    row = {"context_options": ["Ann met Bo so Ann", "Ann met Bo so Bo"], "continuation": "left.", "gold": 0}
    task = Winogrande()
    item = task._item(3, row, True)
    outputs: list[Output] = []
    asked = []
    for output in likely_replies(item, [-1.0, -2.0], greedy=False):
        request = task.next_request(item, outputs)
        assert request is not None
        start = None if request.prompt_logprobs is None else request.prompt_logprobs.start
        asked.append((request.text, start))
        outputs.append(output)
    assert task.next_request(item, outputs) is None
    assert asked == [
        ("Ann met Bo so Ann", None),
        ("Ann met Bo so Ann left.", 0),
        ("Ann met Bo so Bo", None),
        ("Ann met Bo so Bo left.", 0),
    ]
    score = task.score(item, sample(item, outputs))
    assert (score.value, score.extracted) == (1.0, "Ann met Bo so Ann")
    missing = task.score(item, sample(item, outputs[:3]))
    assert (missing.value, missing.status, missing.reason) == (None, ScoreStatus.ERRORED, "3 of 4 replies")


@pytest.mark.parametrize(
    ("name", "local_row", "hub_row"),
    [
        (
            "copa",
            {"query": "It rained, because", "choices": ["i sang.", "clouds came."], "gold": 1},
            {
                "premise": "It rained.",
                "question": "cause",
                "choice1": "I sang.",
                "choice2": "Clouds came.",
                "label": 1,
            },
        ),
        (
            "winogrande",
            {"context_options": ["A met B so A", "A met B so B"], "continuation": "left.", "gold": 1},
            {"sentence": "A met B so _ left.", "option1": "A", "option2": "B", "answer": "2"},
        ),
        (
            "piqa",
            {"query": "Question: peel\n", "choices": ["a", "b"], "gold": 0},
            {"goal": "peel", "sol1": "a", "sol2": "b", "label": 0},
        ),
        (
            "openbookqa",
            {"query": "Fog is", "choices": LISTED["text"], "gold": 2},
            {"question_stem": "Fog is", "choices": LISTED, "answerKey": "C"},
        ),
        (
            "boolq",
            {"query": "Passage: P.\nQuestion: is it?", "choices": ["no", "yes"], "gold": 1},
            {"passage": "P.", "question": "is it", "label": 1},
        ),
    ],
)
def test_hub_and_local_rows_are_asked_alike(
    name: str, local_row: dict[str, Any], hub_row: dict[str, Any]
) -> None:
    task = HUB[name][0]
    assert task.parse(local_row, local=True) == task.parse(hub_row, local=False)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("arc_challenge", {"answerKey": "E"}, "arc_challenge row 0 is malformed"),
        ("arc_challenge", {"choices": {"text": ["x"], "label": ["B"]}}, "malformed.*choice 0 of 1"),
        ("piqa", {"label": 2}, "piqa row 0 is malformed.*choice 2 of 2"),
        ("copa", {"question": "why"}, "copa row 0 has no field 'why'"),
        ("winogrande", {"sentence": "no blank"}, "winogrande row 0 is malformed.*no blank"),
        ("winogrande", {"answer": ""}, "winogrande row 0 is malformed"),
        ("hellaswag", {"label": ""}, "hellaswag row 0 is malformed"),
        ("hellaswag", {"source_id": None, "endings": None}, "hellaswag row 0 is malformed"),
        ("boolq", {"label": -1}, "boolq row 0 is malformed.*choice -1 of 2"),
        ("openbookqa", {"choices": ["x"]}, "openbookqa row 0 is malformed"),
    ],
)
def test_a_malformed_row_is_named(
    name: str, change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, _, rows = HUB[name]
    on_hub(monkeypatch, task, [{**rows[0], **change}])
    with pytest.raises(UsageError, match=message):
        task.items(1, 1)


def test_hellaswag_clusters_by_source(monkeypatch: pytest.MonkeyPatch) -> None:
    task, _, rows = HUB["hellaswag"]
    on_hub(monkeypatch, task, [rows[0], rows[1], rows[0]])
    assert {i.cluster_id for i in task.items(3, 1)} == {"hellaswag-activitynet~v_1", "hellaswag-wikihow~1"}
