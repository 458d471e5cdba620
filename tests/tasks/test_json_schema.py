"""Validation of arguments against a tool's schema: drafts, references, and what a hostile value may cost."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from equipoise.tasks.graders import json_schema
from equipoise.tasks.graders.json_schema import check_schema, violation

NODE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["v"]}
    },
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (True, [1, {}], []),
        ({}, [1, None, {"a": []}], []),
        ({"type": "integer"}, [1, 1.0], ["1", 1.5, True]),
        ({"type": "object", "required": ["a"]}, [{"a": None}], [{}]),
        ({"enum": ["a", 1]}, ["a", 1], ["b", True]),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False},
            [{}],
            [{"b": 1}],
        ),
        (
            {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
            [{"a": "x", "b": 1}],
            [{"b": "x"}],
        ),
        ({"patternProperties": {"^x": {"type": "integer"}}}, [{"x1": 1, "y": "s"}], [{"x1": "s"}]),
        ({"patternProperties": {"^x": {}}, "additionalProperties": False}, [{"x": 1}], [{"y": 1}]),
        ({"pattern": r"^\p{Lu}\d+$"}, ["A1", 5], ["a1"]),
        ({"propertyNames": {"pattern": "^[a-z]+$"}}, [{"ab": 1}], [{"A": 1}]),
        (
            {"uniqueItems": True},
            [[1, True, "1", {"a": 1}]],
            [[1, 1.0], [{"a": [1], "b": 2}, {"b": 2, "a": [1.0]}]],
        ),
        (NODE, [{"v": 1, "next": {"v": 2}}], [{"v": 1, "next": {}}]),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]},
            [["a", 1]],
            [[1]],
        ),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True},
            [2],
            [1],
        ),
        ({"unevaluatedProperties": False, "properties": {"a": {}}}, [{"a": 1}], [{"b": 1}]),
        ({"$id": "#tool", "type": "string"}, ["a"], [1]),
        (
            {"$id": "http://example.com/a.json", "$ref": "#/$defs/s", "$defs": {"s": {"type": "string"}}},
            ["a"],
            [1],
        ),
        ({"type": "string", "format": "date"}, ["not a date"], []),  # an annotation, as the drafts say
    ],
)
def test_values_that_satisfy_a_schema_and_values_that_do_not(
    schema: Any, right: list[Any], wrong: list[Any]
) -> None:
    for value in right:
        assert violation(schema, value) == "", value
    for value in wrong:
        assert violation(schema, value), value


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (5, "a schema is an object"),
        ({"type": "float"}, "not a JSON schema"),
        ({"properties": {"a": {"required": {"b": 1}}}}, "not a JSON schema"),
        ({"$ref": "http://127.0.0.1:1/schema.json"}, "leads out of the schema"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "leads out of the schema"),
        ({"properties": {"a": {"pattern": "("}}}, "cannot be compiled"),
        ({"patternProperties": {"(": {}}}, "cannot be compiled"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "bounded time"),
    ],
)
def test_what_is_no_usable_schema_is_said(schema: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_schema(schema)


def test_names_that_look_like_keywords_are_names() -> None:
    schema = {
        "properties": {"$ref": {"type": "string"}, "pattern": {"type": "integer"}},
        "const": {"$ref": "x", "pattern": 1},
    }
    assert violation(schema, {"$ref": "x", "pattern": 1}) == ""


def _nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


BRANCHING = {
    "$ref": "#/$defs/n",
    "$defs": {"n": {"anyOf": [{"properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["b"]}] * 3}},
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": "^(a|aa)+$"}, "a" * 200 + "!"),
        ({"patternProperties": {"^(a|aa)+$": {}}}, {"a" * 200 + "!": 1}),
        ({"patternProperties": {"^(a|aa)+$": {}}, "additionalProperties": False}, {"a" * 200 + "!": 1}),
        (BRANCHING, _nested(60)),
        ({"$ref": "#"}, 1),
    ],
)
def test_what_would_take_forever_is_given_up_and_invalid(schema: Any, value: Any) -> None:
    assert "cannot be validated" in violation(schema, value)


def test_unique_items_take_linear_time() -> None:
    steps = json_schema._canonical
    calls = 0

    def counted(value: Any) -> Any:
        nonlocal calls
        calls += 1
        return steps(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_schema, "_canonical", counted)
        assert violation({"uniqueItems": True}, [{"a": i} for i in range(5000)]) == ""
    assert calls == 10_000  # each item, and the number in it


def test_a_long_list_of_patterns_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    assert "patterns take more than 0.5 s" in violation({"items": {"pattern": "a"}}, ["a"] * 10)


def test_every_schema_that_moonshots_validator_accepts_is_usable() -> None:
    folder = Path(
        os.environ.get("EQUIPOISE_DATA", "-"), "kimi_verifier/schema_validator_cases/validator_cases"
    )
    if not folder.is_dir():
        pytest.skip("EQUIPOISE_DATA has no kimi_verifier/schema_validator_cases")
    lines = [
        line
        for file in folder.glob("*/valid.jsonl")
        for line in file.read_text().splitlines()
        if line.strip()
    ]
    assert len(lines) == 212
    for line in lines:
        check_schema(json.loads(line))
