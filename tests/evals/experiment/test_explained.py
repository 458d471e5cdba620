"""`run` explains every server of ours first: the answer is kept, and a launch that would be wrong is none."""

import json
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from cli_runs import cli, error_of, plan_file

from equipoise.evals.errors import UsageError
from equipoise.evals.experiment import explained, seeds
from equipoise.evals.experiment.arms_up import _arm_record
from equipoise.evals.experiment.explained import explain_servers
from equipoise.evals.experiment.report_run import _arm
from equipoise.evals.experiment.serving import ServerSpec, servers_of
from equipoise.evals.plan import load_plan

EMBEDDED = Path(str(files("equipoise.tasks.embedded")))
ARMS = [
    {"name": "A1", "role": "baseline", "variant": "bf16"},
    {"name": "A2", "role": "baseline_repeat", "variant": "bf16"},
    {"name": "B", "role": "candidate", "variant": "fp8_e4m3"},
]
SCHEME = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True, "dynamic": False}


@pytest.fixture(autouse=True)
def _server_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_SGLANG_PYTHON", sys.executable)  # never started here


def changed(tmp_path: Path, **config: Any) -> Path:
    """The embedded GLM-shaped model with another config."""
    folder = tmp_path / "changed"
    shutil.copytree(EMBEDDED / "glm_tiny", folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def plan_of(tmp_path: Path, model: str | Path) -> Path:
    tasks = [{"name": "copy", "critical": True, "items": 4, "margin": 0.1}]
    return plan_file(tmp_path / "p.toml", ARMS, tasks, model_path=str(model))


def specs_of(tmp_path: Path, model: Path) -> list[ServerSpec]:
    return servers_of(load_plan(plan_of(tmp_path, model)), "m", str(model), "cpu")


@pytest.mark.parametrize(
    "command", [("run", "--device", "cpu"), ("seeds", "--seeds", "2")], ids=lambda c: c[0]
)
def test_a_launch_that_would_be_wrong_stops_the_run_before_anything_is_there(
    tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "resolve_device", lambda asked: "cpu")
    # FP8 scales are declared, and neither in the checkpoint nor loaded by this model class.
    wrong = changed(
        tmp_path, quantization_config={"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME}
    )
    out = tmp_path / "run"
    name, *options = command
    said = error_of(cli(name, plan_of(tmp_path, wrong), "--out", out, *options), code=2)
    for word in (
        "nothing was started",
        "m@fp8_e4m3 (arms B)",
        "scale tensors",
        "[scale-initial]",
        "quant explain",
    ):
        assert word in said
    assert not out.exists()


def test_every_server_is_explained_and_the_answer_is_json(tmp_path: Path) -> None:
    records = explain_servers(specs_of(tmp_path, EMBEDDED / "glm_tiny"), "cpu")
    assert set(records) == {"m@bf16", "m@fp8_e4m3"}
    fp8 = json.loads(json.dumps(records["m@fp8_e4m3"], allow_nan=False))
    assert fp8["answer"]["kv_cache_dtype"] == "fp8_e4m3"
    assert fp8["lines"][0].startswith("KV fp8_e4m3, layout fp8_flat")
    assert "scales of layers 0-2: default 1.0" in fp8["lines"]


def test_the_answer_goes_from_the_journal_to_the_report(tmp_path: Path) -> None:
    specs = specs_of(tmp_path, EMBEDDED / "glm_tiny")
    records = explain_servers(specs, "cpu")
    spec = specs[1]
    kept = json.loads(json.dumps(_arm_record(spec.arms[0], spec, None, records[spec.label])))
    assert kept["explained"]["answer"]["sglang_version"]
    shown = _arm("m", "B", kept, "candidate")
    assert list(shown.explained) == records[spec.label]["lines"]
    del kept["explained"]  # a journal of an earlier version
    assert _arm("m", "B", kept, "candidate").explained == ()


def test_a_model_that_the_rules_do_not_know_is_run_all_the_same(tmp_path: Path) -> None:
    records = explain_servers(specs_of(tmp_path, changed(tmp_path, model_type="new_moe")), "cpu")
    assert all(r["answer"] is None for r in records.values())
    assert all("new_moe" in r["lines"][0] for r in records.values())


def test_a_gpu_that_the_rules_do_not_know_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = specs_of(tmp_path, EMBEDDED / "glm_tiny")
    for found, said in (([], "none found"), (["NVIDIA A100-SXM4-80GB, 81920 MiB, 550"], "A100")):
        monkeypatch.setattr(explained, "describe_hardware", lambda found=found: {"gpus": found})
        records = explain_servers(specs, "cuda")
        assert all(r["answer"] is None and said in r["lines"][0] for r in records.values())
    monkeypatch.setattr(explained, "describe_hardware", lambda: {"gpus": ["NVIDIA H200, 143771 MiB, 550"]})
    assert explain_servers([], "cuda") == {}


def test_arms_that_would_read_each_others_cache_stop_the_run(tmp_path: Path) -> None:
    shared = ("--enable-hierarchical-cache", "--hicache-storage-backend=file")
    specs = [
        ServerSpec(
            model=s.model, variant=s.variant, arms=s.arms,
            launch=type(s.launch)(
                argv=(*s.launch.argv, *shared), env=s.launch.env, host=s.launch.host, port=s.launch.port
            ),
        )
        for s in specs_of(tmp_path, EMBEDDED / "glm_tiny")
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"m@bf16 and m@fp8_e4m3: wrong.*hicache-key"):
        explain_servers(specs, "cpu")
