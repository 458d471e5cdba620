"""`equipoise export --format inspect`: inspect reads the logs, and our reader pairs them as the run."""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runs import cli, error_of
from outcome_run import outcome_run

from equipoise.evals.chat import Message, ToolCall
from equipoise.evals.errors import UsageError
from equipoise.evals.experiment.export_inspect import message_form
from equipoise.evals.interop.inspect_export import InspectLog, write_inspect
from equipoise.evals.interop.inspect_form import InspectSample, Usage
from equipoise.evals.interop.inspect_log import read_inspect
from equipoise.evals.interop.result_set import ReadOptions
from equipoise.evals.types import ScoreStatus
from equipoise.reports import json as json_report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -e '.[dev]'")
    root = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOISE_DATA", str(root))
        yield outcome_run(root)


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    result = cli("export", run, "--format", "inspect")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("wrote ") == 3 * 4
    return run / "inspect"


@pytest.fixture(scope="module")
def logs(exported: Path) -> dict[str, Any]:
    """The logs of arm B by task, as inspect reads them."""
    log = pytest.importorskip("inspect_ai.log", reason="inspect-ai is not installed: pip install -e '.[dev]'")
    found = [log.read_eval_log(str(path)) for path in sorted((exported / "m__B").glob("*.eval"))]
    return {one.eval.task: one for one in found}


def tables(*args: str | Path) -> Any:
    report = json_report.load(cli("compare", *args, "--margin", ".05", "--json").stdout)
    assert report.models, report.run
    return report.models[0].tasks


def test_logs_of_both_arms_pair_and_score_as_the_run(run: Path, exported: Path) -> None:
    theirs = {t.task: t for t in tables(exported / "m__A1", exported / "m__B")}
    ours = {t.task: t for t in tables(f"{run}:A1", f"{run}:B")}
    assert set(ours) == {"copy", "dialog_recall", "arc_easy", "sums"}
    assert theirs == ours


def test_inspect_reads_every_sample_with_its_outcome(logs: dict[str, Any]) -> None:
    assert {task: len(log.samples) for task, log in logs.items()} == {
        "copy": 24,
        "dialog_recall": 8,
        "arc_easy": 20,
        "sums": 16,
    }
    for log in logs.values():
        assert (log.status, log.results.total_samples) == ("success", len(log.samples))
        scored = [s.scores for s in log.samples if s.scores]
        (name,) = scored[0]
        values = [s[name].value for s in scored]
        (summary,) = log.results.scores
        assert summary.metrics["accuracy"].value == pytest.approx(sum(values) / len(values))
        assert (summary.scored_samples, summary.unscored_samples) == (
            len(values),
            len(log.samples) - len(values),
        )
    outcomes = [s.metadata["equipoise"]["status"] for s in logs["sums"].samples]
    assert {k: outcomes.count(k) for k in set(outcomes)} == {
        "scored": 12,
        "truncated": 1,
        "refused": 1,
        "errored": 2,
    }
    stops = {s.metadata["equipoise"]["status"]: s.output.stop_reason for s in logs["sums"].samples}
    assert stops == {
        "scored": "stop",
        "truncated": "max_tokens",
        "refused": "content_filter",
        "errored": "unknown",
    }
    assert {s.error.message for s in logs["sums"].samples if s.error} == {"timeout"}
    assert {s.epoch for s in logs["copy"].samples} == {1, 2}


def test_what_was_asked_and_answered_is_there(logs: dict[str, Any]) -> None:
    arc = next(s for s in logs["arc_easy"].samples if s.scores)
    assert arc.choices in (["yes", "no"], ["yes", "no", "so"], [" yes", " no"], [" yes", " no", " so"])
    assert arc.input.startswith("Question: ")
    sums = next(s for s in logs["sums"].samples if s.scores and s.scores["exact_match"].value)
    assert sums.input.startswith("Q: ")
    assert sums.output.completion == sums.target
    assert (
        sums.output.usage.total_tokens == sums.output.usage.input_tokens + sums.output.usage.output_tokens > 0
    )
    turns = next(s for s in logs["dialog_recall"].samples if s.scores)
    assert [m.role for m in turns.messages[-2:]] == ["user", "assistant"]
    assert len(turns.messages) > len(turns.input)


