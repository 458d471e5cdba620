"""`equipoise export`: lm-eval's own code reads what we write, and a comparison of it pairs as the run did."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from cli_runs import cli, error_of
from outcome_run import outcome_run

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.lm_eval import read_lm_eval
from equipoise.evals.interop.result_set import ReadOptions
from equipoise.evals.journal import Journal
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
    result = cli("export", run, "--format", "lm-eval", "--out", run.parent / "exported")
    assert result.exit_code == 0
    assert result.stdout.count("wrote ") == 3
    return run.parent / "exported"


def tables(*args: str | Path) -> Any:
    """The rows of a comparison's tasks, as its report gives them."""
    report = json_report.load(cli("compare", *args, "--margin", ".05", "--json").stdout)
    assert report.models, report.run
    return report.models[0].tasks, report.models[0].pooled


def test_export_of_both_arms_pairs_and_scores_as_the_run(run: Path, exported: Path) -> None:
    theirs = tables(exported / "m__A1", exported / "m__B")
    ours = tables(f"{run}:A1", f"{run}:B")
    assert len(ours[0]) == 4
    assert {t.task for t in theirs[0]} == {t.task for t in ours[0]}
    by_name = {t.task: t for t in theirs[0]}
    for task in ours[0]:
        assert by_name[task.task] == task
    assert theirs[1].delta == pytest.approx(ours[1].delta)  # summed in another order
    for end in ("lo", "hi"):
        assert getattr(theirs[1].interval, end) == pytest.approx(getattr(ours[1].interval, end))


def test_every_outcome_comes_back_as_it_was(run: Path, exported: Path) -> None:
    tasks = read_lm_eval(exported / "m__B", ReadOptions()).tasks
    assert "logprob" not in tasks
    status = {i.item_id: (i.score, i.status) for i in tasks["sums"].items}
    journal = Journal.read(run / "journal.sqlite")
    failed = {s.key.item_id for s in journal.samples(arm="B", task="sums") if s.error}
    assert {v for k, v in status.items() if f"sums-{int(k):05d}" in failed} == {(None, ScoreStatus.ERRORED)}
    assert [v[1] for v in status.values()].count(ScoreStatus.TRUNCATED) == 1
    assert [v[1] for v in status.values()].count(ScoreStatus.REFUSED) == 1
    assert all(t.truncation_known for t in tasks.values())
    assert {i.repeat for i in tasks["copy"].items} == {0, 1}
    assert len(tasks["copy"].items) == 24
    assert all(i.cluster_id for t in tasks.values() for i in t.items)
    assert tasks["sums"].metric == "exact_match,digits"
    assert not read_lm_eval(exported / "m__B", ReadOptions()).unknown


def test_lm_evals_own_code_reads_the_files(exported: Path, tmp_path: Path) -> None:
    from lm_eval.utils import (
        get_file_datetime,
        get_file_task_name,
        get_results_filenames,
        get_sample_results_filenames,
        make_table,
        sanitize_model_name,
    )

    folder = exported / sanitize_model_name("m:B")
    names = [str(p) for p in folder.iterdir()]
    (results_file,) = get_results_filenames(names)
    samples = {get_file_task_name(Path(p).name): p for p in get_sample_results_filenames(names)}
    assert set(samples) == {"copy", "dialog_recall", "arc_easy", "sums"}
    assert {get_file_datetime(Path(p).name) for p in samples.values()} == {
        get_file_datetime(Path(results_file).name).removesuffix(".json")
    }
    results = json.loads(Path(results_file).read_text())
    shown = make_table(results)
    for task, path in samples.items():
        assert task in shown
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
        (metric,) = rows[0]["metrics"]
        values = [row[metric] for row in rows if row[metric] is not None]
        named = results["results"][task]
        assert named[f"{metric},{rows[0]['filter']}"] == pytest.approx(sum(values) / len(values))
        assert results["n-samples"][task] == {"original": len(rows), "effective": len(values)}
        assert results["configs"][task]["metric_list"][0]["metric"] == metric
        assert all(isinstance(row["doc_id"], int) for row in rows)


