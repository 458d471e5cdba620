"""lm-eval logs, as lm-eval wrote them."""

import json
import shutil
from pathlib import Path

import pytest

from equipoise.evals.errors import ParityError, UsageError
from equipoise.evals.interop.formats import detect_format
from equipoise.evals.interop.lm_eval import read_lm_eval
from equipoise.evals.interop.pairing import pair_results
from equipoise.evals.interop.result_set import ReadOptions
from equipoise.evals.types import ScoreStatus

OPTIONS = ReadOptions()


def reported(directory: Path, task: str, key: str) -> float:
    """What lm-eval itself says in its results file."""
    for file in directory.rglob("results_*.json"):
        results = json.loads(file.read_text())["results"]
        if task in results:
            return float(results[task][key])
    raise AssertionError(task)


@pytest.mark.parametrize("arm", ["baseline", "candidate"])
@pytest.mark.parametrize(
    ("task", "metric", "key"),
    [
        ("sums", "exact_match,strict", "exact_match,strict"),
        ("sums", "exact_match,flexible", "exact_match,flexible"),
        ("signs", "acc", "acc,none"),
        ("signs", "acc_norm", "acc_norm,none"),
    ],
)
def test_scores_average_to_what_lm_eval_reports(
    lm_eval_logs: Path, arm: str, task: str, metric: str, key: str
) -> None:
    read = read_lm_eval(lm_eval_logs / arm, ReadOptions(tasks=(task,), metric=metric)).tasks[task]
    scores = [item.score or 0.0 for item in read.items]  # lm-eval counts a null answer as 0
    assert len(scores) == 40
    assert sum(scores) / len(scores) == pytest.approx(reported(lm_eval_logs / arm, task, key))
    assert read.metric == metric


def test_a_null_answer_that_lm_eval_scored_0_is_errored_not_wrong(lm_eval_logs: Path) -> None:
    items = read_lm_eval(lm_eval_logs / "candidate", OPTIONS).tasks["sums"].items
    (errored,) = [i for i in items if i.score is None]
    assert (errored.item_id, errored.status, errored.reason) == ("9", ScoreStatus.ERRORED, "empty answer")
    assert [i.item_id for i in items if i.score == 0.0] == ["3", "5", "6", "7", "8"]


def test_log_likelihoods_have_no_empty_answers(lm_eval_logs: Path) -> None:
    items = read_lm_eval(lm_eval_logs / "candidate", OPTIONS).tasks["signs"].items
    assert all(i.score is not None for i in items)


def test_the_first_metric_and_filter_are_compared_and_the_others_named(lm_eval_logs: Path) -> None:
    tasks = read_lm_eval(lm_eval_logs / "baseline", OPTIONS).tasks
    assert tasks["sums"].metric == "exact_match,strict"
    assert "exact_match,flexible" in tasks["sums"].notes[0]
    assert tasks["signs"].metric == "acc"
    assert "acc_norm,none" in tasks["signs"].notes[0]


