"""The plans for production models: enough power, and only commands that exist."""

import json
import re
from pathlib import Path

import pytest
from cli_runs import cli

from equipoise.evals.plan import load_plan
from equipoise.evals.types import ArmRole
from equipoise.quant.production import find_arm

PLANS = Path(__file__).parents[2] / "tasks" / "plans"
NAMES = ("kimi-k2.6-kv-fp8", "glm-4.6-kv-fp8", "glm-4.6-w-fp8", "glm-5.1-kv-fp8", "glm-4.7-flash-kv-fp8")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as the public sets have."""
    folder = tmp_path / "multiple_choice"
    folder.mkdir()
    arc = [{"query": f"Question: {i}?", "choices": ["a", "b"], "gold": i % 2} for i in range(2376)]
    lambada = [{"context": f"passage {i}", "continuation": "word"} for i in range(5153)]
    for name, rows in (("arc_easy", arc), ("lambada_openai", lambada)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))


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
    model = load_plan(PLANS / f"{name}.toml").models[0].name
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
    plan = load_plan(PLANS / f"{name}.toml")
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