def test_the_summaries_that_viewers_list_agree_with_the_samples(exported: Path) -> None:
    log = pytest.importorskip("inspect_ai.log", reason="inspect-ai is not installed: pip install -e '.[dev]'")
    assert len(log.list_eval_logs(str(exported))) == 12
    for path in (exported / "m__B").glob("*.eval"):
        whole = {(s.id, s.epoch): s for s in log.read_eval_log(str(path)).samples}
        listed = log.read_eval_log_sample_summaries(str(path))
        assert {(s.id, s.epoch) for s in listed} == set(whole)
        for s in listed:
            assert s.scores == whole[s.id, s.epoch].scores
            one = log.read_eval_log_sample(str(path), s.id, s.epoch)
            assert one.target == whole[s.id, s.epoch].target


def test_a_log_is_the_same_every_time_and_never_replaced_unasked(
    run: Path, exported: Path, tmp_path: Path
) -> None:
    again = cli("export", run, "--format", "inspect", "--out", tmp_path, "--arm", "B")
    assert again.exit_code == 0
    for path in (tmp_path / "m__B").iterdir():
        assert path.read_bytes() == (exported / "m__B" / path.name).read_bytes()
    assert "exists already; replace it with --force" in error_of(
        cli("export", run, "--format", "inspect"), code=2
    )
    assert cli("export", run, "--format", "inspect", "--force").exit_code == 0
    assert not list(exported.rglob("*.new"))


# -- hostile text

LOG = InspectLog(
    task="t", version="1", model="m:B", scorer="score", planned_ids=("a",), epochs=1, created_unix_s=1e9
)
HOSTILE = {
    "script": "<script>alert(1)</script>",
    "ansi": "\x1b[2J\x1b]0;t\x07",
    "null": "a\0b",
    "surrogate": "a\ud800b\udfff",
    "bidi": "\u202etxt\u2066",
    "closing": "]]></pre></script>",
    "long": "x" * 5_000_000,
    "markdown": "![x](http://a.example) | `a` |\n# h",
}


def _sample(text: str, item_id: str = "a") -> InspectSample:
    return InspectSample(
        item_id=item_id,
        repeat=0,
        input=text,
        choices=(),
        target=text,
        messages=[{"role": "user", "content": text}, {"role": "assistant", "content": text}],
        completion=text,
        finish_reason=text[:20],
        status=ScoreStatus.SCORED,
        score=1.0,
        extracted=text,
        error=None,
        refusal=None,
        usage=Usage(prompt=3, completion=2, cached=1),
        started_unix_s=1e9,
        latency_s=0.5,
        extras={"reason": text, "nan": float("nan"), text[:50]: text},
    )


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_stays_text_in_a_log_that_reads_back(tmp_path: Path, text: str) -> None:
    log = pytest.importorskip("inspect_ai.log", reason="inspect-ai is not installed: pip install -e '.[dev]'")
    path = tmp_path / "a.eval"
    assert write_inspect(path, LOG, [_sample(text)]) == 1
    shown = text.encode("utf-8", "backslashreplace").decode()
    (sample,) = log.read_eval_log(str(path)).samples
    assert (sample.input, sample.target, sample.output.completion) == (shown, shown, shown)
    assert sample.output.usage.input_tokens == 2
    (item,) = read_inspect(path, ReadOptions()).tasks["t"].items
    assert (item.score, item.status) == (1.0, ScoreStatus.SCORED)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            json.loads(archive.read(name), parse_constant=pytest.fail)
        assert len(archive.read("summaries.json")) < 50_000


@pytest.mark.parametrize(
    "item_id", ["../../etc/passwd", "a/b", "..", ".hidden", "\x1b[2J", "é" * 300, "", "a\\b"]
)
def test_an_item_id_cannot_name_another_member(tmp_path: Path, item_id: str) -> None:
    path = tmp_path / "a.eval"
    samples = [_sample("x", item_id), _sample("x", item_id + "'"), _sample("x", "plain-1")]
    write_inspect(path, LOG, samples)
    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if n.startswith("samples/")]
    assert len(set(names)) == 3
    assert all(n.count("/") == 1 and "\\" not in n and n.isascii() and n.isprintable() for n in names)
    assert "samples/plain-1_epoch_1.json" in names


