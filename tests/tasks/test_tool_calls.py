"""Tool calls against what was expected of them, their JSON, and calls that came as text."""

import json
from typing import Any

import pytest
from tool_forms import FORMS, GLM, TYPES

from equipoise.evals.types import ToolCall
from equipoise.tasks.graders.json_text import MAX_CHARS, parse_json
from equipoise.tasks.graders.tool_calls import mismatch, read_calls, wire_names
from equipoise.tasks.graders.tool_text import calls_in_text

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
        ([_call("")], "malformed"),
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
