"""inspect logs, as inspect wrote them."""

import json
import shutil
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from equipoise.evals.errors import ParityError, UsageError
from equipoise.evals.interop.formats import detect_format
from equipoise.evals.interop.inspect_log import read_inspect
from equipoise.evals.interop.pairing import pair_results
from equipoise.evals.interop.result_set import ReadOptions, TaskResults
from equipoise.evals.types import ScoreStatus

OPTIONS = ReadOptions()


def sums(directory: Path, options: ReadOptions = OPTIONS) -> TaskResults:
    return read_inspect(directory, options).tasks["sums"]


def pair(one: TaskResults, other: TaskResults):
    return pair_results(one, other, model="m", task="sums", baseline_arm="a", candidate_arm="b")


def test_eval_and_json_logs_of_one_run_read_alike(inspect_logs: Path) -> None:
    zipped, plain = sums(inspect_logs / "baseline"), sums(inspect_logs / "baseline_json")
    assert sorted(zipped.items, key=lambda i: (i.item_id, i.repeat)) == sorted(
        plain.items, key=lambda i: (i.item_id, i.repeat)
    )
    assert len(zipped.items) == 40
    assert (zipped.planned_repeats, len(zipped.planned_ids)) == (2, 20)
    assert (
        detect_format(inspect_logs / "baseline") == detect_format(inspect_logs / "baseline_json") == "inspect"
    )


def test_epochs_are_repeats_and_scores_average_to_what_inspect_reports(inspect_logs: Path) -> None:
    (log,) = (inspect_logs / "baseline_json").glob("*.json")
    scores = json.loads(log.read_text())["results"]["scores"]
    tool = next(s["metrics"]["accuracy"]["value"] for s in scores if s["name"] == "match")
    items = sums(inspect_logs / "baseline_json").items
    # inspect scores everything but the sample that had an error; it counts the rest as wrong
    counted = [i.score or 0.0 for i in items if i.reason != "sample error"]
    assert len(counted) == 38
    assert sum(counted) / len(counted) == pytest.approx(tool)
    assert {i.repeat for i in items} == {0, 1}


def test_how_a_sample_ended_decides_whether_it_has_a_score(inspect_logs: Path) -> None:
    ends = {
        (i.item_id, i.status, i.reason)
        for i in sums(inspect_logs / "baseline").items
        if i.status is not ScoreStatus.SCORED
    }
    assert ends == {
        ("sum-14", ScoreStatus.ERRORED, "sample error"),
        ("sum-15", ScoreStatus.TRUNCATED, "token limit"),
        ("sum-16", ScoreStatus.TRUNCATED, "max_tokens"),
        ("sum-17", ScoreStatus.REFUSED, "content filter"),
        ("sum-18", ScoreStatus.ERRORED, "empty answer"),
    }


def test_what_has_no_score_is_counted_by_reason_and_truncation_is_wrong(inspect_logs: Path) -> None:
    paired = pair(sums(inspect_logs / "baseline"), sums(inspect_logs / "candidate"))
    table = paired.table
    assert table.baseline.shape == (17, 2)
    assert table.excluded == {
        f"{why} in a{tail} and {why} in b{tail}": 1
        for why, tail in (
            ("errored", " (sample error)"),
            ("refused", " (content filter)"),
            ("errored", " (empty answer)"),
        )
    }
    cut = [i for i, name in enumerate(table.item_ids) if name in ("sum-15", "sum-16")]
    assert not table.baseline[cut].any()
    assert table.baseline_truncated[cut].all()
    # sum-1 is wrong in both; of the candidate also 2 and 3, and 4 in its first epoch
    assert (table.baseline - table.candidate).sum() == 5.0
    assert paired.hash_checked == 20


def test_message_ids_that_are_new_in_every_run_do_not_change_the_hash(inspect_logs: Path) -> None:
    hashes = [
        {i.content_hash for i in sums(inspect_logs / name).items if i.item_id == "sum-0"}
        for name in ("baseline", "candidate")
    ]
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 1