def test_viewers_that_load_samples_through_datasets_can(exported: Path, tmp_path: Path) -> None:
    import datasets

    for path in (exported / "m__B").glob("samples_*.jsonl"):
        rows = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path))
        assert len(rows) == len(path.read_text().splitlines())
        assert {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps"} <= set(rows.features)


def test_likelihoods_and_generations_stand_in_lm_evals_terms(exported: Path) -> None:
    def rows(task: str) -> list[dict[str, Any]]:
        (path,) = (exported / "m__A1").glob(f"samples_{task}_*.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def config(task: str) -> dict[str, Any]:
        (path,) = (exported / "m__A1").glob("results_*.json")
        found: dict[str, Any] = json.loads(path.read_text())["configs"][task]
        return found

    arc = [row for row in rows("arc_easy") if row["resps"][0]]
    assert config("arc_easy")["output_type"] == "multiple_choice"
    for row in rows("arc_easy"):  # also those without a reply
        choices = [argument["arg_1"] for argument in row["arguments"].values()]
        assert choices == [" yes", " no", " so"][: len(choices)]
        assert {a["arg_0"] for a in row["arguments"].values()} == {f"{row['doc']['context']}"}
    assert arc[0]["resps"][0][0] in (["-4.0", "True"], ["-12.0", "True"])
    sums = rows("sums")[0]
    assert config("sums")["output_type"] == "generate_until"
    assert set(sums["doc"]) == {"question", "answer"}
    assert sums["arguments"]["gen_args_0"]["arg_0"] == f"Q: {sums['doc']['question']}\nA:"
    assert sums["arguments"]["gen_args_0"]["arg_1"]["until"] == ["\n"]
    turns = rows("dialog_recall")[0]
    assert len(turns["arguments"]) == len(turns["resps"]) > 1
    assert json.loads(turns["arguments"]["gen_args_0"]["arg_0"])[0]["role"] == "user"


def test_export_is_repeatable_and_writes_chosen_arms_alone(run: Path, exported: Path, tmp_path: Path) -> None:
    assert cli("export", run, "--format", "lm-eval", "--out", tmp_path / "x", "--arm", "B").exit_code == 0
    assert [p.name for p in (tmp_path / "x").iterdir()] == ["m__B"]
    for path in (tmp_path / "x" / "m__B").iterdir():
        assert path.read_bytes() == (exported / "m__B" / path.name).read_bytes()


@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
def test_replies_are_exported_whole(run: Path, tmp_path: Path, format_: str) -> None:
    out = tmp_path / f"s.{format_}"
    result = cli("export", run, "--format", format_, "--out", out)
    assert result.stdout == f"wrote {out}: {3 * (24 + 8 + 20 + 16 + 2)} samples\n"
    rows = pq.read_table(out).num_rows if format_ == "parquet" else len(out.read_text().splitlines())
    assert rows == 210


def test_bad_requests_are_usage_errors(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "no arm 'Z'; there are A1, A2, B" in error_of(
        cli("export", run, "--format", "lm-eval", "--arm", "Z"), code=2
    )
    assert "--arm goes with --format lm-eval" in error_of(cli("export", run, "--arm", "B"), code=2)
    blocked = cli("export", run, "--format", "lm-eval", "--out", tmp_path / "file")
    assert "cannot be written" in error_of(blocked, code=2)
    assert "no journal there" in error_of(cli("export", tmp_path, "--format", "lm-eval"), code=2)


@pytest.mark.parametrize(
    ("extras", "said"),
    [
        ({"status": "fine"}, "'fine' is not a valid"),
        ({"status": "scored", "repeat": "1"}, "repeat '1' is no number"),
    ],
)
def test_forged_rows_are_refused_with_their_line(tmp_path: Path, extras: dict[str, Any], said: str) -> None:
    row = {
        "doc_id": 0,
        "resps": [["x"]],
        "metrics": ["acc"],
        "doc_hash": "h",
        "acc": 1.0,
        "equipoise": extras,
    }
    path = tmp_path / "samples_t_2026-01-01T00-00-00.000000.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(UsageError, match=rf"jsonl:1: .*{said}"):
        read_lm_eval(path, ReadOptions())