@pytest.mark.parametrize(
    ("arguments", "parsed", "wrong"),
    [
        ('{"city": "Wien"}', {"city": "Wien"}, False),
        ("{city: Wien}", {}, True),
        ("[1]", {}, True),
        ('{"a":' * 5_000, {}, True),
        ('{"a":' + "[" * 5_000 + "]" * 5_000 + "}", {}, True),
        ('{"a": NaN, "b": "\\ud800"}', {"a": "nan", "b": "\\ud800"}, False),
    ],
)
def test_thinking_and_calls_are_parts_of_messages(
    tmp_path: Path, arguments: str, parsed: dict[str, Any], wrong: bool
) -> None:
    log = pytest.importorskip("inspect_ai.log", reason="inspect-ai is not installed: pip install -e '.[dev]'")
    call = ToolCall(name="weather", arguments=arguments, id="c1")
    messages = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Weather?"),
        Message(role="assistant", content=None, reasoning="hm", tool_calls=(call,)),
        Message(role="tool", content="sunny", tool_call_id="c1"),
        Message(role="assistant", content="Sunny."),
    ]
    sample = replace(_sample("x"), messages=[message_form(m) for m in messages])
    write_inspect(tmp_path / "a.eval", LOG, [sample])
    (read,) = log.read_eval_log(str(tmp_path / "a.eval")).samples
    assert [m.role for m in read.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert read.messages[2].content[0].reasoning == "hm"
    (told,) = read.messages[2].tool_calls
    assert (told.function, told.arguments, bool(told.parse_error)) == ("weather", parsed, wrong)
    assert not wrong or arguments in told.parse_error
    assert read.messages[3].tool_call_id == "c1"


def test_a_log_that_lacks_samples_says_so(tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log", reason="inspect-ai is not installed: pip install -e '.[dev]'")
    write_inspect(tmp_path / "a.eval", replace(LOG, planned_ids=("a", "b")), [_sample("x")])
    assert log.read_eval_log(str(tmp_path / "a.eval"), header_only=True).status == "cancelled"
    read = read_inspect(tmp_path / "a.eval", ReadOptions()).tasks["t"]
    assert read.planned_ids == ("a", "b")
    assert any("count as missing" in note for note in read.notes)


@pytest.mark.parametrize(
    ("extras", "said"),
    [({"status": "fine"}, "'fine' is not a valid"), ({"status": "scored", "value": 7.0}, r"7\.0")],
)
def test_forged_samples_are_refused_with_their_place(
    tmp_path: Path, extras: dict[str, Any], said: str
) -> None:
    sample = {
        "id": "a",
        "epoch": 1,
        "input": "q",
        "target": "t",
        "output": {"choices": [{"stop_reason": "stop"}], "completion": "x"},
        "scores": {"s": {"value": extras.pop("value", 1.0)}},
        "metadata": {"equipoise": extras},
    }
    path = tmp_path / "log.json"
    path.write_text(
        json.dumps({"version": 2, "status": "success", "eval": {"task": "t"}, "samples": [sample]})
    )
    with pytest.raises(UsageError, match=rf"sample 0: .*{said}"):
        read_inspect(path, ReadOptions())


def test_a_sample_that_was_invalidated_in_inspect_has_no_score(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    sample = {
        "id": "a",
        "epoch": 1,
        "input": "q",
        "target": "t",
        "output": {"completion": "x"},
        "scores": {"s": {"value": 1.0}},
        "metadata": {"equipoise": {"status": "scored"}},
        "invalidation": {"author": "x"},
    }
    path.write_text(
        json.dumps({"version": 2, "status": "success", "eval": {"task": "t"}, "samples": [sample]})
    )
    (item,) = read_inspect(path, ReadOptions()).tasks["t"].items
    assert (item.score, item.status) == (None, ScoreStatus.ERRORED)