def test_another_input_under_the_same_id_is_refused(inspect_logs: Path) -> None:
    with pytest.raises(ParityError, match=r"'sum-0': another question.*input"):
        pair(sums(inspect_logs / "baseline"), sums(inspect_logs / "other_words"))


def test_a_log_that_stopped_early_counts_what_it_lacks(inspect_logs: Path) -> None:
    stopped = sums(inspect_logs / "stopped")
    assert any("status is 'error'" in note for note in stopped.notes)
    table = pair(sums(inspect_logs / "baseline"), stopped).table
    assert table.n_planned == 20
    assert table.missing_candidate > 5
    assert sum(table.excluded.values()) + table.n == 20


def test_an_answer_without_a_grade_is_missing(inspect_logs: Path) -> None:
    items = sums(inspect_logs / "baseline", ReadOptions(metric="sometimes")).items
    assert Counter(i.reason for i in items if i.item_id == "sum-19") == {"score is NaN": 2}


def test_a_key_of_a_scorer_with_several_values_is_chosen(inspect_logs: Path) -> None:
    items = sums(inspect_logs / "candidate", ReadOptions(metric="graded.close")).items
    assert {i.score for i in items if i.status is ScoreStatus.SCORED} == {0.25, 1.0}
    with pytest.raises(UsageError, match=r"several values; choose one, e\.g\. --metric graded\.exact"):
        sums(inspect_logs / "candidate", ReadOptions(metric="graded"))
    with pytest.raises(UsageError, match=r"no scorer 'other'; there are match, graded, sometimes"):
        sums(inspect_logs / "candidate", ReadOptions(metric="other"))


def test_a_task_logged_twice_is_refused_until_one_is_named(inspect_logs: Path, tmp_path: Path) -> None:
    for name in ("baseline", "candidate"):
        shutil.copytree(inspect_logs / name, tmp_path / "both", dirs_exist_ok=True)
    with pytest.raises(UsageError, match=r"'sums' was run twice: give "):
        read_inspect(tmp_path / "both", OPTIONS)
    one = min((tmp_path / "both").glob("*.eval"))
    assert detect_format(one) == "inspect"
    assert len(read_inspect(one, OPTIONS).tasks["sums"].items) == 40


@pytest.mark.parametrize("keep", [0, 100, 5_000, -200])
def test_a_damaged_log_is_refused_by_name(inspect_logs: Path, tmp_path: Path, keep: int) -> None:
    (log,) = (inspect_logs / "baseline").glob("*.eval")
    broken = tmp_path / "broken.eval"
    broken.write_bytes(log.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"broken\.eval"):
        read_inspect(broken, OPTIONS)


def test_a_changed_byte_inside_a_log_is_noticed(inspect_logs: Path, tmp_path: Path) -> None:
    (log,) = (inspect_logs / "baseline").glob("*.eval")
    data = bytearray(log.read_bytes())
    with zipfile.ZipFile(log) as archive:
        info = next(i for i in archive.infolist() if i.filename.startswith("samples/"))
    data[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 0x55
    broken = tmp_path / "broken.eval"
    broken.write_bytes(bytes(data))
    with pytest.raises(UsageError, match=rf"member {info.filename}.*damaged"):
        read_inspect(broken, OPTIONS)


def test_answers_and_lengths_are_kept_for_the_report(inspect_logs: Path) -> None:
    item = next(i for i in sums(inspect_logs / "baseline").items if i.item_id == "sum-5")
    assert (item.prompt, item.target, item.answer) == ("What is 5 + 1?", "6", "6")
    assert (item.completion_tokens, item.finish_reason) == (2, "stop")


def test_clusters_come_from_the_metadata(inspect_logs: Path) -> None:
    items = sums(inspect_logs / "baseline", ReadOptions(cluster_column="metadata.page")).items
    assert {i.cluster_id for i in items if i.item_id in ("sum-4", "sum-7")} == {"p1"}
