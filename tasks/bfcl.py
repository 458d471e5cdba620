"""BFCL: does the model call the right function with the right arguments (Patil et al. 2025, ICML)?

Single-turn Python categories of the Berkeley Function-Calling Leaderboard. Example row and its possible
answer, which are of two files::

    {"id": "simple_python_1", "question": [[{"role": "user", "content": "Calculate the factorial of 5"}]],
     "function": [{"name": "math.factorial", "description": "...", "parameters": {"type": "dict",
     "properties": {"number": {"type": "integer", "description": "..."}}, "required": ["number"]}}]}
    {"id": "simple_python_1", "ground_truth": [{"math.factorial": {"number": [5]}}]}

Functions are offered as tools of the API. Where nothing offered helps (``irrelevance``), calling nothing
is right. A server without a tool parser leaves calls in the text: that is never right, in ``irrelevance``
neither, and the reason says so; with ``accept_text`` such calls are graded like any other.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from equipoise.evals.errors import UsageError
from equipoise.evals.types import ChatOptions, Output, TaskItem, ToolCall
from equipoise.tasks.advice import OTHER
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.tool_calls import example_of, mismatch, read_calls, told, wire_names
from equipoise.tasks.graders.tool_text import AS_TEXT, calls_in_text
from equipoise.tasks.reference import reply
from equipoise.tasks.rows import Row, RowSource, load_rows
from equipoise.tasks.tool_chat import ToolTask

__all__ = ["Bfcl", "json_schema_of"]

#: Name in version 4 (files of a directory), and in version 3 (the hub's).
_CATEGORIES = {
    "simple_python": "simple",
    "multiple": "multiple",
    "parallel": "parallel",
    "live_simple": "live_simple",
    "irrelevance": "irrelevance",
}
_TYPES = {
    "string": "string",
    "integer": "integer",
    "float": "number",
    "boolean": "boolean",
    "array": "array",
    "tuple": "array",
    "dict": "object",
    "any": "string",  # as the reference offers and checks it
}
_CITATION = "Patil et al. 2025, The Berkeley Function Calling Leaderboard (BFCL), ICML 2025"


def _source(category: str, folder: str = "") -> RowSource:
    return RowSource(
        local=f"bfcl/{folder}BFCL_v4_{category}.json",
        hub="gorilla-llm/Berkeley-Function-Calling-Leaderboard",
        hub_file=f"{folder}BFCL_v3_{_CATEGORIES[category]}.json",
        config="",
        split="",
        revision="61fc0608cfd831fcfbbaa676ebdfef0ed963eeda",
        licence="Apache-2.0",
        citation=_CITATION,
        label=category,
    )


@dataclass(frozen=True, kw_only=True)
class Bfcl(ToolTask):
    """``categories`` are the ones asked; ``accept_text`` also grades calls that came as text."""

    categories: tuple[str, ...] = tuple(_CATEGORIES)
    accept_text: bool = False

    option_names: ClassVar[tuple[str, ...]] = ("categories", "accept_text")
    name = "bfcl"
    version = "1"
    card: ClassVar[TaskCard] = TaskCard(
        title="BFCL: single-turn function calling",
        group="tools",
        protocol="chat",
        licence="Apache-2.0",
        citation=_CITATION,
        items=1298,
        clusters="function definitions (live_simple)",
        advice=OTHER,
        note="Needs a server with the model's tool parser. Five of the leaderboard's categories, checked by "
        "its AST rules; its own score also weighs many others. A directory holds version 4; the hub has "
        "version 3, whose items of these categories differ in some answers.",
    )

    def __post_init__(self) -> None:
        unknown = [c for c in self.categories if c not in _CATEGORIES]
        if unknown or len(set(self.categories)) != len(self.categories):
            raise ValueError(
                f"categories must be different ones of {', '.join(_CATEGORIES)}, not {self.categories}"
            )

    @property
    def sources(self) -> tuple[RowSource, ...]:  # type: ignore[override]
        return tuple(_source(c) for c in self.categories)

    def _rows(self) -> list[tuple[RowSource, int, Row, bool]]:
        """Questions joined with their possible answers."""
        found: list[tuple[RowSource, int, Row, bool]] = []
        for source in self.sources:
            category = source.label
            answers: dict[Any, Any] = {}
            if category != "irrelevance":
                listed, _ = load_rows(_source(category, "possible_answer/"))
                answers = {row.get("id"): row.get("ground_truth") for row in listed}
            for index, row in enumerate(load_rows(source)[0]):
                if category != "irrelevance" and row.get("id") not in answers:
                    raise UsageError(
                        f"{self.name} row {index} of {category} (id {row.get('id')!r}) has no possible "
                        "answer; the two files must be of one version"
                    )
                found.append((source, index, {**row, "ground_truth": answers.get(row.get("id"), [])}, True))
        return found

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        (turn,) = row["question"]
        system = "\n\n".join(str(m["content"]) for m in turn if m["role"] == "system")
        (user,) = (str(m["content"]) for m in turn if m["role"] != "system")
        functions = [dict(f) for f in row["function"]]
        for function in functions:
            json_schema_of(function["parameters"])  # raises where a type is unknown
        parameters = {f["name"]: f["parameters"]["properties"] for f in functions}
        for expected in row["ground_truth"]:
            ((name, allowed),) = expected.items()
            known = parameters[name]
            if not all(isinstance(values, list) and p in known for p, values in allowed.items()):
                raise ValueError(f"ground_truth of {name!r} does not list values of its parameters")
        key = str(row["id"]).rpartition("_")[2]
        # Live ids are question-function-variant: those of one function share its definition.
        live = key.split("-")
        return ChatQuestion(
            prompt=user,
            system=system,
            target="; ".join(name for expected in row["ground_truth"] for name in expected),
            extra={"functions": functions, "expected": list(row["ground_truth"])},
            cluster=f"{self.name}-{source.label}-{live[1]}" if len(live) == 3 else "",
            key=key,
        )

    def chat_options(self, item: TaskItem) -> ChatOptions:
        functions = item.inputs["functions"]
        names = wire_names([f["name"] for f in functions])
        tools = [
            {
                "type": "function",
                "function": {
                    "name": names[f["name"]],
                    "description": f.get("description", ""),
                    "parameters": json_schema_of(f["parameters"]),
                },
            }
            for f in functions
        ]
        return ChatOptions(tools=tuple(tools), tool_choice="auto")

    def right(self, item: TaskItem) -> Sequence[Output] | None:
        """The first possible answer; nothing called where nothing helps."""
        names = wire_names([f["name"] for f in item.inputs["functions"]])
        calls = tuple(
            ToolCall(name=names[name], arguments=json.dumps(example_of(allowed)))
            for expected in item.inputs["expected"]
            for name, allowed in expected.items()
        )
        return (reply(None, tool_calls=calls) if calls else reply("None of these helps."),)

    def wrong(self, item: TaskItem) -> Sequence[Output] | None:
        """Nothing called; a call where nothing helps."""
        if item.inputs["expected"]:
            return super().wrong(item)
        names = wire_names([f["name"] for f in item.inputs["functions"]])
        return (reply(None, tool_calls=(ToolCall(name=next(iter(names.values())), arguments="{}"),)),)

    def judge(self, item: TaskItem, calls: Sequence[ToolCall], text: str) -> Grade:
        functions, expected = item.inputs["functions"], item.inputs["expected"]
        names = wire_names([f["name"] for f in functions])
        prefix = ""
        if not calls and (written := calls_in_text(text, _types_on_the_wire(functions, names))):
            if not self.accept_text:
                return Grade(value=0.0, extracted=None, reason=AS_TEXT)
            calls, prefix = written, f"{AS_TEXT}; "
        if not calls:
            return Grade(
                value=float(not expected), extracted="no call", reason="" if not expected else "no call"
            )
        try:
            wrong = mismatch(read_calls(calls, names), expected, functions)
        except ValueError as e:
            wrong = str(e)
        return Grade(value=float(not wrong), extracted=told(calls), reason=prefix + wrong)


def _types_on_the_wire(
    functions: Sequence[Mapping[str, Any]], names: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    return {
        names[f["name"]]: {p: _TYPES[d["type"]] for p, d in f["parameters"]["properties"].items()}
        for f in functions
    }


def json_schema_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A definition in BFCL's types as a JSON schema.

    Raises
    ------
    ValueError
        A type that BFCL does not have.
    """
    schema = {k: v for k, v in parameters.items() if k != "optional"}
    if "type" in schema:
        if schema["type"] not in _TYPES:
            raise ValueError(f"unknown type {schema['type']!r}")
        schema["type"] = _TYPES[schema["type"]]
    if "properties" in schema:
        schema["properties"] = {name: json_schema_of(p) for name, p in schema["properties"].items()}
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            schema[inner] = json_schema_of(schema[inner])
    return schema
