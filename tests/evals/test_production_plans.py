"""The plans for production models: enough power, and only commands that exist."""

import json
import os
import re
from pathlib import Path

import pytest
from cli_runs import cli
from invented_data import invented_data

from equipoise.evals.cli.shell import suites_folder
from equipoise.evals.plan import load_plan
from equipoise.evals.types import ArmRole
from equipoise.quant.production import find_arm

PLANS = Path(__file__).parents[2] / "tasks" / "plans"
NAMES = ("kimi-k2.6-kv-fp8", "glm-4.6-kv-fp8", "glm-4.6-w-fp8", "glm-5.1-kv-fp8", "glm-4.7-flash-kv-fp8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not os.environ.get("EQUIPOISE_DATA"):
        pytest.skip("EQUIPOISE_DATA is not set")
    return invented_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as the public sets have."""
    monkeypatch.setenv("EQUIPOISE_DATA", str(folder))


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("name", NAMES)
def test_plan_check_passes_with_the_power_that_the_plan_asks_for(name: str) -> None:
    done = cli("plan", "check", name, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["joint_power_all_models"] >= found["min_joint_power"] >= 0.85


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_that_a_plan_tells_to_serve_exists(name: str) -> None:
    text = (PLANS / f"{name}.toml").read_text()
    model = load_plan(PLANS / f"{name}.toml", suites=suites_folder()).models[0].name
    served = re.findall(r"equipoise serve (\S+)", text)
    (controlled,) = re.findall(r"--variant (\S+)", text)
    baseline, candidate = (find_arm(v) for v in served)
    assert baseline.model.name == candidate.model.name == model
    assert controlled == baseline.name  # the fault is planted in the baseline's own checkpoint
    assert not baseline.refused
    assert not candidate.refused
    if "-kv-" in name:
        assert (baseline.release, baseline.kv_cache_dtype) == (candidate.release, "bf16")
        assert candidate.kv_cache_dtype == "fp8_e4m3"
    else:
        assert baseline.kv_cache_dtype == candidate.kv_cache_dtype == "bf16"
        assert (baseline.release.weights, candidate.release.weights) == ("bf16", "fp8-channel")


@pytest.mark.parametrize("name", NAMES)
def test_only_the_candidate_and_the_control_may_differ_and_only_in_what_they_must(name: str) -> None:
    plan = load_plan(PLANS / f"{name}.toml", suites=suites_folder())
    by_role = {a.role: set(a.allowed_differences) for a in plan.arms}
    assert plan.allowed_differences == ()
    assert by_role[ArmRole.BASELINE] == by_role[ArmRole.BASELINE_REPEAT] == set()
    assert by_role[ArmRole.GROSS_CONTROL] == {"model_path", "tokenizer_path", "revision", "weight_version"}
    candidate = by_role[ArmRole.CANDIDATE]
    if name == "glm-5.1-kv-fp8":
        assert candidate == {"dsa_prefill_backend", "dsa_decode_backend"}
    elif "-kv-" in name:
        assert candidate == set()
    else:
        assert {"model_path", "quantization"} <= candidate


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_generated_with_thinking_as_the_vendor_says(name: str) -> None:
    plan = load_plan(PLANS / f"{name}.toml", suites=suites_folder())
    for task in plan.tasks:
        said = plan.generation_of(task)
        assert (said.thinking, said.temperature, said.top_p) == ("on", 1.0, 0.95)
    assert plan.runner.context_tokens > 65_536 + plan.generation.max_new_tokens  # longest prompt and answer
