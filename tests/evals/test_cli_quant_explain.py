"""``equipoise quant explain``: exit codes, words, JSON, and the other side of a pair."""

import json
from pathlib import Path

import pytest
from cli_runs import cli, error_of

E4M3 = "--kv-cache-dtype=fp8_e4m3"


@pytest.mark.parametrize("gpu", ["H200", "b200"])
@pytest.mark.parametrize("model", ["kimi-k2.6", "zai-org/GLM-4.6"])
def test_clean_launches_exit_0(model: str, gpu: str) -> None:
    result = cli("quant", "explain", model, "--gpu", gpu, "--", "--tp", "8", E4M3)
    assert result.exit_code == 0
    assert "No problem found." in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_server_arguments_need_no_dashes_before_them() -> None:
    with_dashes = cli("quant", "explain", "kimi-k2.6", "--", "--tp", "8", E4M3)
    without = cli("quant", "explain", "kimi-k2.6", "--tp", "8", E4M3)
    assert with_dashes.stdout == without.stdout


def test_a_problem_exits_1_and_names_rule_and_remedy() -> None:
    result = cli("quant", "explain", "kimi-k2.6", "--gpu=B200", "--", "--tp=8", "--kv-cache-dtype=fp8_e5m2")
    assert result.exit_code == 1
    assert "crash: trtllm_mla refuses the KV dtype fp8_e5m2 [trtllm-mla-dtypes]" in result.stdout
    assert "-> use fp8_e4m3, or another backend" in result.stdout


def test_json_tells_rules_with_version_and_source() -> None:
    result = cli("quant", "explain", "glm-4.6", "--json", "--", "--tp=8", E4M3)
    answer = json.loads(result.stdout)
    assert (answer["exit_code"], answer["problems"]) == (0, 0)
    assert answer["scales"][0]["layers"] == "0-91"
    for rule in answer["rules"]:
        assert rule["version"] == "sglang 0.5.23"
        assert rule["evidence"] in ("executed", "read")
        assert rule["source"].startswith(rule["file"])


def test_rules_are_printed_on_request() -> None:
    result = cli("quant", "explain", "glm-4.6", "--rules", "--", "--tp=8", E4M3)
    assert "mem_cache/kv_cache_dtype.py: configure_kv_cache_dtype" in result.stdout


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--peer-kv-cache-dtype=bf16"], 1),
        (["--peer-kv-cache-dtype=fp8_e4m3"], 0),
        (["--peer", f"--tp=8 {E4M3} --disaggregation-mode=prefill"], 0),
        (["--peer", "--tp=8 --disaggregation-mode=prefill"], 1),
        (["--peer", "--tp=8", "--peer-kv-cache-dtype=bf16"], 2),
        (["--peer", "--tp='8"], 2),
    ],
)
def test_the_other_side_of_a_pd_pair(options: list[str], code: int) -> None:
    words = ["--", "--tp=8", E4M3, "--disaggregation-mode=decode"]
    result = cli("quant", "explain", "kimi-k2.6", *options, *words)
    assert result.exit_code == code
    if code == 1:
        assert "[pd-kv-dtype]" in result.stdout


def test_a_launch_on_the_cpu_is_explained_for_the_cpu() -> None:
    result = cli("quant", "explain", "embedded:kimi_tiny", "--", "--device=cpu", E4M3)
    assert result.exit_code == 0
    assert "on 1 x cpu" in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kimi-k9"], "no built-in geometry"),
        (["kimi-k2.6", "--", "--kv-cache-dtype=fp8"], "invalid choice"),
        (["kimi-k2.6", "--", "--kv-cache-d=fp8_e4m3"], "write it in full"),
        (["embedded:none"], "no embedded model"),
    ],
)
def test_usage_errors_exit_2(words: list[str], said: str, tmp_path: Path) -> None:
    assert said in error_of(cli("quant", "explain", *words), code=2)
