"""Arms with a checkpoint of their own in a plan: who may have one, and what becomes of it."""

from typing import Any

import pytest
from cli_runs import cli

from equipoise.evals.errors import PlanError
from equipoise.evals.experiment.seeds import primary_plan
from equipoise.evals.plan import Plan, parse_plan

TEXT = """
schema_version = 1
name = "p"
allowed_differences = ["sampling_backend"]
[decision]
suite_margin = 0.02
[[models]]
name = "m"
path = "embedded:kimi_tiny"
checkpoints = { B = "weights/m", P = "controls/m" }
[[arms]]
name = "A1"
role = "baseline"
variant = "bf16"
[[arms]]
name = "B"
role = "candidate"
variant = "bf16"
allowed_differences = ["quantization"]
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


def plan(text: str = TEXT) -> Plan:
    return parse_plan(text, source="p.toml")


def test_a_candidate_and_a_control_may_serve_other_weights_of_the_model() -> None:
    assert plan().models[0].checkpoints == {"B": "weights/m", "P": "controls/m"}
    assert plan().content_hash != plan(TEXT.replace("weights/m", "weights/n")).content_hash


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("{ B =", "{ A1 ="), "A1.*is the baseline"),
        (("{ B =", "{ C ="), "no arm 'C'"),
        (
            ('"B"\nrole = "candidate"\nvariant = "bf16"', '"B"\nrole = "candidate"\nurl = "http://x"'),
            "variant",
        ),
        (('"weights/m"', '""'), "at least 1 character"),
    ],
)
def test_a_checkpoint_that_no_server_of_ours_would_load_is_refused(
    change: tuple[str, str], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        plan(TEXT.replace(*change))


def test_an_arm_that_becomes_an_endpoint_loses_its_checkpoint_and_keeps_it_with_another_variant() -> None:
    changed: Any = plan().with_changes(candidate="http://elsewhere:1")
    assert changed.models[0].checkpoints == {"P": "controls/m"}
    kept = plan().with_changes(candidate="fp8_e4m3", gross_control="http://elsewhere:2")
    assert kept.models[0].checkpoints == {"B": "weights/m"}


def test_a_plan_reduced_to_the_decision_keeps_the_candidates_checkpoint_only() -> None:
    assert primary_plan(plan(), 7).models[0].checkpoints == {"B": "weights/m"}


def test_a_missing_rounded_checkpoint_says_which_target_makes_it(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "p.toml"
    path.write_text(TEXT.replace('"weights/m", P = "controls/m"', '"models/weights/m"'))
    done = cli("run", path, "--out", tmp_path / "run", "--device", "cpu")
    assert done.exit_code == 2
    assert "models/weights/m does not exist; make weights" in done.stderr
    assert not (tmp_path / "run").exists()
