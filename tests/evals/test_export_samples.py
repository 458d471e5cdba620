"""`equipoise export`: every answer as a row with its score, whole files or none, numbers for monitoring."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cli_runs import cli, error_of, plan_file, record_run
from fake_sglang import share
from run_doubles import output

from equipoise.evals import export as export_module
from equipoise.evals.errors import UsageError
from equipoise.evals.experiment.export_samples import grader
from equipoise.evals.experiment.questions import questions_of
from equipoise.evals.experiment.results import plan_of
from equipoise.evals.export import chunks
from equipoise.evals.journal import Journal
from equipoise.evals.new_file import new_file
from equipoise.evals.sample_json import sample_from_json
from equipoise.evals.types import Sample, SampleKey
from equipoise.reports import json as json_report

RATES = {"A1": 0.1, "A2": 0.1, "B": 0.1, "P": 0.6, "M": 0.2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    arms = record_run(
        root / "recorded", {"copy": 100}, lambda arm, task, i: not share(RATES[arm], task)(str(i)), repeats=2
    )
    tasks = [{"name": "copy", "critical": True, "items": 100, "repeats": 2, "margin": 0.1}]
    plan = plan_file(root / "p.toml", arms, tasks, decision={"suite_margin": 0.1})
    cli("run", plan, "--out", root / "out")
    return root / "out"


def rows(path: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pq.read_table(path).to_pylist()
    return found


def test_every_answer_is_a_row_with_its_score(run: Path, tmp_path: Path) -> None:
    result = cli("export", run, "--out", tmp_path / "s.parquet")
    assert result.stdout == f"wrote {tmp_path / 's.parquet'}: 1000 samples\n"
    found = rows(tmp_path / "s.parquet")
    assert Counter(row["arm"] for row in found) == dict.fromkeys(RATES, 200)
    report = json_report.load((run / "report.json").read_text())
    task = report.models[0].tasks[0]
    for arm, accuracy in (("A1", task.accuracy_baseline), ("B", task.accuracy_candidate)):
        scores = [float(str(row["score"])) for row in found if row["arm"] == arm]
        assert sum(scores) / len(scores) == pytest.approx(accuracy)
    for row in found:
        sample = sample_from_json(str(row["sample_json"]))
        assert (row["status"], row["reason"], row["error"]) == ("scored", "", None)
        assert row["completion_tokens"] == sample.outputs[0].completion_tokens
        assert row["latency_s"] == sample.latency_s
        assert row["cluster_id"]
        assert row["reasoning_chars"] == 0


def test_thinking_is_measured_and_what_has_no_score_says_why(run: Path) -> None:
    with Journal.read(run / "journal.sqlite") as journal:
        (question,) = questions_of(plan_of(journal))
    item = question.items[0]
    key = SampleKey(model="m", arm="B", task="copy", item_id=item.id)
    values = {"content_hash": item.content_hash, "attempts": 1, "started_unix_s": 1.0, "latency_s": 0.1}
    samples = [
        Sample(key=key, outputs=(output(item.target, reasoning="hm" * 50),), **values),
        Sample(key=key, outputs=(), error="timeout", **values),
        Sample(key=SampleKey(model="m", arm="B", task="copy", item_id="other"), outputs=(), **values),
    ]
    thought, failed, unknown = grader([question])(samples)
    assert thought is not None and failed is not None
    assert (thought.score, thought.reasoning_chars) == (1.0, 100)
    assert (failed.score, failed.status) == (None, "errored")
    assert failed.reason
    assert unknown is None


def test_without_scores_the_tasks_data_are_not_needed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_data(*_: object) -> None:
        raise export_error

    from equipoise.evals.errors import PlanError
    from equipoise.evals.experiment import questions

    export_error = PlanError("no data here")
    monkeypatch.setattr(questions, "questions_of", no_data)
    args = ("export", run, "--out", tmp_path / "s.parquet")
    assert error_of(cli(*args), code=2) == "no data here (--no-scores exports without them)"
    assert cli(*args, "--no-scores").exit_code == 0
    assert {row["score"] for row in rows(tmp_path / "s.parquet")} == {None}


@pytest.mark.parametrize(
    ("format_", "target"),
    [("parquet", "samples.parquet"), ("jsonl", "samples.jsonl"), ("prometheus", "report.prom")],
)
def test_what_is_there_stays_until_force(run: Path, tmp_path: Path, format_: str, target: str) -> None:
    path = tmp_path / target
    path.write_text("mine")
    args = ("export", run, "--format", format_, "--out", path)
    assert "exists already; replace it with --force" in error_of(cli(*args), code=2)
    assert path.read_text() == "mine"
    assert cli(*args, "--force").exit_code == 0
    assert path.stat().st_size > 100
    assert [p.name for p in tmp_path.iterdir()] == [target]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--format", "jsonl", "--no-scores"), "--no-scores goes with --format parquet"),
        (("--format", "mlflow", "--arm", "B"), "--arm goes with --format lm-eval or inspect"),
        (("--dataset", "copy=a/b"), "--dataset goes with --format hf-eval-results"),
        (("--format", "jsonl", "--out", "-"), "--out - goes with --format prometheus"),
        (("--format", "jsonl", "--out", "/dev/null/x"), "cannot be written"),
        (("--format", "inspect", "--arm", "Z"), "no arm 'Z'; there are A1, A2, B, P, M"),
    ],
)
def test_bad_requests_are_usage_errors(run: Path, args: tuple[str, ...], said: str) -> None:
    assert said in error_of(cli("export", run, *args), code=2)


def test_a_run_in_prometheus_form_can_be_piped(run: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    text = cli("export", run, "--format", "prometheus", "--out", "-").stdout
    values = {
        (s.name, s.labels.get("verdict")): s.value
        for family in parser.text_string_to_metric_families(text)
        for s in family.samples
    }
    assert values["equipoise_run_verdict", "SIGNED OFF"] == 1.0
    assert values["equipoise_run_exit_code", None] == 0.0


# -- files and memory


def write(path: Path, then: Callable[[], object] = lambda: None) -> None:
    with new_file(path) as new:
        new.write_text("ours")
        assert not path.exists()
        then()


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a"
    with pytest.raises(ZeroDivisionError):
        write(path, lambda: 1 // 0)
    assert not list(path.parent.iterdir())
    write(path)
    assert path.read_text() == "ours"


def test_a_file_that_appears_while_writing_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(UsageError, match="exists already"):
        write(path, lambda: path.write_text("theirs"))
    assert path.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p.mkdir(parents=True), "is a folder"),
        (lambda p: p.parent.mkdir() or p.symlink_to("nowhere"), "exists already"),
        (lambda p: p.parent.touch(), "cannot be written"),
    ],
)
def test_places_that_cannot_be_written_are_named(
    tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "folder" / "a"
    make(path)
    with pytest.raises(UsageError, match=said):
        write(path)


def test_samples_are_held_by_rows_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "_ROWS", 10)
    monkeypatch.setattr(export_module, "_CHUNK_CHARS", 3_000)
    made = 0

    def samples() -> Iterator[Sample]:
        nonlocal made
        for i in range(25):
            made += 1
            key = SampleKey(model="m", arm="B", task="t", item_id=str(i))
            text = "x" * (5_000 if i >= 20 else 1)
            yield Sample(
                key=key,
                content_hash="h",
                outputs=(output(text),),
                attempts=1,
                started_unix_s=1.0,
                latency_s=0.1,
            )

    sizes = []
    for chunk in chunks(samples()):
        sizes.append(len(chunk))
        assert made == sum(sizes)  # none was read ahead
        assert all(json.loads(line)["key"]["item_id"] == s.key.item_id for s, line in chunk)
    assert sum(sizes) == 25
    assert max(sizes[:3]) <= 10
    assert sizes[-5:] == [1] * 5
