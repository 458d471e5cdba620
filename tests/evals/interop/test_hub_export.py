"""`equipoise export --format hf-eval-results`: the hub's own parser reads the run's numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runs import cli, error_of, plan_file, record_run
from fake_sglang import share

from equipoise.evals.experiment.export_hub import own_dataset
from equipoise.evals.interop.hub_export import HubDataset, HubResult, hub_dataset, write_hub_results
from equipoise.reports import json as json_report
from equipoise.reports.format import percent, points
from equipoise.tasks.registry import TASKS

HUB = ("--format", "hf-eval-results")
COPY = ("--dataset", "copy=org/copies:copy")


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], Path]:
    made: dict[float, Path] = {}

    def make(control: float) -> Path:
        if control not in made:
            root = tmp_path_factory.mktemp("run")
            rates = {"A1": 0.1, "A2": 0.1, "B": 0.13, "P": control, "M": 0.2}
            arms = record_run(
                root / "recorded",
                {"copy": 300, "sort": 100},
                lambda arm, task, i: not share(rates[arm], task)(str(i)),
            )
            tasks = [
                {"name": "copy", "critical": True, "items": 300, "margin": 0.1},
                {"name": "sort", "items": 100, "margin": 0.1},
            ]
            made[control] = root / "out"
            cli("run", plan_file(root / "p.toml", arms, tasks), "--out", made[control])
        return made[control]

    return make


def entries(path: Path) -> list[Any]:
    hub = pytest.importorskip("huggingface_hub")
    if not hasattr(hub, "parse_eval_result_entries"):
        pytest.skip("this huggingface_hub has no parser of .eval_results")
    return hub.parse_eval_result_entries(yaml.safe_load(path.read_text(encoding="ascii")))


def test_each_arm_has_its_own_score_and_the_comparison(
    run_of: Callable[[float], Path], tmp_path: Path
) -> None:
    run = run_of(0.6)
    result = cli("export", run, *HUB, *COPY, "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("wrote ") == 2
    assert "left out sort: it has no data set on the hub" in result.stderr
    report = json_report.load((run / "report.json").read_text())
    row = report.models[0].tasks[0]
    for arm, accuracy in (("A1", row.accuracy_baseline), ("B", row.accuracy_candidate)):
        (entry,) = entries(tmp_path / f"m__{arm}" / ".eval_results" / "copy.yaml")
        assert (entry.dataset_id, entry.task_id, entry.source_url) == ("org/copies", "copy", None)
        assert f"{entry.value:.1f}" == percent(accuracy)
        for said in (points(row.delta), row.verdict, str(report.run.verdict), "300 items", "margin 10.00"):
            assert said in entry.notes
        assert "http" not in entry.notes
        assert entry.date == report.provenance.finished


def test_files_that_are_there_stay_until_force(run_of: Callable[[float], Path], tmp_path: Path) -> None:
    args = ("export", run_of(0.6), *HUB, *COPY, "--out", tmp_path)
    assert cli(*args).exit_code == 0
    assert "exists already; replace it with --force" in error_of(cli(*args), code=2)
    assert cli(*args, "--force").exit_code == 0


def test_a_run_that_cannot_be_read_publishes_nothing(run_of: Callable[[float], Path], tmp_path: Path) -> None:
    said = error_of(cli("export", run_of(0.1), *HUB, *COPY, "--out", tmp_path / "x"), code=2)
    assert "the run is INVALID: it has no results to publish" in said
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("copy", "give TASK=OWNER/NAME"),
        ("copy=nothing", "names no data set of the hub"),
        ("copy=a/b/../c", "names no data set of the hub"),
        ("copy=a/b:c d", "names no data set of the hub"),
        ("other=a/b", "has no task 'other'; there are copy, sort"),
    ],
)
def test_data_sets_are_checked(
    run_of: Callable[[float], Path], tmp_path: Path, dataset: str, said: str
) -> None:
    args = ("export", run_of(0.6), *HUB, "--out", tmp_path, "--dataset", dataset)
    assert said in error_of(cli(*args), code=2)


def test_without_any_data_set_the_error_says_how_to_name_one(
    run_of: Callable[[float], Path], tmp_path: Path
) -> None:
    said = error_of(cli("export", run_of(0.6), *HUB, "--out", tmp_path), code=2)
    assert "name one with --dataset TASK=OWNER/NAME:TASK_ID" in said


@pytest.mark.parametrize(
    ("task", "found"),
    [
        ("gsm8k", ("openai/gsm8k", "main")),
        ("gpqa_diamond", ("Idavidrein/gpqa", "gpqa_diamond")),
        ("copy", "it has no data set on the hub"),
        ("aime", "its items are of several data sets"),
    ],
)
def test_tasks_know_their_data_sets(task: str, found: object) -> None:
    dataset = own_dataset(TASKS[task])
    if isinstance(dataset, HubDataset):
        assert (dataset.id, dataset.task_id) == found
        assert len(dataset.revision) == 40
    else:
        assert dataset == found


@pytest.mark.parametrize(
    "text", ["---\n- x: &a *a", "'\"\n...\n!!python/object:os.system x", "\ud800", "\0\x1b[2J"]
)
def test_hostile_notes_are_text(tmp_path: Path, text: str) -> None:
    result = HubResult(task="t", dataset=hub_dataset("a/b"), value=1.0, date="2026-01-01", notes=text)
    (path,) = write_hub_results(tmp_path, [result])
    (entry,) = entries(path)
    assert (entry.notes, entry.task_id) == (text, "default")
