"""The vendor verifier's requests: what triggers, what is valid, and the verdicts of the verifier itself."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Output, Sample, SampleKey, Score, ScoreStatus, Task, TaskItem, ToolCall
from equipoise.tasks.graders.tool_text import AS_TEXT
from equipoise.tasks.kimi_tools import ToolSchema, ToolTrigger
from equipoise.tasks.options import with_options
from equipoise.tasks.reference import reply

TOOL = {
    "type": "function",
    "function": {
        "name": "roll",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}
ROW = {"messages": [{"role": "user", "content": "Roll a die."}], "tools": [TOOL], "max_tokens": 4096}
TALK = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Roll."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "roll:0", "type": "function", "function": {"name": "roll", "arguments": '{"n": 1}'}}
            ],
        },
        {"role": "tool", "name": "roll", "tool_call_id": "roll:0", "content": "4"},
        {"role": "_input", "name": "x", "content": "Mind the rules."},
    ],
    "tools": [TOOL],
}


def _score(task: Task, item: TaskItem, output: Output) -> Score:
    key = SampleKey(model="m", arm="A1", task=task.name, item_id=item.id)
    sample = Sample(
        key=key,
        content_hash=item.content_hash,
        outputs=(output,),
        attempts=1,
        started_unix_s=0.0,
        latency_s=0.0,
    )
    return task.score(item, sample)


def _write(folder: Path, *rows: Any, name: str = "tool-call-single-content-dataset.jsonl") -> None:
    (folder / "kimi_verifier/llm_vendor_verifier").mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(r) + "\n" for r in rows)
    (folder / "kimi_verifier/llm_vendor_verifier" / name).write_text(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    _write(tmp_path, ROW)
    _write(tmp_path, TALK, name="samples.jsonl")
    return tmp_path


def _call(arguments: Any, name: str = "roll") -> ToolCall:
    return ToolCall(name=name, arguments=arguments if isinstance(arguments, str) else json.dumps(arguments))


@pytest.mark.parametrize(
    ("calls", "text", "trigger", "schema", "reason"),
    [
        ([], "Four.", 0.0, 1.0, "no call"),
        ([_call({"n": 6})], None, 1.0, 1.0, ""),
        ([_call({"n": 6}), _call({"n": 2})], "Here:", 1.0, 1.0, ""),
        ([_call({"n": 6}), _call({})], None, 1.0, 0.0, "'n' is a required property"),
        ([_call({"n": "six"})], None, 1.0, 0.0, "$.n: 'six' is not of type 'integer'"),
        ([_call("")], None, 1.0, 0.0, "malformed"),
        ([_call('{"n": 6')], None, 1.0, 0.0, "malformed"),
        ([_call('{"n": 6, "n": 7}')], None, 1.0, 0.0, "given twice"),
        ([_call('{"n": ' + "9" * 5000 + "}")], None, 1.0, 0.0, "5000 digits"),
        ([_call("[" * 100_000)], None, 1.0, 0.0, "malformed"),
        ([_call("[6]")], None, 1.0, 0.0, "is not of type 'object'"),
        ([_call({"n": 6}, name="dice")], None, 1.0, 0.0, "'dice' is not offered"),
        ([], '{"name": "roll", "arguments": {"n": 6}}', 0.0, 0.0, AS_TEXT),
    ],
)
def test_what_triggers_and_what_is_valid(
    folder: Path, calls: list[ToolCall], text: str | None, trigger: float, schema: float, reason: str
) -> None:
    output = reply(text, tool_calls=tuple(calls) or None)
    values = {}
    for task in (ToolTrigger(), ToolSchema()):
        (item,) = task.items(1, seed=1)
        score = _score(task, item, output)
        values[task.name] = score.value
        if reason == AS_TEXT:
            assert (score.extracted, score.reason) == (None, AS_TEXT)
    assert values == {"tool_trigger": trigger, "tool_schema": schema}
    assert reason in score.reason


def test_what_is_no_answer_is_no_missing_call(folder: Path) -> None:
    for task in (ToolTrigger(), ToolSchema()):
        (item,) = task.items(1, seed=1)
        assert _score(task, item, reply(None)).status is ScoreStatus.REFUSED
        cut = Output(text="So", finish_reason="length", prompt_tokens=1, completion_tokens=1, latency_s=0.0)
        assert _score(task, item, cut).status is ScoreStatus.TRUNCATED


def test_a_recorded_conversation_is_sent_once_as_kimi_expects_it(folder: Path) -> None:
    task = with_options(ToolTrigger(), {"subset": ["conversations"]})
    (item,) = task.items(1, seed=1)
    request = task.next_request(item, ())
    assert request is not None and request.messages is not None
    assert [m.role for m in request.messages] == ["system", "user", "assistant", "tool", "system"]
    assert request.messages[2].tool_calls[0].id == request.messages[3].tool_call_id == "functions.roll:0"
    assert request.messages[2].tool_calls[0].arguments == '{"n": 1}'
    assert (request.chat.tools, request.chat.tool_choice) == ((TOOL,), "auto")
    assert task.next_request(item, (reply("Four."),)) is None


def test_a_row_whose_schema_is_none_is_asked_for_its_trigger_only(folder: Path) -> None:
    tool = {"type": "function", "function": {"name": "roll", "parameters": {"type": "dice"}}}
    _write(folder, {**ROW, "tools": [tool]}, ROW)
    assert ToolTrigger().count() == 2
    assert [item.id for item in ToolSchema().items(1, seed=1)] == ["tool_schema-single-00001"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"messages": []}, "malformed"),
        ({"tools": []}, "no tools"),
        ({"tools": [{"function": {"name": "f"}}]}, "no field 'parameters'"),
        ({"tools": "roll"}, "malformed"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "is list, not text"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "unknown role 'bot'"),
        ({"messages": [*ROW["messages"], {"role": "assistant", "content": "x"}]}, "nothing to answer"),
    ],
)
@pytest.mark.parametrize("task", [ToolTrigger(), ToolSchema()])
def test_a_malformed_row_is_named(folder: Path, task: Any, changes: dict[str, Any], said: str) -> None:
    _write(folder, {**ROW, **changes})
    with pytest.raises(UsageError, match=f"{task.name} row 0 of single") as caught:
        task.items(1, seed=1)
    assert said in str(caught.value)


def test_without_a_directory_it_is_said_that_no_hub_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    with pytest.raises(UsageError, match=r"in no data set of the hub: set EQUIPOISE_DATA"):
        ToolTrigger().items(1, seed=1)


@pytest.mark.parametrize("subset", [["multi"], ["single", "single"]])
def test_subsets_are_known_and_different(subset: list[str]) -> None:
    with pytest.raises(UsageError, match="subset must be different ones of single, conversations"):
        with_options(ToolTrigger(), {"subset": subset})


# -- real requests and replies -------------------------------------------------------------


def _vendors() -> dict[str, list[Any]]:
    folder = Path(os.environ.get("EQUIPOISE_DATA", "-"), "paired/toolcall_vendors")
    if not folder.is_dir():
        pytest.skip("EQUIPOISE_DATA has no paired/toolcall_vendors")
    return {file.stem.split("-")[0]: json.loads(file.read_text()) for file in folder.glob("*.json")}


def test_all_requests_load_with_stable_ids_and_hashes() -> None:
    _vendors()
    for task, wanted in ((ToolTrigger(), "24795315a57f03b9"), (ToolSchema(), "24795315a57f03b9")):
        items = task.items(task.count(), seed=1)
        assert len({i.id for i in items}) == task.card.items
        assert {i.id: i.content_hash for i in items}[f"{task.name}-single-00003"] == wanted
    both = with_options(ToolTrigger(), {"subset": ["single", "conversations"]})
    assert len(both.items(515, seed=1)) == 515


def test_real_replies_are_judged_as_the_verifier_judged_them() -> None:
    vendors = _vendors()
    tasks = {
        task.name: ({i.id: i for i in task.items(task.count(), seed=1)}, task)
        for task in (ToolTrigger(), ToolSchema())
    }
    triggered: dict[str, dict[int, float | None]] = {}
    for vendor, rows in vendors.items():
        triggered[vendor] = {}
        for row in rows:
            calls = tuple(
                ToolCall(name=name, arguments=arguments) for name, arguments in row["tool_calls"] or ()
            )
            output = reply(None if calls else "No.", tool_calls=calls or None)
            number = row["data_index"] - 1
            items, task = tasks["tool_trigger"]
            value = _score(task, items[f"tool_trigger-single-{number:05d}"], output).value
            assert value == float(row["finish_reason"] == "tool_calls")
            triggered[vendor][number] = value
            items, task = tasks["tool_schema"]
            item = items.get(f"tool_schema-single-{number:05d}")
            if (
                item is not None
            ):  # one tool's definition is no schema; the verifier calls its every call invalid
                assert _score(task, item, output).value == float(row["tool_calls_valid"] is not False), (
                    vendor,
                    row,
                )
    for before, after, flips in (("deepseek", "ppio", (36, 19)), ("openrouter", "ppio", (28, 27))):
        pairs = [
            (triggered[before][n], triggered[after][n]) for n in triggered[before].keys() & triggered[after]
        ]
        assert (len(pairs), pairs.count((1.0, 0.0)), pairs.count((0.0, 1.0))) == (511, *flips)


def test_halves_share_no_request_and_no_tools(folder: Path) -> None:
    rows = [
        {**ROW, "tools": [{**TOOL, "function": {**TOOL["function"], "name": f"roll{i}"}}]}  # type: ignore[dict-item]
        for i in range(40)
    ]
    _write(folder, *rows)
    counts = {half: ToolTrigger(half=half).count() for half in ("both", "first", "second")}
    first = ToolTrigger(half="first").items(counts["first"], 1)
    second = ToolSchema(half="second").items(counts["second"], 1)
    assert counts["first"] + counts["second"] == counts["both"] == 40
    assert min(counts.values()) > 10
    assert not {i.id.rsplit("-", 1)[1] for i in first} & {i.id.rsplit("-", 1)[1] for i in second}
    with pytest.raises(UsageError, match="half must be both, first or second"):
        with_options(ToolTrigger(), {"half": "third"})
