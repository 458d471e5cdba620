"""Arms with checkpoints of their own on the real server: rounded weights, and an overlay with a fault."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from cli_runs import cli

from equipoise.quant.variants import resolve_server_python

pytestmark = [pytest.mark.server, pytest.mark.timeout(1200)]

BASE = Path(__file__).resolve().parents[3] / "tasks" / "embedded" / "kimi_tiny"

PLAN = """
schema_version = 1
name = "reduced"
[decision]
suite_margin = 0.05
min_joint_power = 0.0
allow_detected = true
[runner]
concurrency = 8
context_tokens = 1024
[[models]]
name = "kimi-tiny.fp8-block"
path = "embedded:kimi_tiny"
checkpoints = {{ B = "{rounded}", P = "{overlay}" }}
[[arms]]
name = "A1"
role = "baseline"
variant = "bf16"
[[arms]]
name = "A2"
role = "baseline_repeat"
variant = "bf16"
[[arms]]
name = "B"
role = "candidate"
variant = "bf16"
[[arms]]
name = "P"
role = "gross_control"
variant = "bf16"
[[tasks]]
name = "sort"
critical = true
items = 100
margin = 0.1
"""


def test_rounded_weights_get_a_verdict_and_the_overlays_fault_is_noticed(tmp_path: Path) -> None:
    made = [
        resolve_server_python(os.environ),
        "-P",
        "-m",
        "equipoise.quant.rounded",
        str(tmp_path / "weights"),
    ]
    subprocess.run([*made, str(BASE), "--format", "fp8-block"], check=True, timeout=300)
    rounded, overlay = tmp_path / "weights" / "kimi_tiny.fp8-block", tmp_path / "control"
    control = ["quant", "control", "embedded:kimi_tiny", "--kind", "noise-k", "--layers", "all"]
    assert cli(*control, "--strength", "0.6", "--out", overlay).exit_code == 0
    path = tmp_path / "reduced.toml"
    path.write_text(PLAN.format(rounded=rounded, overlay=overlay))
    done = cli("run", path, "--out", tmp_path / "run", "--device", "cpu")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert done.exit_code in (0, 3), done.output  # 100 items may not be enough to sign off

    arms = {a["name"]: a for a in report["provenance"]["arms"]}
    assert arms["A1"]["variant"] == "w=bf16,kv=bf16"
    assert arms["B"]["variant"] == "w=fp8-block,kv=bf16"
    assert arms["P"]["variant"] == "w=bf16,kv=bf16+control=noise-k-0.6"
    assert arms["P"]["control"] == "noise-k-0.6"
    differences = report["provenance"]["parity_differences"]
    assert {d["fact"] for d in differences} == {
        f"{fact} of {arm}" for fact in ("model_path", "tokenizer_path") for arm in ("B", "P")
    }
    assert {d["allowed_by"] for d in differences if d["fact"].endswith("of B")} == {
        "the plan's checkpoint of this arm (w=fp8-block,kv=bf16)"
    }
    notes = [limit for limit in report["run"]["limits"] if "decoded to BF16 before serving" in limit]
    assert len(notes) == 1
    assert notes[0].endswith("(kimi-tiny.fp8-block, B)")
    (model,) = report["models"]
    (caught,) = model["controls"]
    assert caught["variant"] == arms["P"]["variant"]
    assert caught["caught"]
    assert caught["delta"] < -0.3  # in float32, on these items, -.57
