"""BFCL: what counts as the expected calls, calls that came as text, and all of the data."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Output, Sample, SampleKey, Score, ScoreStatus, TaskItem, ToolCall
from equipoise.tasks.bfcl import Bfcl, json_schema_of
from equipoise.tasks.graders.json_text import MAX_CHARS, parse_json
from equipoise.tasks.graders.tool_calls import example_of, mismatch, read_calls, wire_names
from equipoise.tasks.graders.tool_text import AS_TEXT, calls_in_text
from equipoise.tasks.options import with_options
from equipoise.tasks.reference import reply

PROPERTIES = {
    "s": {"type": "string"},
    "i": {"type": "integer"},
    "f": {"type": "float"},
    "b": {"type": "boolean"},
    "l": {"type": "array", "items": {"type": "string"}},
    "t": {"type": "tuple", "items": {"type": "float"}},
    "d": {"type": "dict", "properties": {}},
}
FUNCTIONS = [
    {"name": "do.it", "parameters": {"type": "dict", "properties": PROPERTIES, "required": ["s"]}},
    {"name": "other", "parameters": {"type": "dict", "properties": {}, "required": []}},
]
NAMES = wire_names(["do.it", "other"])


def _wrong(calls: list[ToolCall], expected: list[Any]) -> str:
    try:
        return mismatch(read_calls(calls, NAMES), expected, FUNCTIONS)
    except ValueError as e:
        return str(e)


def _call(arguments: Any, name: str = "do_it") -> ToolCall:
    return ToolCall(name=name, arguments=arguments if isinstance(arguments, str) else json.dumps(arguments))


@pytest.mark.parametrize(
    ("name", "allowed", "right", "wrong"),
    [
        ("s", ["New York, NY"], ["new york ny", "New-York/N.Y."], ["New York", 5, None, ["New York, NY"]]),
        ("s", ["it's", ""], ['it"s', ""], ["its"]),
        ("s", ["x", None], ["x", None], ["null", False]),
        ("i", [5, ""], [5], [5.0, "5", 6, True, ""]),
        ("i", [1], [1], [True, 1.0]),
        ("f", [5, 2.5], [5, 5.0, 2.5], ["5", True, 2]),
        ("b", [True], [True], [False, 1, "true", None]),
        ("l", [["A b", "c"], ""], [["a B", "C"], []], [["c", "A b"], ["A b"], "A b"]),
        ("l", [], [[]], [["x"]]),
        ("t", [[0.5, 2]], [[0.5, 2.0]], [[2, 0.5], [0.5, 2, 2]]),
        (
            "d",
            [{"min": [3], "max": [4, ""]}],
            [{"min": 3, "max": 4}, {"min": 3}],
            [{"max": 4}, {"min": 3, "x": 1}, 3],
        ),
        ("d", [{"a": ["x"]}, {"a": ["y"]}], [{"a": "X"}, {"a": "y"}], [{"a": "z"}, {}]),
        (
            "d",
            [{"who": [["A of x"]], "in": [{"deep": [1]}]}],
            [{"who": ["a OF x"], "in": {"deep": 1}}],
            [{"who": []}],
        ),
        (
            "l",
            [[{"field": ["age"], "value": ["25"]}]],
            [[{"field": "age", "value": "25"}]],
            [[{"field": "age"}]],
        ),
    ],
)
def test_values_that_are_allowed_and_values_that_are_not(
    name: str, allowed: list[Any], right: list[Any], wrong: list[Any]
) -> None:
    expected = [{"do.it": {"s": ["q"], **{name: allowed}}}]
    for value in right:
        assert _wrong([_call({"s": "q", name: value})], expected) == "", value
    for value in wrong:
        assert _wrong([_call({"s": "q", name: value})], expected), value


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([], "0 calls, expected 1"),
        ([_call({"s": "q", "i": 1})] * 2, "2 calls, expected 1"),
        ([_call({"s": "q", "i": 1}, name="other")], "calls 'other', expected 'do.it'"),
        ([_call({"s": "q", "i": 1}, name="no_such")], "calls 'no_such'"),
        ([_call({"i": 1})], "without the required 's'"),
        ([_call({"s": "q"})], "without 'i'"),
        ([_call({"s": "q", "i": 1, "x": 1})], "unexpected 'x'"),
        ([_call({"s": "q", "i": 1, "b": True})], "unexpected 'b'"),  # known, but not in the answer
        ([_call('{"s": "q", "i": 1')], "malformed"),
        ([_call('{"s": "q", "i": 1, "i": 1}')], "'i' is given twice"),
        ([_call('["q", 1]')], "no JSON object"),
        ([_call("")], "without the required 's'"),
    ],
)
def test_calls_that_are_not_the_expected_one(calls: list[ToolCall], said: str) -> None:
    assert said in _wrong(calls, [{"do.it": {"s": ["q"], "i": [1], "f": ["", 0.5]}}])


def test_parallel_calls_match_in_any_order_each_one_once() -> None:
    # Taken one after the other, the first call would use up what only the second can be.
    expected = [{"do.it": {"s": ["a", "b"]}}, {"do.it": {"s": ["a"]}}, {"other": {}}]
    a, b, other = _call({"s": "a"}), _call({"s": "b"}), _call("{}", name="other")
    assert _wrong([a, b, other], expected) == ""
    assert _wrong([other, b, a], expected) == ""
    assert _wrong([b, b, other], expected) != ""
    assert _wrong([a, a, other], expected) == ""


def test_names_on_the_wire_are_allowed_by_the_api_and_no_two_alike() -> None:
    names = wire_names(["a.b", "a_b", "a-b", "é" * 3, "x" * 100, "x" * 101])
    assert names["a.b"] == "a_b"
    assert names["a_b"] == "a_b_2"
    assert len(set(names.values())) == 6
    assert all(n.isascii() and len(n) <= 64 for n in names.values())


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 200 + "1" + "}" * 200,
        "9" * 5000,
        "1e999",
        "NaN",
        '"' + "x" * MAX_CHARS + '"',
        '{"a": 1, "b": 2, "a": 3}',
        "",
        "{} {}",
        "\x00",
    ],
    ids=lambda t: t[:12],
)
def test_json_that_is_malformed_or_a_bomb_is_an_error_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


# -- as text -------------------------------------------------------------------------------

TYPES = {"do_it": {"s": "string", "i": "integer"}}
KIMI = (
    "Let me see.<|tool_calls_section_begin|><|tool_call_begin|>functions.do_it:0<|tool_call_argument_begin|>"
    '{"s": "q", "i": 1}<|tool_call_end|><|tool_calls_section_end|>'
)
GLM = (
    "<tool_call>do_it\n<arg_key>s</arg_key>\n<arg_value>q</arg_value>\n<arg_key>i</arg_key>\n<arg_value>1</arg_value>\n"
    "</tool_call>"
)
PLAIN = '{"name": "do_it", "arguments": {"s": "q", "i": 1}}'
FORMS = [
    KIMI,
    GLM,
    GLM.replace("\n", ""),
    f"<tool_call>\n{PLAIN}\n</tool_call>",
    PLAIN,
    f"```json\n[{PLAIN}]\n```",
    PLAIN.replace("arguments", "parameters"),
]


@pytest.mark.parametrize("text", FORMS)
def test_calls_that_came_as_text_are_recognised(text: str) -> None:
    (call,) = calls_in_text(text, TYPES)
    assert (call.name, json.loads(call.arguments)) == ("do_it", {"s": "q", "i": 1})


def test_in_glms_form_a_string_stays_a_string() -> None:
    (call,) = calls_in_text(GLM.replace(">q<", ">12<"), TYPES)
    assert json.loads(call.arguments) == {"s": "12", "i": 1}


@pytest.mark.parametrize(
    "text", ["", "No call.", '{"a": 1}', "[]", "[1]", '{"name": 3, "arguments": {}}', "```x```"]
)
def test_other_texts_hold_no_call(text: str) -> None:
    assert calls_in_text(text, TYPES) == ()


@pytest.mark.parametrize("mark", ["<tool_call>", "<|tool_call_begin|>", "<tool_call><arg_key>", "[", "```"])
def test_a_megabyte_of_marks_gives_a_bounded_number_of_calls(mark: str) -> None:
    assert len(calls_in_text(mark * (1_000_000 // len(mark)), TYPES)) <= 1024


# -- the task ------------------------------------------------------------------------------


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
    "function": [{**FUNCTIONS[0], "description": "Does it."}],
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
