"""Other weights of the same model: recognised, refused where more differs, and seen by names and digests."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.evals.errors import CheckpointError, ParityError
from equipoise.evals.experiment.arm_checkpoint import CHECKPOINT_FACTS, arm_checkpoint, require_same_model
from equipoise.evals.experiment.arms_up import _allowed
from equipoise.evals.experiment.served_digest import served
from equipoise.evals.experiment.serving import servers_of
from equipoise.evals.plan import parse_plan
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.controls import ControlSpec, plan_control
from equipoise.quant.overlay import write_overlay
from equipoise.quant.rounded import ROUNDING_NAME, rounding_of

BASE = Path(__file__).resolve().parents[3] / "tasks" / "embedded" / "glm_tiny"

PLAN = """
schema_version = 1
name = "p"
allowed_differences = ["for_all"]
[decision]
suite_margin = 0.02
[[models]]
name = "m"
path = "embedded:glm_tiny"
checkpoints = {{ B = "{candidate}", P = "{control}" }}
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
allowed_differences = ["for_b"]
[[arms]]
name = "P"
role = "gross_control"
variant = "bf16"
[[tasks]]
name = "copy"
critical = true
items = 10
margin = 0.05
"""


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The same model with one weight changed, said to be rounded."""
    folder = tmp_path / "other"
    shutil.copytree(BASE, folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (folder / ROUNDING_NAME).write_text(json.dumps({"weights": "fp8-block"}))
    return folder


def edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def drop_tensor(folder: Path) -> None:
    """Rename one tensor, same length, so that names differ."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"lm_head.weight", b"lm_tail.weight"))


def test_other_weights_of_the_same_model_pass(other: Path) -> None:
    require_same_model(other, BASE)
    edit(other, quantization_config={"quant_method": "fp8"}, transformers_version="9")
    require_same_model(other, BASE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: edit(f, rope_theta=5.0), "rope_theta is 5.0"),
        (lambda f: edit(f, num_experts_per_tok=1), "num_experts_per_tok is 1"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json is not the same"),
        (lambda f: (f / "chat_template.jinja").unlink(), "chat_template.jinja is not the same"),
        (lambda f: (f / "modeling_x.py").write_text("x"), "modeling_x.py is not the same"),
        (drop_tensor, "tensor lm_head.weight is None"),
    ],
)
def test_whatever_else_differs_is_refused_by_name(
    other: Path, change: Callable[[Path], object], said: str
) -> None:
    change(other)
    with pytest.raises(ParityError) as caught:
        require_same_model(other, BASE)
    assert said in str(caught.value)


def test_an_overlay_with_more_than_its_own_fault_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "control"
    write_overlay(plan_control(Checkpoint.open(BASE), ControlSpec(kind="rope-theta", strength=3)), out)
    require_same_model(out, BASE)
    edit(out, rope_theta=12345.0)
    with pytest.raises(ParityError, match="rope_theta is 12345"):
        require_same_model(out, BASE)


def test_weights_are_named_by_the_record_else_by_the_config(other: Path, tmp_path: Path) -> None:
    known = arm_checkpoint(str(other))
    assert known.weights == "fp8-block"
    assert "decoded to BF16" in known.note
    assert arm_checkpoint(str(BASE)).weights == "bf16"
    assert arm_checkpoint("org/name").weights == "bf16"  # of a hub id nothing is known before it is served
    (other / ROUNDING_NAME).write_text('{"weights": "fp7"}')
    with pytest.raises(CheckpointError, match="names no weight format"):
        rounding_of(other)
    (other / ROUNDING_NAME).unlink()
    scheme = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}
    groups = {"group_0": {"weights": scheme}}
    edit(other, quantization_config={"quant_method": "compressed-tensors", "config_groups": groups})
    assert arm_checkpoint(str(other)).weights == "int4-g32"


def test_servers_names_allowed_facts_and_digests_follow_the_checkpoint(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_SGLANG_PYTHON", sys.executable)
    control = tmp_path / "control"
    write_overlay(plan_control(Checkpoint.open(BASE), ControlSpec(kind="noise-k", strength=0.5)), control)
    plan = parse_plan(PLAN.format(candidate=other, control=control), source="p")
    specs = servers_of(plan, "m", str(BASE), "cpu")
    assert [[a.name for a in s.arms] for s in specs] == [["A1", "A2"], ["B"], ["P"]]
    assert [s.arm for s in specs] == [
        "w=bf16,kv=bf16",
        "w=fp8-block,kv=bf16",
        "w=bf16,kv=bf16+control=noise-k-0.5",
    ]
    assert len({s.label for s in specs}) == 3  # logs are called so
    assert [s.control for s in specs] == ["", "", "noise-k-0.5"]
    paths = [next(w for w in s.launch.argv if w.startswith("--model-path=")) for s in specs]
    assert paths == [f"--model-path={p}" for p in (BASE, other, control)]
    assert "--served-model-name=m+control=noise-k-0.5" in specs[2].launch.argv
    arms = {a.name: a for a in plan.arms}
    allowed = {a: _allowed(plan, arms[a], s) for s in specs for a in (x.name for x in s.arms)}
    assert set(allowed["A1"]) == set(allowed["A2"]) == {"for_all"}
    assert set(allowed["B"]) == {"for_all", "for_b", *CHECKPOINT_FACTS}
    assert set(allowed["P"]) == {"for_all", *CHECKPOINT_FACTS}
    digests = {served("m", s.arms[0], s, None, {}).digest for s in specs}  # type: ignore[union-attr]
    assert len(digests) == 3


def test_a_checkpoint_of_another_model_stops_the_run_before_a_server_is_started(
    other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_SGLANG_PYTHON", sys.executable)
    edit(other, rms_norm_eps=0.1)
    plan = parse_plan(PLAN.format(candidate=other, control=other), source="p")
    with pytest.raises(ParityError, match="rms_norm_eps"):
        servers_of(plan, "m", str(BASE), "cpu")
