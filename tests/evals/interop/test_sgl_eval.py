"""sgl-eval logs, as sgl-eval 0.1.3 wrote them (see make_sgl_eval_logs.py)."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.formats import detect_format
from equipoise.evals.interop.pairing import pair_results
from equipoise.evals.interop.result_set import ReadOptions
from equipoise.evals.interop.sgl_eval import read_sgl_eval
from equipoise.evals.types import ScoreStatus

OPTIONS = ReadOptions()


@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_scores_average_to_what_sgl_eval_reports(sgl_eval_logs: Path, arm: str) -> None:
    (metrics,) = (sgl_eval_logs / arm).rglob("metrics.json")
    read = read_sgl_eval(sgl_eval_logs / arm, OPTIONS).tasks["gsm8k"]
    scores = [item.score or 0.0 for item in read.items]
    assert len(scores) == 48
    assert sum(scores) / 48 == pytest.approx(json.loads(metrics.read_text())["aggregate"]["pass@1"])
    assert (read.metric, read.planned_repeats) == ("symbolic_correct", 2)


def test_failed_and_empty_answers_are_errored_and_cut_ones_truncated(sgl_eval_logs: Path) -> None:
    items = read_sgl_eval(sgl_eval_logs / "baseline", OPTIONS).tasks["gsm8k"].items
    assert Counter((i.item_id, i.status, i.reason) for i in items if i.status is not ScoreStatus.SCORED) == {
        ("sum-20", ScoreStatus.TRUNCATED, ""): 2,
        ("sum-21", ScoreStatus.ERRORED, "finish_reason error"): 2,
        ("sum-22", ScoreStatus.ERRORED, "empty answer"): 2,
    }


def test_repeats_pair_by_problem(sgl_eval_logs: Path) -> None:
    one, other = (
        read_sgl_eval(sgl_eval_logs / arm, OPTIONS).tasks["gsm8k"] for arm in ("baseline", "candidate")
    )
    paired = pair_results(one, other, model="m", task="gsm8k", baseline_arm="a", candidate_arm="b")
    assert paired.table.baseline.shape == (22, 2)
    assert paired.hash_checked == 24
    # each wrong problem is wrong in its first repeat: one of the baseline, three of the candidate
    assert (paired.table.baseline.sum(), paired.table.candidate.sum()) == (41.0, 39.0)
    lengths = paired.table.baseline_answers.completion_tokens
    assert lengths is not None
    assert set(lengths.ravel().tolist()) == {3.0, 16.0}


def test_a_run_is_found_by_its_own_folder_too(sgl_eval_logs: Path) -> None:
    (folder,) = (sgl_eval_logs / "baseline").iterdir()
    assert detect_format(folder) == detect_format(folder.parent) == "sgl-eval"
    assert read_sgl_eval(folder, OPTIONS).model == "stub"


def test_a_benchmark_run_twice_is_refused_until_one_is_named(sgl_eval_logs: Path, tmp_path: Path) -> None:
    for arm in ("baseline", "candidate"):
        shutil.copytree(sgl_eval_logs / arm, tmp_path / "both", dirs_exist_ok=True)
    with pytest.raises(UsageError, match="'gsm8k' was run twice: give "):
        read_sgl_eval(tmp_path / "both", OPTIONS)


def test_a_run_that_was_killed_lacks_its_summary_and_still_reads(sgl_eval_logs: Path, tmp_path: Path) -> None:
    (folder,) = (sgl_eval_logs / "baseline").iterdir()
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    (copy / "metrics.json").unlink()
    last = copy / "output-rs1.jsonl"
    last.write_text("".join(last.read_text().splitlines(keepends=True)[:10]))
    read = read_sgl_eval(copy, OPTIONS).tasks["gsm8k"]
    whole = read_sgl_eval(folder, OPTIONS).tasks["gsm8k"]
    table = pair_results(whole, read, model="m", task="t", baseline_arm="a", candidate_arm="b").table
    assert table.n == 10
    assert table.excluded["1 of 2 repeats in b"] == 12