def test_settings_of_the_run_are_read_from_its_results(lm_eval_logs: Path) -> None:
    read = read_lm_eval(lm_eval_logs / "baseline", OPTIONS)
    assert read.model == "org/baseline"
    assert read.tasks["sums"].settings["task version"] == "1.0"
    assert "max_gen_toks" in read.tasks["sums"].settings["generation_kwargs"]


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("f1", "no metric 'f1'; there are exact_match"),
        ("exact_match,loose", "no filter 'loose'; there are strict, flexible"),
    ],
)
def test_an_unknown_metric_or_filter_is_refused_with_those_there(
    lm_eval_logs: Path, metric: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        read_lm_eval(lm_eval_logs / "baseline", ReadOptions(tasks=("sums",), metric=metric))


def test_the_same_questions_pair_and_their_hashes_are_checked(lm_eval_logs: Path) -> None:
    one, other = (read_lm_eval(lm_eval_logs / a, OPTIONS).tasks["sums"] for a in ("baseline", "candidate"))
    paired = pair_results(one, other, model="m", task="sums", baseline_arm="a", candidate_arm="b")
    assert paired.hash_checked == 40
    assert paired.table.n == 39
    assert paired.table.excluded == {"errored in b (empty answer)": 1}
    # right under the baseline only: 5, 6, 7 wrong and 8 in words; under the candidate only: 4
    assert (int((paired.table.baseline > paired.table.candidate).sum())) == 4
    assert (int((paired.table.baseline < paired.table.candidate).sum())) == 1


def test_another_prompt_under_the_same_id_is_refused(lm_eval_logs: Path) -> None:
    one, other = (
        read_lm_eval(lm_eval_logs / a, ReadOptions(tasks=("sums",))) for a in ("baseline", "prompt")
    )
    with pytest.raises(ParityError, match=r"item '0': another question under the same id.*prompt"):
        pair_results(
            one.tasks["sums"],
            other.tasks["sums"],
            model="m",
            task="sums",
            baseline_arm="a",
            candidate_arm="b",
        )


def test_a_task_run_twice_is_refused_until_one_run_is_named(lm_eval_logs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "twice" / "org__baseline"
    shutil.copytree(lm_eval_logs / "baseline" / "org__baseline", folder)
    (first,) = folder.glob("samples_sums_*.jsonl")
    time = first.stem.removeprefix("samples_sums_")
    again = "2027-01-01T00-00-00.000001"
    shutil.copy(first, folder / f"samples_sums_{again}.jsonl")
    shutil.copy(folder / f"results_{time}.json", folder / f"results_{again}.json")
    with pytest.raises(UsageError, match=r"'sums' was run more than once .* give its results file"):
        read_lm_eval(tmp_path / "twice", OPTIONS)
    named = folder / f"results_{again}.json"
    assert detect_format(named) == "lm-eval"
    assert list(read_lm_eval(named, OPTIONS).tasks) == ["sums"]
    samples = folder / f"samples_sums_{again}.jsonl"
    assert detect_format(samples) == "lm-eval"
    assert len(read_lm_eval(samples, OPTIONS).tasks["sums"].items) == 40


def test_a_directory_of_several_models_is_refused_until_one_is_named(
    lm_eval_logs: Path, tmp_path: Path
) -> None:
    for arm in ("baseline", "candidate"):
        shutil.copytree(lm_eval_logs / arm, tmp_path / "both", dirs_exist_ok=True)
    with pytest.raises(UsageError, match=r"several models: give one of .*org__"):
        read_lm_eval(tmp_path / "both", OPTIONS)
    assert read_lm_eval(tmp_path / "both" / "org__candidate", OPTIONS).model == "org/candidate"


def test_lower_is_better_is_refused(lm_eval_logs: Path, tmp_path: Path) -> None:
    shutil.copytree(lm_eval_logs / "baseline", tmp_path / "low")
    for file in (tmp_path / "low").rglob("results_*.json"):
        results = json.loads(file.read_text())
        for metrics in results["higher_is_better"].values():
            metrics.update(dict.fromkeys(metrics, False))
        file.write_text(json.dumps(results))
    with pytest.raises(UsageError, match="lower is better"):
        read_lm_eval(tmp_path / "low", OPTIONS)


@pytest.mark.parametrize("cut", [1, 40, -3])
def test_a_samples_file_cut_short_is_refused_by_line(lm_eval_logs: Path, tmp_path: Path, cut: int) -> None:
    (samples,) = (lm_eval_logs / "baseline").rglob("samples_sums_*.jsonl")
    broken = tmp_path / samples.name
    broken.write_bytes(samples.read_bytes()[:cut])
    with pytest.raises(UsageError, match=rf"{samples.name}:\d+ is not valid JSON"):
        read_lm_eval(broken, OPTIONS)


def test_clusters_come_from_a_column_of_the_document(lm_eval_logs: Path) -> None:
    options = ReadOptions(tasks=("sums",), cluster_column="doc.page")
    items = read_lm_eval(lm_eval_logs / "baseline", options).tasks["sums"].items
    assert [i.cluster_id for i in items[:5]] == ["p0", "p0", "p0", "p0", "p1"]
    with pytest.raises(UsageError, match=r"no cluster id \(column 'doc\.chapter'\)"):
        read_lm_eval(lm_eval_logs / "baseline", ReadOptions(cluster_column="doc.chapter"))
