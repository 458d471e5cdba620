"""BFCL: all of the data, how functions are offered, and what counts as an answer."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tool_forms import FORMS

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Output, Sample, SampleKey, Score, ScoreStatus, TaskItem, ToolCall
from equipoise.tasks.bfcl import Bfcl, json_schema_of
from equipoise.tasks.graders.tool_calls import example_of, wire_names
from equipoise.tasks.graders.tool_text import AS_TEXT
from equipoise.tasks.options import with_options
from equipoise.tasks.reference import reply

FUNCTION = {
    "name": "do.it",
    "description": "Does it.",
    "parameters": {
        "type": "dict",
        "properties": {"s": {"type": "string"}, "i": {"type": "integer"}},
        "required": ["s"],
    },
}


def _call(arguments: Any, name: str = "do_it") -> ToolCall:
    return ToolCall(name=name, arguments=arguments if isinstance(arguments, str) else json.dumps(arguments))


def _data() -> None:
    if not Path(os.environ.get("EQUIPOISE_DATA", "-"), "bfcl/BFCL_v4_simple_python.json").exists():
        pytest.skip("EQUIPOISE_DATA has no bfcl/BFCL_v4_*.json")


def _score(task: Bfcl, item: TaskItem, output: Output) -> Score:
    key = SampleKey(model="m", arm="A1", task=task.name, item_id=item.id)
    return task.score(
        item,
        Sample(
            key=key,
            content_hash=item.content_hash,
            outputs=(output,),
            attempts=1,
            started_unix_s=0.0,
            latency_s=0.0,
        ),
    )


def _calls(task: Bfcl, item: TaskItem) -> tuple[ToolCall, ...]:
    (right,) = task.right(item) or ()
    return right.tool_calls or ()


def test_every_item_of_every_category_accepts_its_answer_and_nothing_else() -> None:
    _data()
    task = Bfcl()
    items = task.items(task.count(), seed=1)
    assert len({item.id for item in items}) == Bfcl.card.items == 1298
    for item in items:
        calls = _calls(task, item)
        assert _score(task, item, reply(None, tool_calls=calls) if calls else reply("No.")).value == 1.0, (
            item.id
        )
        if not calls:
            assert item.strata == {"subset": "irrelevance"}
            wrong = task.wrong(item)
            assert wrong is not None
            assert _score(task, item, wrong[0]).value == 0.0
            continue
        first, *rest = calls
        arguments = json.loads(first.arguments)
        renamed = ToolCall(name=first.name + "x", arguments=first.arguments)
        extra = _call({**arguments, "no such": 1}, name=first.name)
        changed = [_call({**arguments, p: {"no": "value"}}, name=first.name) for p in arguments]
        for other in (
            [],
            rest,
            [*calls, first],
            [renamed, *rest],
            [extra, *rest],
            *([c, *rest] for c in changed),
        ):
            output = reply(None, tool_calls=tuple(other)) if other else reply("No.")
            assert _score(task, item, output).value == 0.0, (item.id, other)


def test_every_allowed_value_of_every_parameter_is_right() -> None:
    _data()
    task = Bfcl(categories=("simple_python", "multiple", "live_simple"))
    for item in task.items(task.count(), seed=1):
        (expected,) = item.inputs["expected"]
        ((name, allowed),) = expected.items()
        wire = wire_names([f["name"] for f in item.inputs["functions"]])[name]
        base = example_of(allowed)
        for parameter, values in allowed.items():
            for value in values:
                arguments = {**base, **example_of({parameter: [value]})}
                if value == "" and parameter not in _required(item, name):
                    arguments.pop(parameter, None)
                call = _call(arguments, name=wire)
                assert _score(task, item, reply(None, tool_calls=(call,))).value == 1.0, (
                    item.id,
                    parameter,
                    value,
                )


def _required(item: TaskItem, name: str) -> list[str]:
    (function,) = (f for f in item.inputs["functions"] if f["name"] == name)
    return list(function["parameters"].get("required", ()))


def test_items_keep_their_ids_and_hashes_and_live_ones_cluster_by_function() -> None:
    _data()
    items = {item.id: item for item in Bfcl().items(1298, seed=1)}
    assert items["bfcl-simple_python-1"].content_hash == "ee88bac4b66c7a68"
    assert items["bfcl-live_simple-31-8-1"].cluster_id == items["bfcl-live_simple-30-8-0"].cluster_id
    assert items["bfcl-parallel-3"].cluster_id == "bfcl-parallel-3"


def test_definitions_are_offered_as_tools_of_the_api() -> None:
    _data()
    task = Bfcl()
    (item,) = (i for i in task.items(1298, seed=1) if i.id == "bfcl-simple_python-1")
    request = task.next_request(item, [])
    assert request is not None
    assert request.chat.tool_choice == "auto"
    (tool,) = request.chat.tools
    assert tool["function"]["name"] == "math_factorial"
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "number": {
                "type": "integer",
                "description": tool["function"]["parameters"]["properties"]["number"]["description"],
            }
        },
        "required": ["number"],
    }


def test_types_within_definitions_become_those_of_json_schema() -> None:
    definition = {
        "type": "dict",
        "properties": {
            "type": {"type": "float", "optional": True, "default": {}},
            "properties": {"type": "tuple", "items": {"type": "dict", "properties": {"x": {"type": "any"}}}},
        },
    }
    before = copy.deepcopy(definition)
    assert json_schema_of(definition) == {
        "type": "object",
        "properties": {
            "type": {"type": "number", "default": {}},
            "properties": {
                "type": "array",
                "items": {"type": "object", "properties": {"x": {"type": "string"}}},
            },
        },
    }
    assert definition == before
    with pytest.raises(ValueError, match="unknown type 'number'"):
        json_schema_of({"type": "number"})


ROW = {
    "id": "simple_python_7",
    "question": [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Do it."}]],
    "function": [FUNCTION],
}
ANSWER = {"id": "simple_python_7", "ground_truth": [{"do.it": {"s": ["q"], "i": ["", 1]}}]}


def _write(folder: Path, row: Any, answer: Any) -> None:
    (folder / "bfcl/possible_answer").mkdir(parents=True)
    (folder / "bfcl/BFCL_v4_simple_python.json").write_text(json.dumps(row) + "\n")
    (folder / "bfcl/possible_answer/BFCL_v4_simple_python.json").write_text(json.dumps(answer) + "\n")


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bfcl, TaskItem]:
    _write(tmp_path, ROW, ANSWER)
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    task = Bfcl(categories=("simple_python",))
    (item,) = task.items(1, seed=1)
    return task, item


@pytest.mark.parametrize("text", FORMS)
def test_a_call_as_text_is_never_right_unless_the_plan_accepts_it(
    one: tuple[Bfcl, TaskItem], text: str
) -> None:
    task, item = one
    strict = _score(task, item, reply(text))
    assert (strict.value, strict.extracted, strict.reason) == (0.0, None, AS_TEXT)
    accepting = with_options(task, {"accept_text": True})
    assert isinstance(accepting, Bfcl)
    graded = _score(accepting, item, reply(text))
    assert graded.value == 1.0
    assert graded.reason.startswith(AS_TEXT)
    none_expected = TaskItem(
        **{f: getattr(item, f) for f in TaskItem.__slots__} | {"inputs": {**item.inputs, "expected": []}}
    )
    assert _score(task, none_expected, reply(text)).value == 0.0


def test_null_content_is_an_answer_only_with_a_call(one: tuple[Bfcl, TaskItem]) -> None:
    task, item = one
    assert _score(task, item, reply(None)).status is ScoreStatus.REFUSED
    assert _score(task, item, reply(None, tool_calls=(_call({"s": "q"}),))).value == 1.0
    no_call = _score(task, item, reply("I will not."))
    assert (no_call.value, no_call.extracted, no_call.reason) == (0.0, "no call", "no call")
    malformed = _score(task, item, reply(None, tool_calls=(_call("{"),)))
    assert malformed.value == 0.0
    assert "malformed" in malformed.reason


@pytest.mark.parametrize(
    ("row", "answer", "said"),
    [
        (
            {**ROW, "function": [{"name": "f", "parameters": {"type": "object", "properties": {}}}]},
            ANSWER,
            "unknown type",
        ),
        ({**ROW, "question": []}, ANSWER, "malformed"),
        ({k: v for k, v in ROW.items() if k != "question"}, ANSWER, "no field 'question'"),
        (ROW, {**ANSWER, "id": "simple_python_8"}, "has no possible answer"),
        (ROW, {**ANSWER, "ground_truth": [{"do.it": {"zzz": ["q"]}}]}, "ground_truth"),
        (ROW, {**ANSWER, "ground_truth": [{"undo": {}}]}, "no field 'undo'"),
    ],
)
def test_a_malformed_row_is_named(
    row: Any, answer: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, row, answer)
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    with pytest.raises(UsageError, match="bfcl row 0 of simple_python") as caught:
        Bfcl(categories=("simple_python",)).items(1, seed=1)
    assert said in str(caught.value)


def test_a_row_of_the_hub_has_the_same_id(one: tuple[Bfcl, TaskItem]) -> None:
    task, item = one
    (source, *_), *_ = task._rows()
    hub = {**ROW, **ANSWER, "id": "simple_7"}
    assert task.parse(hub, source=source, local=True).key == "7" == item.id.rpartition("-")[2]


@pytest.mark.parametrize("categories", [["simple"], ["parallel", "parallel"]])
def test_categories_are_known_and_different(categories: list[str]) -> None:
    with pytest.raises(UsageError, match="categories must be different ones of simple_python"):
        with_options(Bfcl(), {"categories": categories})
