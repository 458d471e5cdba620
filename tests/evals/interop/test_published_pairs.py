"""Per-item results of real models, compared as a user would; the data comes from EQUIPOISE_DATA."""

import csv
import json
import os
from pathlib import Path

import pytest
from cli_runs import cli

from equipoise.reports import json as json_report
from equipoise.reports.model import TaskRow

DATA = Path(os.environ.get("EQUIPOISE_DATA") or "no EQUIPOISE_DATA") / "paired"
GSM8K = DATA / "gsm8k_example_model_solutions.jsonl"
IFEVAL = DATA / "ifeval_peritem" / "m_ifeval_en.json"
VENDORS = DATA / "toolcall_vendors"

pytestmark = pytest.mark.skipif(
    not GSM8K.exists(), reason="set EQUIPOISE_DATA to a directory with the paired results"
)


def row(*args: str | Path) -> TaskRow:
    result = cli("compare", *args, "--json")
    assert result.exit_code in (0, 1, 3), result.stderr
    return json_report.load(result.stdout).models[0].tasks[0]


def test_gsm8k_solutions_of_two_models() -> None:
    columns = ("--baseline-column", "175b_finetuning.is_correct", "--candidate-column")
    found = row(GSM8K, *columns, "6b_verification.is_correct")
    assert (found.n, found.lost, found.gained) == (1319, 152, 209)
    assert found.p_mcnemar == pytest.approx(0.003, abs=0.0005)
    assert found.accuracy_baseline == pytest.approx(0.347, abs=0.0005)
    assert found.accuracy_candidate == pytest.approx(0.390, abs=0.0005)
    best = row(GSM8K, *columns, "175b_verification.is_correct")
    assert best.accuracy_candidate == pytest.approx(0.563, abs=0.0005)


@pytest.mark.parametrize(
    ("baseline", "candidate", "lost", "gained", "p"),
    [
        ("Qwen__Qwen2.5-14B-Instruct-GPTQ-Int4", "Qwen__Qwen2.5-32B-Instruct-GPTQ-Int4", 41, 45, 0.75),
        ("Qwen__Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen__Qwen2.5-32B-Instruct-GPTQ-Int4", 33, 66, 0.0012),
        ("claude-3-5-sonnet-20240620", "o1-preview-2024-09-12", 51, 50, 1.0),
    ],
)
def test_ifeval_answers_of_two_models(
    baseline: str, candidate: str, lost: int, gained: int, p: float
) -> None:
    found = row(f"{IFEVAL}:{baseline}", f"{IFEVAL}:{candidate}", "--score-column", "strict")
    assert (found.n, found.lost, found.gained) == (541, lost, gained)
    assert found.p_mcnemar == pytest.approx(p, rel=0.02)


def vendor(name: str) -> Path:
    (path,) = VENDORS.glob(f"{name}*.json")
    return path


def test_tool_calls_of_two_vendors() -> None:
    options = ("--score-column", "finish_reason", "--score-is", "tool_calls")
    found = row(vendor("openrouter"), vendor("ppio"), *options, "--common")
    assert (found.n, found.lost, found.gained, found.p_mcnemar) == (511, 28, 27, 1.0)


def test_a_failed_request_is_no_answer_without_a_tool_call(tmp_path: Path) -> None:
    """36/19 counts one vendor's failed request as "no call"; it is no answer, and leaves 36/18."""
    options = ("--score-column", "finish_reason", "--score-is", "tool_calls")
    found = row(vendor("deepseek"), vendor("ppio"), *options, "--common")
    assert (found.n, found.lost, found.gained) == (510, 36, 18)
    tables = []
    for name in ("deepseek", "ppio"):
        tables.append(tmp_path / f"{name}.csv")
        with tables[-1].open("w", newline="") as f:
            rows = json.loads(vendor(name).read_text())
            scores = ((r["data_index"], int(r["finish_reason"] == "tool_calls")) for r in rows)
            csv.writer(f).writerows([("item", "score"), *scores])
    counted = row(*tables, "--common")
    assert (counted.n, counted.lost, counted.gained) == (511, 36, 19)
    assert counted.p_mcnemar == pytest.approx(0.03, abs=0.001)
